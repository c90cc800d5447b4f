"""Many files of any format as one set: columns left out, nominal ones, LIBSVM; and what travels to workers."""

import os
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from distributed import Client, LocalCluster
from samples import make_multilabel, one_sentence
from scipy import sparse

from mlrh.cli import _parts
from mlrh.data import DataError, FileParts, MultilabelData, read, schema_of, write
from mlrh.persistence import load, save

X, Y = make_multilabel(180)
NAMES, LABELS = tuple("uvwxyz"), tuple("abcd")
CUTS = slice(0, 60), slice(60, 130), slice(130, 180)
OPTIONS = {"format": None, "client": None, "n_folds": 2, "n_jobs": 1, "label_space": "cardinality"}


def words_of(rows):
    """A colour for each row; only the last file has green."""
    return np.where(np.arange(180) % 3 == 0, "red", np.where(np.arange(180) < 170, "blue", "green"))[rows]


def written(folder, *, with_words=False, suffix=".csv"):
    """Three files of all rows, with a column of colours."""
    paths = []
    for number, rows in enumerate(CUTS):
        data = MultilabelData(X[rows], Y[rows].astype(np.int8), NAMES, LABELS, "part")
        if with_words:
            found, codes = np.unique(words_of(rows), return_inverse=True)
            features = np.column_stack([codes.astype(float), X[rows]])
            data = MultilabelData(features, data.Y, ("colour", *NAMES), LABELS, "part", {"colour": tuple(found)})
        paths.append(folder / f"part{number}{suffix}")
        write(data, paths[-1])
    return list(map(str, paths))


def assert_optimum(model, features, Y):
    """The classifier is the optimum for these features, as the model's own preprocessor scales them."""
    classifier = model.classifier
    local = type(classifier)(**classifier.get_params()).fit(model.preprocessor.transform(features), Y)
    assert classifier.objective_ == pytest.approx(local.objective_, rel=1e-6)
    # The fit stops within tol of the optimum; coefficients are then right to the root of it.
    np.testing.assert_allclose(classifier.coef_, local.coef_, atol=1e-3 * np.abs(local.coef_).max())


def test_a_column_of_words_in_many_files_can_be_left_out(tmp_path):
    paths = written(tmp_path, with_words=True)
    with FileParts(paths, LABELS, columns={"colour": "ignored"}) as parts:
        np.testing.assert_array_equal(np.concatenate([own for own, _ in parts]), X)
    with pytest.raises(DataError, match="'colour' holds words") as raised, FileParts(paths, LABELS):
        pass
    assert str(paths[0]) in str(raised.value)
    with pytest.raises(DataError, match="has no column 'size'"), FileParts(paths, LABELS, columns={"size": "ignored"}):
        pass
    model, _ = _parts.fit_files(paths, LABELS, name="parts", columns={"colour": "ignored"}, **OPTIONS)
    assert model.schema.feature_names == NAMES and not model.schema.categories
    assert_optimum(model, X, Y)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_nominal_values_of_all_files_are_found_also_those_that_the_sample_lacks(suffix, tmp_path, monkeypatch):
    paths = written(tmp_path, with_words=True, suffix=suffix)
    monkeypatch.setattr(_parts, "SAMPLE_FILES", 1)  # the first file, where nothing is green
    model, _ = _parts.fit_files(paths, LABELS, name="parts", columns=None, **OPTIONS)
    values = model.schema.categories["colour"]
    assert sorted(values) == ["blue", "green", "red"] and model.settings["n_rows"] == 180
    codes = [values.index(word) for word in words_of(slice(None))]
    assert_optimum(model, np.column_stack([codes, X]), Y)
    one_hot = model.preprocessor.transform(np.column_stack([codes, X]))[:, :4]  # the fourth is for missing words
    np.testing.assert_array_equal(one_hot, np.eye(4)[codes])
    assert np.abs(model.classifier.coef_[:, values.index("green")]).max() > 0
    save(model, tmp_path / "model.mlrh")
    rows = read(paths[2], LABELS, schema=model.schema)
    np.testing.assert_array_equal(load(tmp_path / "model.mlrh").predict(rows), model.predict(rows))


def test_libsvm_files_that_show_different_columns_and_labels_are_fitted(tmp_path):
    shown = np.where(X > 0.7, X, 0.0)
    shown[:60, [4, 5]] = 0  # the first file ends with the fourth column, and lacks a label
    thin = sparse.csr_array(shown)
    labels = Y.astype(np.int8).copy()
    labels[:60, 3] = 0
    labels[~labels.any(axis=1), 0] = 1
    paths = []
    for number, rows in enumerate(CUTS):
        paths.append(str(tmp_path / f"part{number}.libsvm"))
        last = 4 if number == 0 else 6
        own = MultilabelData(thin[rows][:, :last], labels[rows], tuple(map(str, range(1, last + 1))), tuple("0123"), "")
        write(own, paths[-1])
    assert read(paths[0]).X.shape[1] < 6 and read(paths[0]).Y.shape[1] < 4
    schema = schema_of(paths)
    assert schema.feature_names == tuple("123456") and schema.label_names == tuple("0123")
    assert schema_of(paths, ["3", "0"], columns={"2": "ignored"}).feature_names == tuple("13456")
    for wrong in ({"labels": ["7"]}, {"columns": {"9": "ignored"}}):
        with pytest.raises(DataError, match="correct it") as raised:
            schema_of(paths, **wrong)
        assert one_sentence(raised)
    model, _ = _parts.fit_files(paths, None, name="parts", columns=None, **OPTIONS)
    assert_optimum(model, thin, labels)


def test_a_column_that_only_some_files_have_as_words_is_named(tmp_path):
    first, second, _ = written(tmp_path, with_words=True)
    lines = (tmp_path / "part1.csv").read_text().splitlines()
    (tmp_path / "part1.csv").write_text("\n".join(line.partition(",")[2] for line in lines))
    with pytest.raises(DataError, match="column 'colour' is missing") as raised:
        schema_of([first, second], LABELS)
    assert second in str(raised.value) and one_sentence(raised)


def test_arrays_that_are_no_part_are_refused_and_weights_are_mapped(tmp_path):
    np.savez(tmp_path / "flat.npz", X=X[:, 0], Y=Y)
    np.save(tmp_path / "flat.npy", X[:, 0])
    np.save(tmp_path / "Y.npy", Y)
    with open(tmp_path / "one.npz", "wb") as file:
        np.save(file, X)
    with open(tmp_path / "several.npy", "wb") as file:
        np.savez(file, X=X, Y=Y)
    for path, what in (
        (tmp_path / "flat.npz", "a column for each feature; got 1-D"),
        ((tmp_path / "flat.npy", tmp_path / "Y.npy"), "a column for each feature; got 1-D"),
        (tmp_path / "one.npz", "it holds one array"),
        ((tmp_path / "several.npy", tmp_path / "Y.npy"), "it holds several arrays"),
    ):
        with pytest.raises(DataError, match=what), FileParts([path]):
            pass
    np.savez(tmp_path / "weighted.npz", X=X, Y=Y, weight=np.arange(180.0))
    with FileParts([tmp_path / "weighted.npz"]) as parts:
        ((_, _, weight),) = parts
        assert isinstance(weight, np.memmap) and weight.tolist() == list(range(180))


@dataclass(frozen=True, eq=False)
class Sent:
    """Stands for a model."""

    name: str


TOLD: list = []


def tell(model, file, output):
    TOLD.append((model, file, output))


@pytest.fixture(scope="module")
def client():
    """A cluster of one worker in this process, so that what it gets can be seen."""
    with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=":0") as client:
        yield client


def test_the_model_is_sent_once_for_all_files_and_files_by_their_whole_paths(client, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = [f"rows{number}.csv" for number in range(4)]
    for name in [*files, "options"]:
        (tmp_path / name).write_text("")
    about = {"options_file": "options", "model": Sent("one"), "predict_file": tell}
    outputs = _parts.outputs_of(files, "answers", ".csv")
    assert list(_parts.predict_files(files, outputs, client=client, **about)) == [(own, True) for own in outputs]
    assert len({id(model) for model, *_ in TOLD}) == 1
    expected = [(str(tmp_path / file), str(tmp_path / output)) for file, output in zip(files, outputs, strict=True)]
    assert sorted(pair for _, *pair in map(list, TOLD)) == sorted(map(list, expected))


def test_a_chunk_is_gone_from_the_workers_once_its_partition_is_made(client, tmp_path, monkeypatch):
    import mlrh.dask

    ask, held = mlrh.dask._HeldRows.ask, []

    def asked(self, *arguments):
        held.append([key for key, workers in client.who_has().items() if "_read_chunk" in str(key) and workers])
        return ask(self, *arguments)

    monkeypatch.setattr(mlrh.dask._HeldRows, "ask", asked)
    options = {**OPTIONS, "client": client}
    model, _ = _parts.fit_files(written(tmp_path), LABELS, name="parts", columns=None, **options)
    assert len(held) > 2 and not any(held[1:])
    assert model.settings["n_rows"] == 180 and not hasattr(model.classifier, "n_samples_")
    assert_optimum(model, X, Y)


@pytest.mark.slow
def test_workers_in_another_folder_find_the_files_by_relative_names(tmp_path, monkeypatch):
    written(tmp_path)
    monkeypatch.chdir(tmp_path)
    options = {"threads_per_worker": 1, "dashboard_address": ":0"}
    with LocalCluster(n_workers=1, processes=True, **options) as cluster, Client(cluster) as client:
        client.run(partial(os.chdir, "/"))
        about = {**OPTIONS, "client": client}
        model, _ = _parts.fit_files(
            [f"part{number}.csv" for number in range(3)], LABELS, name="", columns=None, **about
        )
    assert model.settings["n_rows"] == 180
