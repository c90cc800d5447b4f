"""A fit to chunks that was killed goes on where it was; what is no checkpoint of the same fit is refused."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from processes import wait_until
from samples import make_multilabel, one_sentence
from scipy import sparse

from mlrh import MLRHClassifier
from mlrh.fitting.checkpoint import KEYS, Checkpoint, DigestOfRows, _add_up_words, digest_of
from mlrh.spaces import ObservedSpace

X, Y = make_multilabel(300, 6, 4)
OPTIONS = {"tol": 1e-12, "size_bias": True}
PROBLEM = {"the rows": "300"}


class Parts:
    """Two chunks that count how often they are gone through."""

    def __init__(self, X=X, Y=Y):
        self._parts, self.n_passes = [(X[:200], Y[:200]), (X[200:], Y[200:])], 0

    def __iter__(self):
        self.n_passes += 1
        return iter(self._parts)


SCRIPT = """
import sys, time
import numpy as np
from mlrh import MLRHClassifier

X, Y = np.load(sys.argv[1] + "/X.npy"), np.load(sys.argv[1] + "/Y.npy")

def chunks():
    for rows in (slice(0, 200), slice(200, 300)):
        time.sleep(0.05)  # so that the fit takes long enough to be killed
        yield X[rows], Y[rows]

MLRHClassifier(tol=1e-12, size_bias=True).fit_chunks(chunks, checkpoint=sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="kill -9 is a signal of POSIX")
def test_a_fit_killed_by_kill_9_goes_on_and_reaches_the_same_optimum(tmp_path):
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "Y.npy", Y)
    path = tmp_path / "fit.checkpoint"
    fitted = MLRHClassifier(**OPTIONS).fit(X, Y)
    whole = Parts()
    MLRHClassifier(**OPTIONS).fit_chunks(whole)
    source = str(Path(__file__).parents[1] / "src")
    environment = {**os.environ, "PYTHONPATH": source}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path), str(path)], env=environment)
    try:
        wait_until(lambda: path.exists() and path.read_bytes().count(b'"place"') >= 6)
    finally:
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    parts = Parts()
    model = MLRHClassifier(**OPTIONS).fit_chunks(parts, checkpoint=path)
    assert parts.n_passes <= whole.n_passes - 6
    assert model.objective_ == pytest.approx(fitted.objective_, rel=1e-12)
    np.testing.assert_allclose(model.coef_, fitted.coef_, atol=1e-7)


@pytest.mark.parametrize("options", [{}, {"l1_ratio": 0.5, "C": 0.1}, {"solver": "newton-cg"}])
def test_a_finished_checkpoint_needs_one_look_at_the_rows_and_gives_the_same_bits(options, tmp_path):
    path, again = tmp_path / "fit.checkpoint", Parts()
    first = MLRHClassifier(**OPTIONS | options).fit_chunks(Parts(), checkpoint=path)
    second = MLRHClassifier(**OPTIONS | options).fit_chunks(again, checkpoint=path)
    assert again.n_passes == 1
    np.testing.assert_array_equal(second.coef_, first.coef_)
    np.testing.assert_array_equal(second.history_, first.history_)


def test_a_checkpoint_in_a_folder_that_is_not_there_is_refused_before_any_look_at_the_rows(tmp_path):
    parts = Parts()
    with pytest.raises(ValueError, match="The folder of a checkpoint must exist") as raised:
        MLRHClassifier().fit_chunks(parts, checkpoint=tmp_path / "none" / "fit.checkpoint")
    assert one_sentence(raised) and str(tmp_path / "none") in str(raised.value)
    assert parts.n_passes == 0


def test_unknown_labels_go_on_from_a_checkpoint_too(tmp_path):
    hidden = np.where(np.random.RandomState(0).uniform(size=Y.shape) < 0.1, np.nan, Y)
    path, again = tmp_path / "fit.checkpoint", Parts(Y=hidden)
    first = MLRHClassifier().fit_chunks(Parts(Y=hidden), checkpoint=path)
    second = MLRHClassifier().fit_chunks(again, checkpoint=path)
    assert again.n_passes == 1
    np.testing.assert_array_equal(second.coef_, first.coef_)


def test_more_iterations_go_on_from_a_checkpoint(tmp_path):
    path, whole, rest = tmp_path / "fit.checkpoint", Parts(), Parts()
    model = MLRHClassifier(**OPTIONS).fit_chunks(whole)
    with pytest.warns(match="stopped after 3 iterations"):
        MLRHClassifier(**OPTIONS, max_iter=3).fit_chunks(Parts(), checkpoint=path)
    resumed = MLRHClassifier(**OPTIONS).fit_chunks(rest, checkpoint=path)
    assert rest.n_passes <= whole.n_passes - 4
    np.testing.assert_array_equal(resumed.coef_, model.coef_)


@pytest.mark.parametrize("cut", [1, 5, 100, 10_000])
def test_an_answer_that_a_crash_cut_off_is_asked_again(cut, tmp_path):
    path, parts = tmp_path / "fit.checkpoint", Parts()
    first = MLRHClassifier(**OPTIONS).fit_chunks(Parts(), checkpoint=path)
    path.write_bytes(path.read_bytes()[:-cut])
    second = MLRHClassifier(**OPTIONS).fit_chunks(parts, checkpoint=path)
    assert parts.n_passes > 1
    np.testing.assert_array_equal(second.coef_, first.coef_)


def test_a_changed_byte_is_found_by_the_checksum(tmp_path):
    path, parts = tmp_path / "fit.checkpoint", Parts()
    first = MLRHClassifier(**OPTIONS).fit_chunks(Parts(), checkpoint=path)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))
    second = MLRHClassifier(**OPTIONS).fit_chunks(parts, checkpoint=path)
    assert parts.n_passes == 2
    np.testing.assert_array_equal(second.coef_, first.coef_)


other = X.copy()
other[250, 3] += 1e-9
shuffled = np.random.RandomState(0).permutation(300)


@pytest.mark.parametrize(
    ("options", "parts", "what"),
    [
        ({"C": 2.0}, (X, Y), "the parameters"),
        ({"solver": "newton-cg"}, (X, Y), "the parameters"),
        ({"label_space": "observed", "size_bias": False}, (X, Y), "the label space"),
        ({}, (other, Y), "the rows"),
        ({}, (X, Y[shuffled]), "the rows"),
        ({}, (X[shuffled], Y), "the rows"),
        ({}, (X[:, :5], Y), "the number of features"),
        ({}, (X[:-1], Y[:-1]), "the number of rows"),
    ],
)
def test_a_checkpoint_of_another_problem_is_refused(options, parts, what, tmp_path):
    path = tmp_path / "fit.checkpoint"
    MLRHClassifier(**OPTIONS).fit_chunks(Parts(), checkpoint=path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="is the checkpoint of another fit") as raised:
        MLRHClassifier(**{**OPTIONS, **options}).fit_chunks(Parts(*parts), checkpoint=path)
    assert what in str(raised.value) and one_sentence(raised)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"my thesis\n", b"mlrh-checkpoint-1\n", b"mlrh-checkpoint-1\n[1]\n", b"\x00" * 99])
def test_a_file_of_something_else_is_refused_and_kept(content, tmp_path):
    path = tmp_path / "thesis.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is no checkpoint of a fit") as raised:
        Checkpoint(path, PROBLEM)
    assert one_sentence(raised) and path.read_bytes() == content


def test_two_fits_cannot_share_a_checkpoint(tmp_path):
    path = tmp_path / "fit.checkpoint"
    with Checkpoint(path, PROBLEM):
        with pytest.raises(ValueError, match="in use by another fit") as raised:
            Checkpoint(path, PROBLEM)
        assert one_sentence(raised)
    Checkpoint(path, PROBLEM).close()


def test_answers_come_back_in_order_until_a_question_differs(tmp_path):
    path = tmp_path / "fit.checkpoint"
    answers = [(np.array(1.5), np.arange(6.0).reshape(2, 3)), (np.zeros(0),), (np.array(np.pi),)]
    with Checkpoint(path, PROBLEM) as checkpoint:
        for number, answer in enumerate(answers):
            checkpoint.answer("sum", (number,), lambda answer=answer: answer)
    asked = []
    with Checkpoint(path, PROBLEM) as checkpoint:
        for found, expected in zip(checkpoint.answer("sum", (0,), asked.append), answers[0], strict=True):
            np.testing.assert_array_equal(found, expected)
        assert asked == []
        assert checkpoint.answer("sum", (7,), lambda: (np.array(7.0),)) == (7.0,)
    with Checkpoint(path, PROBLEM) as checkpoint:
        checkpoint.answer("sum", (0,), asked.append)
        assert checkpoint.answer("sum", (7,), asked.append) == (7.0,)
        assert checkpoint.answer("sum", (1,), lambda: (np.array(1.0),)) == (1.0,)


def test_digests_differ_where_values_or_their_shapes_do():
    values = [
        (1.0,),
        (1,),
        ("1",),
        (1.0, 1.0),
        ([1.0, 1.0],),
        ([[1.0, 1.0]],),
        ([1.0], [1.0]),
        (["a"],),
        (["a", None],),
        ([np.arange(3000.0)],),
        ([np.where(np.arange(3000) == 1500, 7.0, np.arange(3000.0))],),
    ]
    assert len({digest_of(*own) for own in values}) == len(values)


def digest_of_rows(X, Y, weights):
    digest = DigestOfRows()
    digest.add(X, Y, weights)
    return digest.text()


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_digest_of_rows_differs_where_one_number_or_the_order_does(form, dtype):
    # 0 and 1 differ in the first bits only, where sums of words would lose most of the difference.
    X = np.random.RandomState(0).randint(0, 2, size=(401, 7)).astype(dtype)
    X[:, 6] = 1
    weights, sets = np.ones(401), np.tile(Y, (2, 1))[:401]
    digests = [digest_of_rows(form(X), sets, weights)]
    assert digest_of_rows(form(X.copy()), sets, weights) == digests[0]
    for row in (0, 200, 400):
        changed = X.copy()
        changed[row, 6] = 0
        digests.append(digest_of_rows(form(changed), sets, weights))
        digests.append(digest_of_rows(form(X), sets, np.where(np.arange(401) == row, 2.0, 1.0)))
        others = sets.copy()
        others[row, 1] ^= 1
        digests.append(digest_of_rows(form(X), others, weights))
    digests.append(digest_of_rows(form(X[::-1]), sets, weights))
    assert len(set(digests)) == len(digests)


def test_the_words_of_a_block_are_multiplied_and_added_up_as_by_python():
    words = np.random.RandomState(0).randint(0, 2**63, size=KEYS + 3).astype(np.uint64) * np.uint64(2)
    keys = np.random.RandomState(1).randint(0, 2**63, size=KEYS).astype(np.uint64) * np.uint64(2) + np.uint64(1)
    sums = np.empty(2, np.uint64)
    _add_up_words(words, keys, sums)
    for own, part in zip(sums, (words[:KEYS], words[KEYS:]), strict=True):
        pairs = zip(part.tolist(), keys.tolist(), strict=False)
        total = sum((word + key) % 2**32 * (((word >> 32) + (key >> 32)) % 2**32) for word, key in pairs)
        assert int(own) == total % 2**64


def test_a_checkpoint_of_a_space_with_one_other_set_among_many_is_refused(tmp_path):
    # NumPy's text of an array of over 1000 entries shows the first and the last rows only.
    path, sets = tmp_path / "fit.checkpoint", ((np.arange(600)[:, None] >> np.arange(10)) & 1).astype(np.int8)
    X = np.random.RandomState(0).normal(size=(600, 3))
    for last in (1000, 1001):
        own = np.insert(sets, 300, (last >> np.arange(10)) & 1, axis=0)
        model = MLRHClassifier(label_space=ObservedSpace(own), tol=0.1)
        if last == 1000:
            model.fit_chunks((X, sets), checkpoint=path)
    with pytest.raises(ValueError, match="which differs in the label space;"):
        model.fit_chunks((X, sets), checkpoint=path)
