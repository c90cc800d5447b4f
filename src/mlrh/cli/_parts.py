"""Commands over many files: one fit to all of them, and predictions for each, in this process or on a cluster."""

import glob
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from mlrh.cli._inputs import OF_MANY

SAMPLE_FILES = 5  # evenly spaced, that settings are chosen on: reading all would take as long as a fit
SAMPLE_ROWS = 5000  # of these files together: enough to tell settings apart, few enough to try many
SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kmgt]i?b)", re.IGNORECASE)  # of memory; Dask takes it so, too
UNITS = {f"{prefix}{i}B": base**n for n, prefix in enumerate("KMGT", 1) for i, base in (("", 1000), ("I", 1024))}
LEAST_MEMORY = 1e8  # bytes; a worker that has no rows yet takes more
OPTIONS_FILE = ".mlrh-predict.json"  # hidden, so that neither `answers/*` nor readers of whole folders take it for rows

SchedulerOption = Annotated[
    str | None,
    typer.Option(
        "--scheduler",
        metavar="ADDRESS",
        rich_help_panel=OF_MANY,
        help="Address of a Dask scheduler, such as tcp://10.0.0.1:8786.",
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        metavar="N",
        rich_help_panel=OF_MANY,
        help="Start so many Dask workers on this machine, for this command.",
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        rich_help_panel=OF_MANY,
        help="Memory of each of the --workers, such as 4GB; default: a fair share.",
    ),
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


def check_memory(workers: int | None, memory: str | None) -> None:
    """Raise a ValueError where the memory would be that of no worker, or is no size that one can start with."""
    if memory is None:
        return
    if workers is None:
        raise ValueError("--memory is that of each of the workers; say how many with --workers.")
    size = SIZE.fullmatch(memory.strip())
    if size is None or float(size[1]) * UNITS[size[2].upper()] < LEAST_MEMORY:
        raise ValueError(f"--memory must be a size such as 500MB or 4GB, and at least 100MB; got {memory!r}.")


@contextmanager
def client_of(scheduler: str | None, workers: int | None, memory: str | None) -> Iterator[Any]:
    """A Dask client of a scheduler, or of workers that end with the block; None where neither is asked for."""
    if scheduler is None and workers is None:
        yield None
        return
    if scheduler is not None and workers is not None:
        raise ValueError("--scheduler names a cluster, and --workers starts one; give one of them.")
    try:
        import distributed
    except ImportError as error:
        raise ImportError(
            'A cluster needs Dask; install it with: pip install "dask[array]>=2025.1" "distributed>=2025.1"'
        ) from error
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
        distributed.LocalCluster(n_workers=workers, threads_per_worker=1, processes=True, **options) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def must_be_one_table(files: list[str], labels: Any, **options: Any) -> bool:
    """Whether files hold what only a fit to one table takes: text, dates, label sets or unknown labels.

    options are those of `mlrh.data.read`. The first file says what columns are.
    """
    import warnings

    from mlrh.data import read

    if options["separator"] is not None or options["unknown"] is not None:
        return True
    with warnings.catch_warnings():  # they are told when all files are read
        warnings.simplefilter("ignore", UserWarning)
        first = read(files[0], labels, **options)
    return bool(first.texts or first.dates or first.tags)


def fit_files(files, labels, *, name, columns, format, client, **options) -> Any:
    """The model of all rows of several files, and the MLRHAuto that chose its settings on a sample of them.

    columns are as for `mlrh.data.read`, options those of `mlrh.automatic.choose`.
    """
    from mlrh.automatic import choose
    from mlrh.data import schema_of

    whole = schema_of(files, labels, format=format, columns=columns)
    schema = replace(whole, kept=())  # what is kept is for predictions
    sample = _sampled(files, schema, name, format)
    # Linear scores are a sum over rows; quality="fast" pools no models, which could not be fitted in parts.
    chosen = choose(sample, scores="linear", quality="fast", **options)
    preprocessor, classifier = chosen.classifier.best_estimator_
    model = replace(chosen, schema=whole, preprocessor=_of_all_values(preprocessor, sample), classifier=classifier)
    what = f"Settings and scales come from a sample of {len(sample.Y):,} rows; the fit is to all rows of all files."
    fit = _fit_here if client is None else _fit_on_cluster
    classifier, n_rows = fit(client, files, model, sample, format)
    sizes = dict(zip(("min_labels", "max_labels"), classifier.label_space_.sizes(), strict=True))
    settings = {**model.settings, **sizes, "n_rows": n_rows, "notes": [*model.settings["notes"], what]}
    return replace(model, classifier=classifier, settings=settings), chosen.classifier


def _sampled(files, schema, name, format):
    """A sample of the rows of evenly spaced files."""
    import numpy as np
    from scipy import sparse

    places = np.unique(np.linspace(0, len(files) - 1, SAMPLE_FILES).round().astype(int)).tolist()
    random, parts = np.random.RandomState(0), []
    for place in places:
        data = _read_part(files[place], schema, format)
        rows = np.sort(random.permutation(len(data.Y))[: SAMPLE_ROWS // len(places)])
        parts.append(data.rows(rows))
    stack = sparse.vstack if sparse.issparse(parts[0].X) else np.concatenate
    X, Y = stack([part.X for part in parts]), np.concatenate([part.Y for part in parts])
    return replace(parts[0], X=sparse.csr_array(X) if sparse.issparse(X) else X, Y=Y, name=name)


def _read_part(file, schema, format):
    from mlrh.data import read
    from mlrh.data._parts import refuse_sets

    data = read(file, list(schema.label_names), format=format, schema=schema)
    refuse_sets(data, file)
    return data


def _of_all_values(preprocessor, sample):
    """The preprocessor with a column for each nominal value of all files, which the sample may lack, and for NaN."""
    import numpy as np
    from sklearn.base import clone
    from sklearn.preprocessing import OneHotEncoder

    if not sample.categories:
        return preprocessor
    n_values = [len(sample.categories[sample.feature_names[column]]) for column in sample.nominal]
    values = [np.array([*range(n), np.nan]) for n in n_values]
    fitted = clone(preprocessor)
    encoders = [name for name, own in fitted.get_params().items() if isinstance(own, OneHotEncoder)]
    return fitted.set_params(**{f"{encoders[0]}__categories": values}).fit(sample.X)


def _fit_here(client, files, model, sample, format):
    """The classifier fitted to chunks, and the number of rows."""
    from sklearn.base import clone

    from mlrh.data import FileParts

    with FileParts(files, sample.label_names, format=format, schema=sample.schema) as parts:

        def chunks():
            for X, Y in parts:
                yield _chunk(replace(sample, X=X, Y=Y), model)

        return clone(model.classifier).fit_chunks(chunks), sum(len(Y) for _, Y in parts)


def _fit_on_cluster(client, files, model, sample, format):
    """The same by the workers, which read the files."""
    from dask import delayed

    from mlrh.dask import DaskMLRHClassifier

    settings = model.classifier.get_params(deep=False)
    how = delayed((model, sample.schema, format), traverse=False)  # sent once to each worker
    # Workers may run in another folder. Delayed, not futures: a chunk is gone once its partition is made.
    chunks = [delayed(_read_chunk)(os.path.abspath(file), how) for file in files]
    classifier = DaskMLRHClassifier(client=client, **settings).fit(chunks)
    return classifier.to_local(), classifier.n_samples_


def _read_chunk(file, how):
    model, schema, format = how
    return _chunk(_read_part(file, schema, format), model)


def _chunk(data, model):
    """Features and labels as the classifier takes them: to it a dense column is two classes, a sparse one a label."""
    from scipy import sparse

    return model.features(data), sparse.csr_array(data.Y) if data.Y.shape[1] == 1 else data.Y


def predict_files(files, outputs, *, client, options_file, model, predict_file) -> Iterator[tuple[str, bool]]:
    """Yields each output file, and whether it was written now: not those newer than rows and options.

    predict_file(model, file, output) writes one.
    """
    waiting = []
    for file, output in zip(files, outputs, strict=True):
        if is_finished(output, file, options_file):
            yield output, False
        else:
            waiting.append((file, output))
    if client is None:
        for file, output in waiting:
            predict_file(model, file, output)
            yield output, True
        return
    for (_, output), future in zip(waiting, _predicted(client, waiting, model, predict_file), strict=True):
        future.result()
        yield output, True


def _predicted(client, pairs, model, predict_file):
    """Futures of the predictions for pairs of file and output, in one graph, in which the model is once."""
    import dask

    sent = dask.delayed(model, traverse=False)
    # Workers may run in another folder.
    places = [tuple(map(os.path.abspath, pair)) for pair in pairs]
    tasks = [dask.delayed(predict_file)(sent, file, output) for file, output in places]
    # Dask would warn of the size of a large model.
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TiB"}):
        return client.compute(tasks)


def outputs_of(files, folder, suffix) -> list[str]:
    """The output file of each input: its stem in the folder; a ValueError where two inputs have the same."""
    from mlrh.data._sources import parts_of

    outputs = [str(Path(folder) / f"{parts_of(Path(file).name)[0]}{suffix}") for file in files]
    twice = [output for output, number in Counter(outputs).items() if number > 1]
    if twice:
        raise ValueError(f"Two files would be answered in {twice[0]}; rename one, or give them one at a time.")
    return outputs


def noted_options(folder, options, sources) -> Path:
    """The file that says how the outputs of a folder that are newer than it were made: by which options, from what.

    sources are the inputs by their outputs. The file becomes newer than all outputs where the options differ from
    those that it says, or where an output that is newer has another source; else it only gains sources.
    """
    from mlrh._files import naming, replacing

    path = Path(folder) / OPTIONS_FILE
    own = {Path(output).name: os.path.abspath(file) for output, file in sources.items()}
    with naming(path):
        before = _noted(path)
    there = before["sources"]
    is_same = before["options"] == options and all(
        there.get(name) == file for name, file in own.items() if _is_newer(Path(folder) / name, path)
    )
    content = {"options": options, "sources": {**(there if is_same else {}), **own}}
    if content != before:
        time = path.stat().st_mtime_ns if is_same else None
        with replacing(path) as (file,):
            file.write(json.dumps(content).encode())
        if time is not None:
            os.utime(path, ns=(time, time))
    return path


def _noted(path):
    """What a file of `noted_options` says; nothing where there is none, or one of another form."""
    try:
        found = json.loads(path.read_bytes())
        return {"options": found["options"], "sources": dict(found["sources"])}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return {"options": None, "sources": {}}


def is_finished(output, file, options_file) -> bool:
    """Whether an output is there and newer than its rows and the options; files appear complete or not at all."""
    return _is_newer(output, options_file) and Path(output).stat().st_mtime >= Path(file).stat().st_mtime


def _is_newer(output, options_file):
    # An output as old as the options, where a file system counts seconds, may have been made by the ones before.
    path = Path(output)
    return path.exists() and path.stat().st_mtime > Path(options_file).stat().st_mtime
