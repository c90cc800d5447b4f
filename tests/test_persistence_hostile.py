"""Files made to crash, to read foreign memory, or to take all memory or time are refused in one sentence.

Cases that could do so run in a process of their own with ten seconds and a gigabyte each.
"""

import gzip
import io
import json
import os
import re
import struct
import subprocess
import sys
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import skops.io
import xgboost
from fuzz._limits import Worker
from fuzz.model_files import ROWS, X, Y, archive_of, file_of, nodes_of, npy, parts_of
from samples import one_sentence
from scipy import sparse
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC

from mlrh import MLRHClassifier, _fitted, persistence
from mlrh._archives import Budget, Refused, read_json
from mlrh._fitted import Array
from mlrh.persistence import ModelFileError, load, save
from mlrh.spaces import LabelSpace

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the limits of time and memory are Linux's")


def outcome(path):
    """The sentence with which a file is refused, or what was loaded and asked to predict."""
    try:
        model = load(path)
    except ModelFileError as error:
        return str(error)
    if hasattr(model, "predict"):
        model.predict(X)
    return f"loaded a {type(model).__name__}"


@pytest.fixture(scope="module")
def limited(tmp_path_factory):
    """`outcome` of a file's content in a process with limits."""
    path = tmp_path_factory.mktemp("hostile") / "model.mlrh"
    path.write_bytes(file_of("linear"))
    with Worker(outcome, [path], seconds=10, memory=2**30) as worker:

        def outcome_of(content):
            path.write_bytes(content)
            return worker.fault(path)

        yield outcome_of


def state_of(schema, name):
    """The attributes of the first object of ours of that name, as nodes by their names."""
    forms = [node["content"] for node in nodes_of(schema, "DictNode") if "mlrh" in node.get("content", {})]
    return next(form["state"]["content"] for form in forms if form["mlrh"]["content"] == json.dumps(name))


def with_node(key, node, **members):
    """The file of a linear model with another node in place of an attribute."""
    parts = parts_of(file_of("linear"))
    schema = json.loads(parts["schema.json"])
    state = state_of(schema, "MLRHClassifier")
    parts.pop(state[key].get("file"), None)
    state[key] = node
    return archive_of({**parts, "schema.json": json.dumps(schema), **members})


def node_of(loader, kind, **entries):
    module, _, name = kind.rpartition(".")
    return {"__class__": name, "__module__": module, "__loader__": loader, **entries}


def list_of(items, number=None):
    return node_of("ListNode", "builtins.list", content=items, **({} if number is None else {"__id__": number}))


def with_root(schema, **members):
    """A file of such a schema."""
    head = {"mlrh.json": json.dumps({"format": persistence.FORMAT, **persistence._versions()})}
    text = schema if isinstance(schema, bytes) else json.dumps({**schema, "protocol": 2})
    return archive_of({"schema.json": text, **head, **members})


def sparse_members(index):
    """The file that scipy would load as a matrix of one entry, which lies in that column."""
    buffer = io.BytesIO()
    arrays = {"data": np.ones(1), "indices": np.array([index], np.int32), "indptr": np.array([0, 1, 1, 1], np.int32)}
    np.savez(buffer, **arrays, shape=np.array([3, 3]), format=np.array(b"csr"))
    return buffer.getvalue()


SPARSE = node_of("SparseMatrixNode", "scipy.sparse._matrix.spmatrix", type="scipy", file="9.npz")


def of_deflated_zeros():
    """Zeros that a reader of arrays would unpack to a thousand times as many bytes."""
    return archive_of({"data.npy": npy(np.zeros(10**7, np.int8))}, zipfile.ZIP_DEFLATED)


def of_shared_lists():
    lists = list_of([], 1)
    for number in range(2, 42):
        lists = list_of([lists, list_of([], number - 1)], number)
    return with_root(lists)


def of_one_member():
    nodes = [node_of("NdArrayNode", "numpy.ndarray", type="numpy", file="a.npy", __id__=i + 1) for i in range(1500)]
    return with_root(list_of(nodes), **{"a.npy": npy(np.zeros(10**6, np.int8))})


def of_sets_without_labels():
    form = {"mlrh": "ObservedSpace", "state": {"sets": np.zeros((1, 0), np.int8), "set_bias": None}}
    parts = parts_of(skops.io.dumps(form))
    longer = {name: content.replace(b"(1, 0), }         ", b"(1000000000, 0), }") for name, content in parts.items()}
    return with_root(longer.pop("schema.json"), **longer)


def nested(depth):
    node = list_of([])
    for _ in range(depth):
        node = list_of([node])
    return with_root(node)


AN_ARRAY = node_of("NdArrayNode", "numpy.ndarray", type="numpy", file="9.npy")
A_CLAIM = npy(np.zeros(3)).replace(b"(3,), }           ", b"(10000000000,), } ")
HOSTILE = {
    "an index of 2^30": (lambda: with_node("coef_", SPARSE, **{"9.npz": sparse_members(2**30)}), "must not hold"),
    "an index one too large": (lambda: with_node("coef_", SPARSE, **{"9.npz": sparse_members(3)}), "must not hold"),
    "a packed array": (lambda: with_node("coef_", AN_ARRAY, **{"9.npy": of_deflated_zeros()}), "magic string"),
    "a packed matrix": (lambda: with_node("coef_", SPARSE, **{"9.npz": of_deflated_zeros()}), "must not hold"),
    "80 GB claimed": (lambda: with_node("coef_", AN_ARRAY, **{"9.npy": A_CLAIM}), "has not the bytes that it says"),
    "one member for 1,500 arrays": (of_one_member, "two objects claim the part 'a.npy'"),
    "lists that share lists": (of_shared_lists, "loaded a list"),
    "a billion sets of no labels": (of_sets_without_labels, r"shape \(1000000000, 0\) without entries"),
    "brackets": (lambda: with_root(b"[" + b"[]," * 300_000 + b"[]]"), "more .* memory|lacks class"),
    "brackets in a text": (lambda: with_root(A_TEXT), "more .* memory|a list or dict stands"),
    "brackets that never end": (lambda: with_root(b"[" * 10**6), "RecursionError|more .* memory"),
    "parts in parts": (lambda: nested(150), "nested more than 100 deep"),
}
A_TEXT = node_of("JsonNode", "builtins.str", content="[" + "[]," * 300_000 + "[]]")


@ON_LINUX
@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_made_to_crash_or_to_fill_the_memory_does_neither(name, limited):
    build, words = HOSTILE[name]
    said = limited(build())
    assert "\n" not in said and re.search(words, said), said


def of_overlapping_members():
    """An archive whose first member ends where its second does."""
    data = bytearray(archive_of({"mlrh.json": b"", "b": bytes(1000)}))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        start, end = 30 + len("mlrh.json"), archive.start_dir
    claim = struct.pack("<LLL", zlib.crc32(data[start:end]), end - start, end - start)
    data[14:26] = data[end + 16 : end + 28] = claim  # in the member's own head, and in the directory
    return bytes(data)


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")
def test_members_that_overlap_or_share_a_name_or_belong_to_nothing_are_refused(path):
    buffer = io.BytesIO(file_of("linear"))
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr("mlrh.json", "{}")
    more = archive_of({**parts_of(file_of("linear")), "more": b"x"})
    for content, words in (
        (of_overlapping_members(), "overlap"),
        (buffer.getvalue(), "same name"),
        (more, "belongs to nothing"),
    ):
        path.write_bytes(content)
        with pytest.raises(ModelFileError, match=words) as error:
            load(path)
        assert one_sentence(error)


TEXTS = {
    "lists": "[" + "[]," * 10_000 + "[]]",
    "dicts": '[{"a":1}' + ',{"a":1}' * 10_000 + "]",
    "keys": json.dumps({str(i): i for i in range(10_000)}),
    "numbers": json.dumps(list(range(1000, 20_000))),
    "wide text": json.dumps(["x\U0001f600" + "y" * 30_000] * 3, ensure_ascii=False),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_the_memory_counted_for_a_json_text_is_no_less_than_it_takes(text):
    tracemalloc.start()
    values = json.loads(text)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert read_json(text, Budget(None)) == values
    with pytest.raises(Refused, match="MLRH_MAX_BYTES"):
        read_json(text, Budget(taken))


def test_megabytes_of_brackets_are_refused_before_they_become_a_gigabyte_of_lists():
    with pytest.raises(Refused, match="would take more than 1073741824 bytes"):
        read_json(b"[" + b"[]," * 4_000_000 + b"[]]", Budget(2**30))


def test_the_limit_of_memory_can_be_set_and_is_named(path, monkeypatch):
    path.write_bytes(file_of("linear"))
    monkeypatch.setenv("MLRH_MAX_BYTES", "20000")  # more than the file has, less than it takes
    with pytest.raises(ModelFileError, match=r"more than 20000 bytes of memory; .* MLRH_MAX_BYTES") as error:
        load(path)
    assert one_sentence(error)
    monkeypatch.setenv("MLRH_MAX_BYTES", str(10**8))
    load(path)


def test_a_lack_of_memory_is_called_that(path, monkeypatch):
    def fill(*arguments, **options):
        raise MemoryError

    path.write_bytes(file_of("linear"))
    monkeypatch.setattr(persistence, "plain_tree", fill)
    with pytest.raises(ModelFileError, match=r"needs more memory than there is\.$"):
        load(path)
    with pytest.raises(ModelFileError, match="needs more memory than there is"):
        save(MLRHClassifier(), path)


def changed(name, owner, key, change):
    """The file of a model in which an attribute of an object is dropped, or its array becomes another one."""
    parts = parts_of(file_of(name))
    schema = json.loads(parts["schema.json"])
    state = state_of(schema, owner)
    if change is None:
        del state[key]
        drop_type_of_key(schema, owner)
    else:
        member = state[key]["file"]
        parts[member] = npy(change(np.load(io.BytesIO(parts[member]))))
    used = {node["file"] for node in nodes_of(schema) if "file" in node}
    kept = {part: content for part, content in parts.items() if part in used | {"schema.json", "mlrh.json"}}
    return archive_of({**kept, "schema.json": json.dumps(schema)})


def drop_type_of_key(schema, owner):
    forms = [node for node in nodes_of(schema, "DictNode") if node["content"] is state_of(schema, owner)]
    del forms[0]["key_types"]["content"][-1]


OWNERS = {  # a model whose file holds the class
    "MLRHClassifier": "linear",
    "KernelMLRHClassifier": "precomputed",
    "MLRHClassifierCV": "chosen",
    "KernelMLRHClassifierCV": "chosen kernel",
    "CalibratedSets": "calibrated",
    "Calibration": "isotonic",
    "RiskCoverage": "calibrated",
    "TunedThresholds": "thresholds",
    "LabelPowerset": "powerset",
    "MLkNN": "neighbours",
    "IBLR": "shares of neighbours",
    "CorrLog": "pairs of labels",
    "ProbabilisticChain": "searched chain",
    "CCnet": "nets in a chain",
    "OrConstant": "chain",
    "Targets": "linear",
}
IN_TEXTS = {"steps", "kind", "dtype", "container", "coverage"}
NEEDED = [
    (owner, key)
    for owner in OWNERS
    for key, form in _fitted.OURS[owner].attributes.items()
    if not form.is_optional and key not in IN_TEXTS
]


@pytest.mark.parametrize("owner, key", NEEDED)
def test_a_file_that_lacks_an_attribute_is_refused_when_it_is_loaded_not_in_predict(owner, key, path):
    path.write_bytes(changed(OWNERS[owner], owner, key, None))
    with pytest.raises(ModelFileError, match=rf"lacks {key}\b|'{key}'") as error:
        load(path)
    assert "\n" not in str(error.value)


def test_every_class_of_ours_has_a_table_or_is_a_label_space():
    classes = {name: persistence._class_at(place) for name, place in persistence.OURS.items()}
    spaces = {name for name, kind in classes.items() if issubclass(kind, LabelSpace)}
    assert spaces | _fitted.OURS.keys() == classes.keys() and not spaces & _fitted.OURS.keys()


def one_row_more(array):
    return np.concatenate([array, array[:1]])


def one_dimension_more(array):
    return array[..., None]


def as_text(array):
    return np.full(array.shape, "x")


def with_nan(array):
    return np.full(array.shape, np.nan)


FREE = {"history_", "Cs_", "cv_scores_", "scores_"}  # lengths that no other attribute has
CHANGES = [
    (owner, key, change)
    for owner, key in NEEDED
    if isinstance(form := _fitted.OURS[owner].attributes[key], Array)
    for change in (one_row_more, one_dimension_more, as_text, with_nan)
    if (change is not with_nan or form.is_finite) and (change is not one_row_more or key not in FREE)
]


@pytest.mark.parametrize("owner, key, change", CHANGES)
def test_an_array_of_another_shape_or_type_is_refused(owner, key, change, path):
    path.write_bytes(changed(OWNERS[owner], owner, key, change))
    with pytest.raises(ModelFileError, match=r"holds a|must be") as error:
        load(path)
    assert "\n" not in str(error.value)


def test_compiled_code_is_given_no_column_that_does_not_exist(path):
    texts = CountVectorizer().fit(["aa bb cc"])
    texts.vocabulary_["cc"] = 2**30
    with pytest.raises(ModelFileError, match="vocabulary_ is not a dict of words and their columns"):
        save(texts, path)
    columns = OneHotEncoder().fit([["a"], ["b"], ["c"]])
    columns._n_features_outs = [1]
    with pytest.raises(ModelFileError, match="columns are not its categories"):
        save(columns, path)


@pytest.mark.parametrize(
    "options", [{}, {"drop": "first"}, {"drop": "if_binary"}, {"min_frequency": 2}, {"max_categories": 2}]
)
def test_every_kind_of_one_hot_columns_comes_back(options, path):
    rows = [["a", "x"], ["b", "y"], ["c", "x"], ["a", "x"]]
    encoder = OneHotEncoder(**options).fit(rows)
    save(encoder, path)
    assert (load(path).transform(rows) != encoder.transform(rows)).nnz == 0


TRUST = {
    "svm": (SVC().fit(X, Y[:, 0]), [SVC]),
    "forest": (
        make_pipeline(StandardScaler(), RandomForestClassifier(2, random_state=0)).fit(X, Y),
        [RandomForestClassifier, "sklearn.tree._classes.DecisionTreeClassifier", "sklearn.tree._tree.Tree"],
    ),
}


@pytest.mark.parametrize("name", TRUST)
def test_estimators_whose_compiled_code_trusts_the_file_need_to_be_trusted_by_name(name, path):
    model, classes = TRUST[name]
    save(model, path)
    with pytest.raises(ModelFileError, match=r"if you trust .* trusted=\['sklearn") as error:
        load(path)
    assert one_sentence(error)
    for missing in range(len(classes)):
        with pytest.raises(ModelFileError, match="trusted="):
            load(path, trusted=classes[:missing] + classes[missing + 1 :])
    assert np.array_equal(load(path, trusted=classes).predict(X), model.predict(X))


def test_trust_in_a_class_of_another_package_changes_nothing(path):
    parts = parts_of(skops.io.dumps({"f": os.system}))
    path.write_bytes(with_root(parts.pop("schema.json"), **parts))
    with pytest.raises(ModelFileError, match=r"not loaded: posix\.system"):
        load(path, trusted=["posix.system", os.system])


@pytest.mark.parametrize("key", ["predict", "_scores", "note"])
def test_an_attribute_that_no_fit_makes_is_refused(key, path):
    model = MLRHClassifier().fit(X, Y)
    vars(model)[key] = 1.0
    with pytest.raises(ModelFileError, match=f"'{key}'"):
        save(model, path)


@pytest.mark.parametrize("name", ROWS)
def test_saving_the_same_model_twice_gives_the_same_bytes(name, path):
    path.write_bytes(file_of(name))
    model = load(path)
    save(model, path)
    first = path.read_bytes()
    save(model, path)
    assert path.read_bytes() == first


WORDS = {"a", "b", "c", "d", "e"}
VALUE = {"sets": [WORDS, frozenset(WORDS)], "array": np.arange(9.0), "bytes": b"xyz"}
SCRIPT = """
import sys
import numpy as np
from mlrh.persistence import save
words = {"e", "d", "c", "b", "a"}
save({"sets": [words, frozenset(words)], "array": np.arange(9.0), "bytes": b"xyz"}, sys.argv[1])
"""


@pytest.mark.slow
def test_another_process_with_another_seed_of_hashes_writes_the_same_bytes(path):
    save(VALUE, path)
    first = path.read_bytes()
    command, seed = [sys.executable, "-c", SCRIPT, str(path)], "7"
    subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, check=True)
    assert path.read_bytes() == first


KEPT = {
    1: "0.1",
    2: "0.2",
    3: "0.2-spaces",
    4: "0.2-trees",
    5: "0.2-answers",
    6: "0.2-maps",
}  # folders of the files of each format


def test_files_of_every_format_that_is_read_are_kept():
    folders = Path(__file__).parent / "model_files"
    assert set(KEPT) == set(persistence.FORMATS)
    for format, folder in KEPT.items():
        files = list((folders / folder).glob("*.mlrh.gz"))
        headers = [json.loads(parts_of(gzip.decompress(file.read_bytes()))["mlrh.json"]) for file in files]
        assert headers and all(header["format"] == format for header in headers)


@pytest.mark.parametrize("format", [2, 3, 4, 6])
@pytest.mark.filterwarnings("ignore:.*was saved with:UserWarning")
def test_the_kept_file_of_a_format_predicts_as_then(format, path):
    folder = Path(__file__).parent / "model_files" / KEPT[format]
    path.write_bytes(gzip.decompress((folder / "models.mlrh.gz").read_bytes()))
    expected = json.loads((folder / "expected.json").read_text())
    if format == 4 and xgboost.__version__ < "3.2":  # with which it was saved
        with pytest.raises(ModelFileError, match=r"boosted trees of XGBoost 3\.2, which .* would read otherwise"):
            load(path)
        return
    models = load(path)
    assert models.keys() == expected.keys()
    for name, model in models.items():
        answer = model.predict(ROWS[name])
        answer = answer.toarray() if sparse.issparse(answer) else answer
        answer = [sorted(labels) if isinstance(labels, set) else np.asarray(labels).tolist() for labels in answer]
        assert answer == expected[name], name


def test_trees_of_a_later_xgboost_are_refused(path, monkeypatch):
    path.write_bytes(file_of("boosted"))
    monkeypatch.setattr(xgboost, "__version__", "1.7.6")
    with pytest.raises(ModelFileError, match=r"which 1\.7 would read otherwise; update XGBoost"):
        load(path)


def test_a_chain_of_format_3_is_refused_with_what_to_do(path):
    file = Path(__file__).parent / "model_files" / KEPT[3] / "chain.mlrh.gz"
    path.write_bytes(gzip.decompress(file.read_bytes()))
    with pytest.raises(ModelFileError) as caught:
        load(path)
    assert str(caught.value) == (
        f"{path} holds a ProbabilisticChain without its parameter 'epsilon'; "
        "an earlier version of mlrh saved it, so fit it again."
    )
