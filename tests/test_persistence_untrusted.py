"""Files that no save has made, or that somebody has changed, are refused in one sentence and run nothing."""

import io
import json
import os
import pickle
import re
import sys
import warnings
import zipfile
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import skops.io
from samples import FORMS, make_multilabel, one_sentence
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mlrh import KernelMLRHClassifier, MLRHClassifier, persistence
from mlrh.baselines import MLkNN
from mlrh.data.containers import Schema
from mlrh.persistence import ModelFileError, load, save
from mlrh.spaces import LabelSpace

X, Y = make_multilabel(60)


class OwnClassifier(MLRHClassifier):
    """A class that is not the package's."""


class Trap:
    """Its pickle writes to standard error's file when loaded."""

    def __reduce__(self):
        return os.system, ("echo trapped >&2",)


def archive_of(parts, compression=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def parts_of(data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A file that holds one of nearly everything, as bytes."""
    path = tmp_path_factory.mktemp("saved") / "model.mlrh"
    rows = sparse.csr_array(np.where(X > 0.5, X, 0)[:12])
    kernel = KernelMLRHClassifier(label_space="observed").fit(rows, FORMS["sets"](Y)[:12])
    linear = make_pipeline(StandardScaler(), MLRHClassifier(size_bias=True)).fit(X, sparse.csr_matrix(Y))
    save(
        {"kernel": kernel, "linear": linear, "neighbours": MLkNN(2).fit(X[:9], Y[:9]), 3: Schema(("a",), ("b",))}, path
    )
    return path.read_bytes()


SKOPS = "is a skops file, but not a model file that mlrh saved"
NOT_MODELS = {
    "empty": (b"", "is empty"),
    "text": (b"hello world", "is not a model file"),
    "pickle": (pickle.dumps(Trap()), "is a pickle"),
    "old pickle": (pickle.dumps(Trap(), protocol=0), "is not a model file"),
    "archive": (archive_of({"a": "b"}), "is an archive, but not a model file"),
    "skops": (skops.io.dumps([1]), f"{SKOPS}; skops.io.load may load it"),
    "skops of others": (skops.io.dumps({"f": os.system}), rf"{SKOPS}; it is not loaded and holds posix\.system"),
    "schema of others": (archive_of({"schema.json": "[]"}), "is an archive, but not a model file"),
    "packed skops": (skops.io.dumps([1], compression=zipfile.ZIP_DEFLATED), "is an archive, but not a model file"),
}


@pytest.mark.parametrize("name", NOT_MODELS)
def test_other_files_are_refused_in_one_sentence_and_not_run(name, path, capfd):
    content, pattern = NOT_MODELS[name]
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=pattern) as error:
        load(path)
    assert one_sentence(error) and str(path) in str(error.value)
    assert "trapped" not in capfd.readouterr().err


def test_a_missing_file_and_a_folder_are_one_sentence(path, tmp_path):
    for target, words in ((path, "There is no model file"), (tmp_path, "is a folder")):
        with pytest.raises(ModelFileError, match=words) as error:
            load(str(target))
        assert one_sentence(error)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_a_pipe_is_refused_without_waiting_for_a_writer(path):
    os.mkfifo(path)
    with pytest.raises(ModelFileError, match="not a regular file"):
        load(path)


def test_a_file_cut_short_anywhere_is_refused(saved, path):
    for length in np.linspace(1, len(saved) - 1, 60).astype(int):
        path.write_bytes(saved[:length])
        with pytest.raises(ModelFileError, match=r"cut short|is not a model file|damaged"):
            load(path)


def forged(saved, path, **parts):
    """A file with some parts replaced, whose checksums are right."""
    path.write_bytes(archive_of({**parts_of(saved), **parts}))
    return path


def with_schema(path, value, **changes):
    """A file around a value that skops writes and save would not."""
    path.write_bytes(archive_of({**parts_of(skops.io.dumps(value)), "mlrh.json": header(**changes)}))
    return path


def test_a_file_with_foreign_classes_is_refused_by_their_names(path):
    with pytest.raises(ModelFileError, match=r"not loaded: posix\.system, .*OwnClassifier") as error:
        load(with_schema(path, {"f": os.system, "m": OwnClassifier()}))
    assert one_sentence(error) and str(path) in str(error.value)


def test_names_that_a_file_makes_up_do_not_break_the_sentence(path):
    schema = json.loads(parts_of(skops.io.dumps(os.system))["schema.json"])
    schema["__class__"] = "system\n\n" + "x" * 10_000
    with_schema(path, None)
    parts = {**parts_of(path.read_bytes()), "schema.json": json.dumps(schema)}
    path.write_bytes(archive_of(parts))
    with pytest.raises(ModelFileError, match=r"not loaded: posix\.system x+ \.\.\.\.$") as error:
        load(path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 600 + len(str(path))


def test_our_classes_are_loaded_only_through_their_own_forms(path):
    with pytest.raises(ModelFileError, match=r"not loaded: mlrh\.estimators\.linear\.MLRHClassifier"):
        load(with_schema(path, MLRHClassifier()))


@pytest.mark.parametrize("format", persistence.FORMATS)
@pytest.mark.parametrize(
    "name", ["mlrh.persistence.save", "mlrh.estimators._base.MLRHBase", "os.system", "mlrh.estimators", "x"]
)
def test_a_form_that_names_anything_but_the_listed_classes_is_refused(name, format, path):
    with pytest.raises(ModelFileError, match="doesn't know"):
        load(with_schema(path, {"mlrh": name, "state": {}}, format=format))


def of_sizes(**changes):
    state = {"n_labels": 3, "min_labels": 0, "max_labels": 3, "size_bias": np.zeros(4), **changes}
    return {"mlrh": "CardinalitySpace", "state": state}


def of_matrix(kind, index):
    parts = {"data": np.ones(1), "indices": np.array([index]), "indptr": np.array([0, 1])}
    return {"mlrh": "sparse", "kind": kind, "shape": [1, 2], **parts}


def of_targets(kind, container, classes):
    return {"mlrh": "Targets", "state": {"kind": kind, "classes": classes, "dtype": "int64", "container": container}}


SETS_TWICE = {"sets": np.ones((2, 2), np.int8), "set_bias": np.zeros(2)}
PLACE = "mlrh.spaces.observed.ObservedSpace"
FORGED = {
    "sizes out of order": (of_sizes(min_labels=2, max_labels=1), "Sizes must be integers"),
    "a bias too short": (of_sizes(size_bias=np.zeros(2)), "size_bias must be 4 finite numbers"),
    "a space too large": (of_sizes(n_labels=10**11, size_bias=None), "size_bias must be 100000000001"),
    "a space without a bias": ({"mlrh": "CardinalitySpace", "state": {"n_labels": 10**11}}, "KeyError: 'size_bias'"),
    "sets twice": ({"mlrh": "ObservedSpace", "state": SETS_TWICE}, "sets must be distinct"),
    "a space nobody trusts": ({"mlrh": "space", "name": "os.system", "state": {}}, "is not of mlrh, os.system"),
    "a space of ours by its place": ({"mlrh": "space", "name": PLACE, "state": {}}, "is not of mlrh"),
    "a function as container": (of_targets("sparse", "save_npz", np.arange(2)), "container is not a form of y"),
    "sets in a function": (of_targets("sets", "print", np.arange(2)), "container is not a form of y"),
    "classes that are no array": (of_targets("sets", "set", 5), "classes is not an array of distinct names"),
    "arguments unknown": ({"mlrh": "RiskCoverage", "state": {"curve": 1}}, "lacks coverage"),
    "a column out of range": (of_matrix("csr_array", 10**6), "ValueError"),
    "a matrix of a kind unknown": (of_matrix("load_npz", 0), "KeyError"),
    "more objects than places": ({"mlrh": "objects", "shape": [3], "items": [1]}, "ValueError"),
    "endless text": ({"mlrh": "json", "text": "[" * 10**5}, "RecursionError"),
    "no parts": ({"mlrh": "tuple"}, "TypeError"),
    "a name that is a list": ({"mlrh": []}, "is no text"),
    "a name that is a type": ({"mlrh": str}, "is no text"),
}


@pytest.mark.parametrize("name", FORGED)
def test_forms_that_contradict_themselves_are_refused_in_one_sentence(name, path):
    form, words = FORGED[name]
    with pytest.raises(ModelFileError, match=words) as error:
        load(with_schema(path, form))
    assert "\n" not in str(error.value) and str(path) in str(error.value)


def test_compressed_parts_are_refused_so_that_a_small_file_stays_small(saved, path):
    path.write_bytes(archive_of({**parts_of(saved), "zeros": bytes(10**7)}, zipfile.ZIP_DEFLATED))
    with pytest.raises(ModelFileError, match="compressed"):
        load(path)


def header(**changes):
    return json.dumps({"format": persistence.FORMAT, **persistence._versions(), **changes})


def test_a_file_of_another_format_is_refused_with_the_versions(saved, path):
    with pytest.raises(
        ModelFileError, match=r"format 99 of mlrh 7\.1\.0; mlrh .* reads formats 1, 2, 3, 4, 5 and 6 only"
    ):
        load(forged(saved, path, **{"mlrh.json": header(format=99, mlrh="7.1.0")}))


@pytest.mark.parametrize("package", ["mlrh", "scikit-learn"])
def test_another_minor_version_is_one_warning_and_another_patch_is_none(package, saved, path):
    major, minor, *_ = persistence._versions()[package].split(".")
    load(forged(saved, path, **{"mlrh.json": header(**{package: f"{major}.{minor}.999"})}))
    with pytest.warns(UserWarning, match=rf"saved with {package} {major}\.999\.0 \(here ") as caught:
        load(forged(saved, path, **{"mlrh.json": header(**{package: f"{major}.999.0"})}))
    assert len(caught) == 1 and caught[0].filename == __file__


def test_estimators_of_another_scikit_learn_do_not_warn_one_by_one(saved, path):
    schema = parts_of(saved)["schema.json"].decode()
    ours = persistence._versions()["scikit-learn"]
    assert f'\\"{ours}\\"' in schema
    load(forged(saved, path, **{"schema.json": schema.replace(f'\\"{ours}\\"', '\\"1.0.0\\"')}))


FORBIDDEN = {"os.system", "os.exec", "os.posix_spawn", "os.fork"}
FORBIDDEN |= {"subprocess.Popen", "socket.connect", "pickle.find_class"}
events: list[str] | None = None


def watch(event, arguments):
    if events is not None and (event in FORBIDDEN or (event == "open" and "w" in str(arguments[1]))):
        events.append(event)


sys.addaudithook(watch)  # can't be removed; listens only while `events` is a list


def watched_load(path):
    """The loaded object, and that no forbidden event came with it; not so of predictions, as numba reads its cache."""
    global events
    events = []
    try:
        return load(path)
    finally:
        seen, events = events, None
        assert seen == []


def outcome(path):
    """What comes of a file: a ModelFileError, or an object that predicts or has any other error when it should."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = watched_load(path)
        except ModelFileError as error:
            assert "\n" not in str(error)
            return "refused"
        try:
            model["kernel"].predict(sparse.csr_array(X))
            model["linear"].predict(X)
            model["neighbours"].predict(X)
        except Exception:
            return "unusable"
    return "usable"


def outcomes_of(files, path):
    return [outcome(path) for content in files if path.write_bytes(content)]


def with_changed_bytes(saved):
    rng = np.random.RandomState(0)
    for _ in range(150):
        data = bytearray(saved)
        for place in rng.randint(len(data), size=rng.randint(1, 4)):
            data[place] = rng.randint(256)
        yield data


def with_changed_contents(saved):
    rng, parts = np.random.RandomState(1), parts_of(saved)
    names = sorted(parts)
    tokens = b'"ObjectNode" "FunctionNode" "TypeNode" "os" "system" "builtins" "eval" -1 []'.split()
    for _ in range(200):
        name = names[rng.randint(len(names))] if rng.rand() < 0.5 else "schema.json"
        content = bytearray(parts[name])
        place = rng.randint(len(content))
        if rng.rand() < 0.5:
            content[place : place + rng.randint(30)] = tokens[rng.randint(len(tokens))]
        else:
            content[place] = rng.randint(256)
        yield archive_of({**parts, name: bytes(content)})


def with_swapped_words(saved):
    rng, parts = np.random.RandomState(2), parts_of(saved)
    words = parts["schema.json"].split(b'"')
    for _ in range(200):
        changed = list(words)
        i, j = rng.randint(len(words) // 2, size=2) * 2 + 1
        changed[i] = changed[j]
        yield archive_of({**parts, "schema.json": b'"'.join(changed)})


def test_changed_bytes_are_refused_or_harmless(saved, path):
    assert outcomes_of(with_changed_bytes(saved), path).count("refused") > 100


@pytest.mark.parametrize("changed", [with_changed_contents, with_swapped_words])
def test_changed_contents_with_right_checksums_are_refused_or_harmless(changed, saved, path):
    assert {"refused", "usable"} <= set(outcomes_of(changed(saved), path))


def test_a_listed_name_can_only_be_a_class_at_the_place_it_names():
    for place in persistence.OURS.values():
        module, _, name = place.rpartition(".")
        kind = getattr(import_module(module), name)
        assert isinstance(kind, type) and (kind.__module__, kind.__qualname__) == (module, name)


@pytest.mark.parametrize("module", ["mlrh", "mlrh.baselines", "mlrh.spaces"])
def test_every_public_estimator_and_label_space_is_listed(module):
    package = import_module(module)
    kinds = [getattr(package, name) for name in package.__all__]
    kinds = [kind for kind in kinds if isinstance(kind, type) and {BaseEstimator, LabelSpace} & set(kind.__mro__[1:])]
    assert kinds and {f"{kind.__module__}.{kind.__qualname__}" for kind in kinds} <= set(persistence.OURS.values())


def test_no_module_of_the_package_imports_a_pickler():
    sources = [path.read_text() for path in Path(persistence.__file__).parent.rglob("*.py")]
    assert not any(
        re.search(r"^\s*(import|from) (pickle|cloudpickle|dill)\b", source, re.MULTILINE) for source in sources
    )
