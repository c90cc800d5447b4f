"""Commands over many files: one fit to all of them, and predictions for each, in this process or on a cluster."""

import glob
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

SAMPLE_FILES = 5  # evenly spaced, that settings are chosen on: reading all would take as long as a fit
SAMPLE_ROWS = 5000  # of these files together: enough to tell settings apart, few enough to try many

SchedulerOption = Annotated[
    str | None, typer.Option("--scheduler", help="Address of a Dask scheduler, such as tcp://10.0.0.1:8786.")
]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", min=1, help="Start so many Dask workers on this machine, for this command.")
]
MemoryOption = Annotated[
    str | None, typer.Option("--memory", help="Memory of each of the --workers, such as 4GB; default: a fair share.")
]


def files_of(file: str) -> list[str]:
    """The files that a name with wildcards (*, ?, [...]) matches, sorted; a name without is its own."""
    if not is_pattern(file):
        return [file]
    found = sorted(glob.glob(file, recursive=True))
    if not found:
        raise ValueError(f"No file matches {file}; correct the pattern.")
    return found


def is_pattern(file: str) -> bool:
    """Whether a name has wildcards, and is not itself that of a file."""
    return any(sign in file for sign in "*?[") and not Path(file).exists()


@contextmanager
def client_of(scheduler: str | None, workers: int | None, memory: str | None) -> Iterator[Any]:
    """A Dask client of a scheduler, or of workers that end with the block; None where neither is asked for."""
    if memory is not None and workers is None:
        raise ValueError("--memory is that of each of the workers; say how many with --workers.")
    if scheduler is None and workers is None:
        yield None
        return
    if scheduler is not None and workers is not None:
        raise ValueError("--scheduler names a cluster, and --workers starts one; give one of them.")
    try:
        import distributed
    except ImportError as error:
        raise ImportError('A cluster needs Dask; install it with: pip install "mlrh[dask]"') from error
    if scheduler is not None:
        try:
            client = distributed.Client(scheduler)
        except (OSError, TimeoutError) as error:
            raise ValueError(f"There is no Dask scheduler at {scheduler}; correct the address, or start it.") from error
        with client:
            yield client
        return
    options = {"memory_limit": memory or "auto", "dashboard_address": "127.0.0.1:0", "silence_logs": logging.CRITICAL}
    with (
        distributed.LocalCluster(workers, threads_per_worker=1, processes=True, **options) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def fit_files(files, labels, *, name, ignore, format, client, **options) -> Any:
    """The model of all rows of several files, and the MLRHAuto that chose its settings on a sample of them.

    options are those of `mlrh.automatic.choose`.
    """
    from mlrh.automatic import choose

    sample, schema = _sampled(files, labels, name, ignore, format)
    # Linear scores are a sum over rows; quality="fast" pools no models, which could not be fitted in parts.
    chosen = choose(sample, scores="linear", quality="fast", **options)
    preprocessor, classifier = chosen.classifier.best_estimator_
    model = replace(chosen, preprocessor=preprocessor, classifier=classifier)
    what = f"Settings and scales come from a sample of {len(sample.Y):,} rows; the fit is to all rows of all files."
    fit = _fit_here if client is None else _fit_on_cluster
    classifier, n_rows = fit(client, files, model, sample, schema, format)
    sizes = dict(zip(("min_labels", "max_labels"), classifier.label_space_.sizes(), strict=True))
    settings = {**model.settings, **sizes, "n_rows": n_rows, "notes": [*model.settings["notes"], what]}
    return replace(model, classifier=classifier, settings=settings), chosen.classifier


def _sampled(files, labels, name, ignore, format):
    """A sample of the rows, and the schema of the files; a DataError where files can't be parts of one set."""
    import numpy as np
    from scipy import sparse

    from mlrh.data import DataError, read

    places = np.unique(np.linspace(0, len(files) - 1, SAMPLE_FILES).round().astype(int)).tolist()
    random, parts, schema = np.random.RandomState(0), [], None
    for place in places:
        data = read(files[place], labels if schema is None else None, format=format, schema=schema)
        schema = schema or data.schema
        if data.categories:
            raise DataError(f"{files[place]}: features of several files must be numbers; leave out columns of words.")
        if sparse.issparse(data.X) and all(feature.isdigit() for feature in data.feature_names):
            raise DataError(
                f"{files[place]}: LIBSVM files don't say which columns all of them have, so that only one can be "
                "fitted; convert them, or use fit_chunks in Python."
            )
        rows = np.sort(random.permutation(len(data.Y))[: SAMPLE_ROWS // len(places)])
        parts.append(data.rows(rows).without(ignore))
    stack = sparse.vstack if sparse.issparse(parts[0].X) else np.concatenate
    X, Y = stack([part.X for part in parts]), np.concatenate([part.Y for part in parts])
    return replace(parts[0], X=sparse.csr_array(X) if sparse.issparse(X) else X, Y=Y, name=name), schema


def _fit_here(client, files, model, sample, schema, format):
    """The classifier fitted to chunks, and the number of rows."""
    from sklearn.base import clone

    from mlrh.data import FileParts

    with FileParts(files, schema.label_names, format=format) as parts:

        def chunks():
            for X, Y in parts:
                yield _chunk(replace(sample, X=X, Y=Y, feature_names=schema.feature_names), model)

        return clone(model.classifier).fit_chunks(chunks), sum(len(Y) for _, Y in parts)


def _fit_on_cluster(client, files, model, sample, schema, format):
    """The same by the workers, which read the files."""
    from mlrh.dask import DaskMLRHClassifier

    settings = model.classifier.get_params(deep=False)
    chunks = client.map(_read_chunk, files, schema=schema, format=format, model=model, pure=False)
    classifier = DaskMLRHClassifier(client=client, **settings).fit(chunks).to_local()
    return classifier, sum(client.gather(client.map(_n_rows, chunks, pure=False)))


def _read_chunk(file, schema, format, model):
    from mlrh.data import read

    return _chunk(read(file, None, format=format, schema=schema), model)


def _chunk(data, model):
    """Features and labels as the classifier takes them: to it a dense column is two classes, a sparse one a label."""
    from scipy import sparse

    return model.features(data), sparse.csr_array(data.Y) if data.Y.shape[1] == 1 else data.Y


def _n_rows(chunk):
    return chunk[0].shape[0]


def predict_files(files, folder, suffix, *, client, model_file, predict_file) -> Iterator[tuple[str, bool]]:
    """Yields each output file, and whether it was written now: those that are newer than model and rows are not.

    predict_file(file, output) writes one.
    """
    waiting = []
    for file, output in zip(files, outputs_of(files, folder, suffix), strict=True):
        if is_finished(output, [file, model_file]):
            yield output, False
        elif client is None:
            predict_file(file, output)
            yield output, True
        else:
            waiting.append((output, client.submit(predict_file, file, output, pure=False)))
    for output, future in waiting:
        future.result()
        yield output, True


def outputs_of(files, folder, suffix) -> list[str]:
    """The output file of each input: its stem in the folder; a ValueError where two inputs have the same."""
    from mlrh.data._sources import parts_of

    outputs = [str(Path(folder) / f"{parts_of(Path(file).name)[0]}{suffix}") for file in files]
    twice = [output for output in outputs if outputs.count(output) > 1]
    if twice:
        raise ValueError(f"Two files would be answered in {twice[0]}; rename one, or give them one at a time.")
    return outputs


def is_finished(output, inputs) -> bool:
    """Whether an output is there and newer than what it is made from; files appear complete or not at all."""
    path = Path(output)
    return path.exists() and all(path.stat().st_mtime >= Path(own).stat().st_mtime for own in inputs)
