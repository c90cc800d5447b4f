"""ARFF files give the numbers that other readers and the tables of the public sets give; faults are named by line."""

import gzip
import os
import time
import tracemalloc
from contextlib import nullcontext
from pathlib import Path

import data_files
import numpy as np
import pytest
from scipy import sparse
from scipy.io import arff as scipy_arff

from mlrh.data._readers import read
from mlrh.data.containers import DataError, Schema

FOLDER = os.environ.get("MLRH_DATA")
PUBLIC = pytest.mark.skipif(not FOLDER, reason="MLRH_DATA names no folder with the public sets")

DENSE = """% a comment
@RELATION toy

@attribute a numeric
@attribute 'b c' {red, "dark blue", 'it\\'s'}
@attribute y1 {0,1}
@ATTRIBUTE y2 {1, 0} % trailing comment

@data
1.5,red,0,1
% another
?, 'dark blue' ,1,0
-2e-3,'it\\'s',1,1
,?,0,0
"""
LABELS = ["y1", "y2"]


def public(path):
    return Path(FOLDER) / path


def save(folder, text, name="toy.arff"):
    return data_files.save(folder, text, name)


def header(*attributes, relation="toy"):
    return "\n".join([f"@relation {relation}", *(f"@attribute {a}" for a in attributes), "@data", ""])


def xml(*names):
    labels = "".join(f'<label name="{name}"></label>\n' for name in names)
    return f'<?xml version="1.0" encoding="utf-8"?>\n<labels xmlns="http://mulan.sourceforge.net/labels">\n{labels}</labels>'


@PUBLIC
def test_emotions_equals_what_scipy_reads():
    data = read(public("emotions/emotions-train.arff"))
    rows, _ = scipy_arff.loadarff(public("emotions/emotions-train.arff"))
    columns = np.array([rows[name].astype(float) for name in (*data.feature_names, *data.label_names)]).T
    assert np.array_equal(data.X, columns[:, :72])
    assert np.array_equal(data.Y, columns[:, 72:])


@PUBLIC
def test_labels_of_yeast_come_in_the_order_of_the_data_file_not_of_the_xml():
    names = read(public("yeast/yeast.arff.gz")).label_names
    assert names == tuple(f"Class{k}" for k in range(1, 15))
    text = public("yeast/yeast.xml").read_text()
    assert sorted(names, key=lambda name: text.index(f'"{name}"')) != list(names)


@PUBLIC
def test_a_sequence_of_names_gives_labels_in_its_own_order():
    names = ["Class3", "Class1"]
    whole, two = read(public("yeast/yeast-test.arff.gz")), read(public("yeast/yeast-test.arff.gz"), names)
    assert two.label_names == ("Class3", "Class1")
    assert np.array_equal(two.Y, whole.Y[:, [2, 0]])
    assert two.X.shape[1] == 103 + 12 and "Class2" in two.feature_names


@PUBLIC
def test_labels_of_birds_lose_their_escapes_and_those_of_delicious_keep_theirs():
    birds = read(public("birds/birds-test.arff.gz")).label_names
    assert {"Swainson's Thrush", "Hammond's Flycatcher", "MacGillivray's Warbler", "Stellar's Jay"} <= set(birds)
    delicious = read(public("delicious/delicious-test.arff.gz")).label_names
    assert {r"TAG_dise\~no", r"TAG_m\'usica"} <= set(delicious)


@PUBLIC
def test_label_option_of_medical_that_filters_made_obsolete_gives_way_to_its_xml(tmp_path):
    path = public("medical/medical-train.arff")
    assert "-C 45" in path.read_text().partition("\n")[0]
    assert read(path).label_names[0] == "Class-0-593_70"
    with pytest.raises(DataError, match="nothing says which attributes are labels"):
        read(save(tmp_path, path.read_text(), "medical.arff"))


@PUBLIC
@pytest.mark.slow
def test_delicious_stays_sparse_in_memory():
    tracemalloc.start()
    data = read(public("delicious/delicious.arff.gz"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert data.X.nnz < 0.05 * 16105 * 500
    assert peak < 0.6 * 16105 * (500 + 983) * 8


@PUBLIC
@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "seconds"), [("delicious/delicious.arff.gz", 3.0), ("scene/scene-train.arff.gz", 1.5)]
)
def test_reading_a_large_set_takes_few_seconds(path, seconds):
    times = []
    for _ in range(2):
        start = time.process_time()
        read(public(path))
        times.append(time.process_time() - start)
    assert min(times) < seconds


def test_dense_rows_give_numbers_codes_missing_values_and_labels(tmp_path):
    data = read(save(tmp_path, DENSE), LABELS)
    expected = [[1.5, 0], [np.nan, 1], [-0.002, 2], [np.nan, np.nan]]
    np.testing.assert_array_equal(data.X, expected)
    assert data.Y.tolist() == [[0, 1], [1, 0], [1, 1], [0, 0]]
    assert data.feature_names == ("a", "b c") and data.name == "toy"
    assert data.categories == {"b c": ("red", "dark blue", "it's")}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_ends_and_a_byte_order_mark_make_no_difference(tmp_path, end, mark):
    data = read(save(tmp_path, mark + DENSE.replace("\n", end).encode()), LABELS)
    np.testing.assert_array_equal(data.X[:2], [[1.5, 0], [np.nan, 1]])


def test_an_omitted_entry_of_a_sparse_row_is_the_first_declared_value(tmp_path):
    text = header("n numeric", "b {0,1}", "r {1,0}", "w {red,blue}", "y {0,1}", "z {1,0}", "t {true,false}")
    data = read(save(tmp_path, text + "{}\n{0 2.5,1 1,2 0,3 blue,4 1,5 0,6 false}\n{ 2 1 , 3 ? }\n"), list("yzt"))
    assert sparse.issparse(data.X)
    np.testing.assert_array_equal(data.X.toarray(), [[0, 0, 1, 0], [2.5, 1, 0, 1], [0, 0, 1, np.nan]])
    assert data.X.nnz == 6
    assert data.Y.tolist() == [[0, 1, 1], [1, 0, 0], [0, 1, 1]]
    assert data.categories == {"w": ("red", "blue")}


def test_sparse_rows_with_quotes_are_split_at_the_right_commas(tmp_path):
    text = header("n numeric", "w {'a, b',\"c'd\",'}'}", "y {0,1}")
    data = read(save(tmp_path, text + "{1 \"c'd\", 0 4,2 1}\n{1 'a, b'}\n{1 '}'}\n"), ["y"])
    assert data.X.toarray().tolist() == [[4, 1], [0, 0], [0, 2]]


@pytest.mark.parametrize(
    "declared, cells, values, categories",
    [("10, '-3'", "10.0 '-3' ?", [10, -3, np.nan], {}), ("10,2,30", "2 30 10 ?", [1, 2, 0, np.nan], {"a": "10 2 30"})],
)
def test_a_nominal_feature_of_two_numbers_holds_them_and_three_are_codes(tmp_path, declared, cells, values, categories):
    rows = "".join(f"{cell},1\n" for cell in cells.split())
    data = read(save(tmp_path, header(f"a {{{declared}}}", "y {0,1}") + rows), ["y"])
    np.testing.assert_array_equal(data.X[:, 0], values)
    assert data.categories == {name: tuple(words.split()) for name, words in categories.items()}


@pytest.mark.parametrize(
    "declared, off, on",
    [
        *(("{0,1}", "0", "1"), ("{1,0}", "0", "1"), ("numeric", "0.0", "1"), ("string", "0", "1")),
        *(("{false,true}", "false", "true"), ("{TRUE,FALSE}", "FALSE", "TRUE"), ("{no,yes}", "no", "yes")),
    ],
)
def test_labels_may_be_written_as_numbers_or_words(tmp_path, declared, off, on):
    data = read(save(tmp_path, header("a numeric", f"y {declared}") + f"1,{off}\n2,{on}\n3,{on}\n"), ["y"])
    assert data.Y.ravel().tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("relation", "labels"),
    [
        ("'toy: -C 2'", ("p", "q")),
        ("'toy: -C 2 -split-number 10'", ("p", "q")),
        ("'toy: -V 3 -C -1'", ("s",)),
        ('"toy:-C  3"', ("p", "q", "r")),
        ("toy: -C 1", ("p",)),
        ("'toy-weka.filters.unsupervised.attribute.Reorder-R1: -C 1'", ("p",)),
    ],
)
def test_a_meka_relation_name_counts_the_labels_from_its_side(tmp_path, relation, labels):
    text = header("p {0,1}", "q {0,1}", "r {0,1}", "s {0,1}", relation=relation) + "0,1,0,1\n1,1,0,0\n"
    data = read(save(tmp_path, text))
    assert data.label_names == labels
    assert data.feature_names == tuple(name for name in "pqrs" if name not in labels)


@pytest.mark.parametrize("count", [0, 4, -4])
def test_a_meka_relation_name_that_counts_too_many_labels_is_an_error(tmp_path, count):
    with pytest.raises(DataError, match=rf"toy.arff: the relation name says -C {count}, but there are 3 attributes"):
        read(save(tmp_path, header("a {0,1}", "b {0,1}", "c {0,1}", relation=f"'t: -C {count}'") + "0,1,0\n"))


@pytest.mark.parametrize(
    ("data_name", "xml_name", "other_xml"),
    [
        ("Toy.arff", "Toy.xml", "another.xml"),
        ("Toy-train.arff", "Toy.xml", "another.xml"),
        ("toy-TEST-sparse.arff", "Toy.xml", "another.xml"),
        ("Toy-train-sparse.arff.gz", "Toy.xml", "another.xml"),
        ("toy_test.arff", "TOY.XML", "another.xml"),
        ("toy-train.arff", "toy-train.xml", "toy.xml"),
    ],
)
def test_the_xml_of_the_own_stem_or_else_of_the_set_is_found_beside_the_file(tmp_path, data_name, xml_name, other_xml):
    save(tmp_path, xml("y2"), xml_name)
    save(tmp_path, xml("y1"), other_xml)
    content = gzip.compress(DENSE.encode()) if data_name.endswith("gz") else DENSE
    assert read(save(tmp_path, content, data_name)).label_names == ("y2",)


def test_without_labels_every_column_is_a_feature(tmp_path):
    data = read(save(tmp_path, DENSE), ())
    assert data.feature_names == ("a", "b c", "y1", "y2") and data.Y.shape == (4, 0)
    assert data.X[:, 3].tolist() == [1, 0, 1, 0]


def test_a_label_is_found_by_its_written_and_by_its_unescaped_name(tmp_path):
    text = header(r"'it\'s' {0,1}", r"m\'usica {0,1}", "a numeric") + "0,1,2\n"
    path = save(tmp_path, text)
    for names in (["it's", r"m\'usica"], [r"it\'s", "m'usica"]):
        data = read(path, names)
        assert data.label_names == tuple(names) and data.Y.tolist() == [[0, 1]]
    with pytest.raises(DataError, match="are the same column"):
        read(path, ["it's", r"it\'s"])


def test_string_attributes_become_nominal_and_identifiers_are_dropped_with_a_warning(tmp_path):
    text = header("id string", "colour string", "y {0,1}") + "r1,red,0\nr2,'dark blue',1\nr3,red,1\nr4,?,1\n"
    with pytest.warns(UserWarning, match="column 'id' has another value in every row and was dropped"):
        data = read(save(tmp_path, text), ["y"])
    np.testing.assert_array_equal(data.X, [[0], [1], [0], [np.nan]])
    assert data.feature_names == ("colour",) and data.categories == {"colour": ("red", "dark blue")}


TWO = header("a numeric", "b {red,blue}", "y {0,1}")
SPARSE = TWO + "{0 1}\n"
FAULTS = {
    "empty file": ("", "the file is empty"),
    "only blank": ("\n\n", "has no @data line"),
    "no @data": ("@relation toy\n@attribute a numeric\n", "has no @data line"),
    "no attributes": ("@relation toy\n@data\n1\n", "declares no attributes"),
    "no rows": (TWO + "\n% none\n", "has no rows"),
    "cut row": (TWO + "1,red,0\n2,re", r"line 7: has 2 values where 3 attributes are declared"),
    "long row": (TWO + "1,red,0,4\n", r"line 6: has 4 values where 3"),
    "unknown value": (TWO + "1,red,0\n\n1,green,1\n", r"line 8: 'b' must be one of red, blue; found 'green'"),
    "no number": (TWO + "1,red,0\n1.2x,red,1\n", r"line 7: 'a' must be a number; found '1.2x'"),
    "underscore": (TWO + "1_0,red,0\n", r"line 6: 'a' must be a number; found '1_0'"),
    "other digits": (TWO + "٣,red,0\n", r"line 6: 'a' must be a number"),
    "infinite": (TWO + "1,red,0\n-inf,red,0\n", r"line 7: 'a' must be finite; found '-inf'"),
    "overflow": (TWO + "1e999,red,0\n", r"line 6: 'a' must be finite"),
    "label 2": (header("a numeric", "b {x}", "y numeric") + "1,x,2\n", r"line 6: 'y' must be 0 or 1; found '2'"),
    "undeclared 1": (header("a numeric", "b {x}", "y {0}") + "1,x,1\n", r"line 6: 'y' must be 0, the only declared"),
    "missing label": (TWO + "1,red,0\n1,red,?\n", r"line 7: 'y' has no value; a label must be 0 or 1"),
    "label words": (header("a numeric", "b {x}", "y {a,b}") + "1,x,a\n", r"line 4: label 'y' must have the values 0"),
    "open quote": (TWO + "1,'red,0\n", r"line 6: the quote in \"'red,0\" is not closed"),
    "text after quote": (TWO + "1,'red'x,0\n", r"line 6: the quote in"),
    "open name": ("@relation t\n@attribute 'a numeric\n@data\n", r"line 2: expected a name and a type"),
    "open list": ("@relation t\n@attribute a {x,y\n@data\n", r"line 2: the values of attribute 'a' must stand in"),
    "open value": ("@relation t\n@attribute a {'x,y}\n@data\n", r"line 2: the values of attribute 'a'"),
    "spaces": ("@relation t\n@attribute a {dark red}\n@data\n", r"line 2: the values of attribute 'a' must not"),
    "no values": ("@relation t\n@attribute a {}\n@data\n", r"line 2: the values of attribute 'a' must not"),
    "equal values": ("@relation t\n@attribute a {x,'x'}\n@data\n", r"line 2: the values of attribute 'a' must differ"),
    "date": (
        "@relation t\n@attribute a date 'yyyy'\n@attribute y {0,1}\n@data\n",
        r"line 2: attribute 'a' is of type date",
    ),
    "relational": ("@relation t\n@attribute a relational\n@data\n", r"line 2: attribute 'a' is of type relational"),
    "no type": ("@relation t\n@attribute a\n@data\n", r"line 2: attribute 'a' must be numeric, string"),
    "unknown keyword": ("@relation t\n@inputs a\n@data\n", r"line 2: expected @relation, @attribute or @data"),
    "same name": ("@relation t\n@attribute a real\n@attribute 'a' real\n@data\n1,2\n", r"line 3: attribute 'a' was"),
    "index": (SPARSE + "{3 1}\n", r"line 7: index 3 is out of range; 3 attributes are declared"),
    "repeated index": (SPARSE + "{0 1,2 1,0 1}\n", r"line 7: index 0 is listed twice"),
    "negative index": (SPARSE + "{-1 1}\n", r"line 7: an index must be a number from 0 to 2; found '-1'"),
    "huge index": (SPARSE + "{12345678901234567890 1}\n", r"line 7: an index must be a number"),
    "cut sparse row": (SPARSE + "{0 1,2", r"line 7: a row of a sparse file must be"),
    "no value": (SPARSE + "{0 1,2}\n", r"line 7: expected an index and a value at '2'"),
    "two values": (SPARSE + "{0 1 2}\n", r"line 7: expected an index and a value"),
    "dense in sparse": (SPARSE + "1,red,0\n", r"line 7: a row of a sparse file must be"),
    "sparse in dense": (TWO + "1,red,0\n{0 1}\n", r"line 7: has 1 values where 3"),
    "sparse unknown value": (SPARSE + "{1 green}\n", r"line 7: 'b' must be one of red, blue; found 'green'"),
    "sparse open quote": (SPARSE + "{1 'red}\n", r"line 7: expected an index and a value at"),
    "latin-1": (TWO.encode() + b"1,red,0\n1,r\xe9d,0\n", r"line 7: byte 0xe9 is not UTF-8; convert"),
    "NUL": (TWO.encode() + b"1,red,0\n1\x00,red,0\n", r"line 7: a NUL byte is no text"),
}


@pytest.mark.parametrize("text, message", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_one_sentence_with_file_and_line(tmp_path, text, message):
    data_files.assert_refused(save(tmp_path, text), ["y"], message)


def test_a_label_that_the_file_lacks_is_named_with_both_files(tmp_path):
    save(tmp_path, xml("y1", "y3"), "toy.xml")
    with pytest.raises(DataError, match=r"toy.arff: has no column 'y3', which .*toy.xml names as a label"):
        read(save(tmp_path, DENSE))
    with pytest.raises(DataError, match="has no column 'y4', which the list of labels names"):
        read(tmp_path / "toy.arff", ["y4"])


def test_without_any_hint_at_labels_the_error_says_how_to_name_them(tmp_path):
    with pytest.raises(DataError, match=r"nothing says which attributes are labels .*--labels, or labels= in Python"):
        read(save(tmp_path, DENSE))


FILTER = "weka.filters.unsupervised.attribute"


@pytest.mark.parametrize(
    "filters, labels",
    [
        (f"{FILTER}.RemoveUseless-M99.0", None),
        (f"{FILTER}.AddID-Cfirst-NID", None),
        (f"{FILTER}.StringToWordVector-R1-W1000", None),
        ("weka.filters.supervised.attribute.AttributeSelection-Eweka", None),
        (f"{FILTER}.Normalize-S1.0-T0.0-{FILTER}.RemoveType-Tstring", None),
        (f"{FILTER}.Normalize-S1.0-T0.0-weka.filters.unsupervised.instance.RemovePercentage-P66", ("p", "q")),
    ],
)
def test_a_filter_that_can_move_columns_makes_the_label_option_void_and_no_other(tmp_path, filters, labels):
    path = save(tmp_path, header("p {0,1}", "q {0,1}", "a {0,1}", relation=f"'toy: -C 2-{filters}'") + "0,1,1\n")
    with nullcontext() if labels else pytest.raises(DataError, match="nothing says which attributes are labels"):
        assert read(path).label_names == labels


@pytest.mark.parametrize("form", ["{row},{row},0", "{{0 {row}, 1 {row}}}"])
def test_a_declared_value_for_each_of_20_rows_or_more_is_an_identifier(tmp_path, form):
    def text(n_rows, last):
        declared = "{" + ",".join(f"{row}" for row in range(25)) + "}"
        rows = [form.format(row=row) for row in [*range(n_rows - 1), last]]
        return header(f"id {declared}", "a numeric", "y {0,1}") + "\n".join(rows)

    assert read(save(tmp_path, text(19, 18)), ["y"]).feature_names == ("id", "a")
    assert read(save(tmp_path, text(20, 5)), ["y"]).feature_names == ("id", "a")
    with pytest.warns(UserWarning, match="column 'id' has another value in every row and was dropped"):
        data = read(save(tmp_path, text(20, 19)), ["y"])
    assert data.feature_names == ("a",) and data.categories == {}


@pytest.mark.parametrize("rows", ["1,x,R,2020,1\n2,y,O,2021,0\n", "{0 1,1 x,2 R,4 1}\n{0 2,1 y,2 O,3 2021}\n"])
def test_new_rows_have_the_features_of_the_schema_and_dates_beside_them_do_not_matter(tmp_path, rows):
    path = save(tmp_path, header("a numeric", "text string", "place string", "day date yyyy", "y {0,1}") + rows)
    schema = Schema(("place", "a"), ("y",), {"place": ("O", "R")})
    data = read(path, schema=schema)
    assert data_files.dense(data.X).tolist() == [[1, 1], [0, 2]] and data.Y.tolist() == [[1], [0]]
    assert data.schema == schema
    with pytest.raises(DataError, match="line 5: attribute 'day' is of type date"):
        read(path, ["y"])


def test_declared_values_that_the_schema_does_not_know_are_missing_with_a_warning(tmp_path):
    path = save(tmp_path, header("c {red,blue}", "y {0,1}") + "{}\n{0 blue}\n{}\n")
    with pytest.warns(UserWarning, match=r"column 'c' in 2 of 3 rows \(first: 'red'\)"):
        data = read(path, schema=Schema(("c",), ("y",), {"c": ("green", "blue")}))
    np.testing.assert_array_equal(data.X.toarray(), [[np.nan], [1], [np.nan]])


BAD_XML = {
    "broken": ('<labels>\n<label name="y1">', r"toy.xml, line 2: is not well-formed XML \(no element found\)"),
    "other root": ("<html><label name='y1'/></html>", r"toy.xml, line 1: the root must be <labels>"),
    "no name": ("<labels>\n<label/></labels>", r"toy.xml, line 2: a <label> needs the attribute name"),
    "twice": ("<labels><label name='y1'/><label name='y1'/></labels>", r"toy.xml: the label 'y1' is named twice"),
    "empty": ("", r"toy.xml: the file is empty"),
    "encoding": ("<?xml version='1.0' encoding='nonsense'?><labels/>", r"toy.xml"),
    "bomb": (
        '<!DOCTYPE x [<!ENTITY a "ha">'
        + "".join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefghi", "bcdefghij", strict=True))
        + "]><labels><label name='&j;'/></labels>",
        r"toy.xml, line 1: a document type \(<!DOCTYPE>\) is not allowed",
    ),
}


@pytest.mark.parametrize("fault", BAD_XML)
def test_a_fault_of_the_xml_is_named_with_the_xml_file(tmp_path, fault):
    text, message = BAD_XML[fault]
    save(tmp_path, text, "toy.xml")
    with pytest.raises(DataError, match=message):
        read(save(tmp_path, DENSE))


def test_nested_labels_of_a_hierarchy_count_like_others(tmp_path):
    nested = "<labels><label name='y2'><label name='y1'></label></label></labels>"
    assert read(save(tmp_path, DENSE), save(tmp_path, nested, "tree.xml")).label_names == ("y1", "y2")
