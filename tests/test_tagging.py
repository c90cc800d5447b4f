"""What a person decides about labels: exact answers after every decision, undo, and what is impossible."""

import json

import numpy as np
import pytest
import reference
from scipy import sparse
from scipy.special import gammaln
from sklearn.preprocessing import StandardScaler

from mlrh.data import DataError
from mlrh.spaces import CardinalitySpace, ObservedSpace
from mlrh.web._session import BRIEF, SHOWN, Features, Session

NAN = np.nan
NAMES = list("abcdef")
RNG = np.random.default_rng(0)
ROWS = RNG.normal(scale=2, size=(8, 6))
SIZE_BIAS = np.array([0.5, -1.0, 0.3, 2.0, -0.7, 1.1, 0.2])
ALL_SETS = reference.sets_of_sizes(6, 1, 4)
SETS, SET_BIAS = ALL_SETS[::2], RNG.normal(size=len(ALL_SETS[::2]))
CASES = {  # a space, its sets and their biases
    "plain": (CardinalitySpace(6, 1, 4), ALL_SETS, np.zeros(len(ALL_SETS))),
    "size_bias": (CardinalitySpace(6, 1, 4, SIZE_BIAS), ALL_SETS, SIZE_BIAS[ALL_SETS.sum(axis=1)]),
    "observed": (ObservedSpace(SETS, SET_BIAS), SETS, SET_BIAS),
}
every_space = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def session_of(space, rows=ROWS, **options):
    return Session(space.distribution(rows), NAMES, **options)


def session_of_many(n_labels, *size_bias):
    """One row of so many labels, all of score 0, in sets of any size."""
    space = CardinalitySpace(n_labels, 0, n_labels, *size_bias)
    return Session(space.distribution(np.zeros((1, n_labels))), list(map(str, range(n_labels))))


def enumerated(case, scores, known):
    """The enumeration of the sets of a case that agree with what is known."""
    _, sets, set_bias = case
    agree = ((sets == known) | np.isnan(known)).all(axis=1)
    return reference.enumerate_sets(scores, sets[agree], set_bias[agree])


def entropy_of(expected):
    probs = np.exp(expected.log_probs())
    return -float((probs * expected.log_probs()).sum())


def check_answer(answer, expected, before):
    """Every number of an answer against the enumeration given what is known and given nothing."""
    assert [label["name"] for label in answer["labels"]] == NAMES
    np.testing.assert_allclose([label["marginal"] for label in answer["labels"]], expected.marginals(), atol=1e-12)
    np.testing.assert_allclose([label["before"] for label in answer["labels"]], before.marginals(), atol=1e-12)
    best = [int(name in answer["best"]["labels"]) for name in NAMES]
    assert best in expected.best_sets().tolist()
    assert answer["best"]["probability"] == pytest.approx(np.exp(expected.log_probs().max()), abs=1e-12)
    for key, own in (("probability", expected), ("before", before)):
        pmf = own.cardinality_pmf()
        shown = {size["size"]: size[key] for size in answer["sizes"]}
        np.testing.assert_allclose([shown[size] for size in shown], pmf[list(shown)], atol=1e-12)
        assert pmf.sum() - sum(shown.values()) < 7e-3
    assert answer["entropy"] == pytest.approx(entropy_of(expected), abs=1e-12)
    assert answer["entropy_before"] == pytest.approx(entropy_of(before), abs=1e-12)
    assert answer["effective_sets"] == pytest.approx(np.exp(entropy_of(expected)), rel=1e-12)


@every_space
def test_every_number_after_every_decision_is_that_of_the_enumeration(case):
    session = session_of(case[0])
    nothing = np.full(6, NAN)
    for index, scores in enumerate(ROWS):
        truth, known = case[1][3 * index], nothing.copy()
        check_answer(session.row(index + 1), enumerated(case, scores, known), enumerated(case, scores, nothing))
        for label in np.random.default_rng(index).permutation(6):
            known[label] = truth[label]
            answer = session.decide(index + 1, NAMES[label], int(truth[label]))
            check_answer(answer, enumerated(case, scores, known), enumerated(case, scores, nothing))
            assert [entry["known"] for entry in answer["labels"]] == [None if k != k else k for k in known]
    np.testing.assert_array_equal(session.known(), case[1][3 * np.arange(8)])


@every_space
def test_opening_a_label_again_gives_the_answer_there_was(case):
    session = session_of(case[0])
    before = session.row(3)
    session.decide(3, "b", 1)
    after = session.decide(3, "b", None)
    assert {**after, "can_undo": False} == before


@every_space
def test_accepting_gives_open_labels_the_values_of_the_most_probable_set_given_the_known_ones(case):
    session = session_of(case[0])
    answer = session.decide(2, "c", 1)
    best = [int(name in answer["best"]["labels"]) for name in NAMES]
    accepted = session.accept(2)
    assert [label["known"] for label in accepted["labels"]] == best and best[2] == 1
    assert (accepted["best"]["probability"], accepted["entropy"]) == (1.0, 0.0)
    assert [label["known"] for label in session.undo()["labels"]] == [None, None, 1, None, None, None]


def test_undo_takes_changes_back_in_reverse_order_over_rows():
    session = session_of(CASES["plain"][0])
    states = [session.known()]
    # The second changes nothing, so there is nothing to take back.
    decided = [(1, "a", 1), (1, "a", 1), (5, "b", 0), "accept", "clear", (1, "a", 0)]
    for change in decided:
        getattr(session, change)(5) if isinstance(change, str) else session.decide(*change)
        if not np.array_equal(session.known(), states[-1], equal_nan=True):
            states.append(session.known())
    rows = []
    for state in reversed(states[:-1]):
        answer = session.undo()
        rows.append(answer["row"])
        np.testing.assert_array_equal(session.known(), state)
    assert rows == [1, 5, 5, 5, 1] and not answer["can_undo"]
    with pytest.raises(ValueError, match="nothing to undo"):
        session.undo()


@pytest.mark.parametrize(
    "space, known, choice, words",
    [
        (CardinalitySpace(6, 1, 4), "1111..", ("e", 1), "e can't be present: .* at most 4 labels, and 5 would be"),
        (CardinalitySpace(6, 1, 4), "00000.", ("f", 0), "f can't be absent: .* at least 1 label, and only 0 would be"),
        (CardinalitySpace(6, 1, 4), "11110.", ("e", 1), "at most 4 labels"),
        (ObservedSpace([[1, 0, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0]]), ".1....", ("a", 1), "knows holds a, b; set another"),
        (ObservedSpace([[1, 0, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0]]), ".1....", ("c", 0), "knows holds b without c; set"),
    ],
)
def test_a_choice_that_no_set_fits_is_refused_in_one_sentence_and_the_state_stays(space, known, choice, words):
    kept = []
    start = np.array([[NAN if sign == "." else float(sign) for sign in known]])
    session = session_of(space, ROWS[:1], known=start, keep=lambda *change: kept.append(change))
    before = session.row(1)
    with pytest.raises(ValueError, match=words) as refusal:
        session.decide(1, *choice)
    assert "\n" not in str(refusal.value)
    assert session.row(1) == before and kept == []


def test_what_can_not_be_kept_does_not_hold():
    def keep(row, values):
        raise DataError("no space left")

    session = session_of(CASES["plain"][0], keep=keep)
    before = session.row(1)
    for change in (lambda: session.decide(1, "a", 1), lambda: session.accept(1)):
        with pytest.raises(DataError, match="no space left"):
            change()
        assert session.row(1) == before


@pytest.mark.parametrize("n_labels, is_beyond", [(20, False), (900, False), (1100, True)])
def test_a_row_of_any_entropy_has_an_answer_that_json_can_hold(n_labels, is_beyond):
    answer = session_of_many(n_labels).decide(1, "0", 1)
    json.dumps(answer, allow_nan=False)
    assert answer["entropy"] == pytest.approx((n_labels - 1) * np.log(2))
    expected = None if is_beyond else pytest.approx(2.0 ** (n_labels - 1), rel=1e-9)
    assert answer["effective_sets"] == expected


def test_of_sizes_that_are_all_improbable_those_that_matter_are_shown():
    n, sizes = 1100, np.arange(1101)
    bias = gammaln(sizes + 1) + gammaln(n - sizes + 1) - gammaln(n + 1)  # every size is as probable as any other
    sizes = session_of_many(n, bias).row(1)["sizes"]
    np.testing.assert_allclose([size["probability"] for size in sizes], np.full(1101, 1 / 1101), rtol=1e-6)


def test_nothing_is_kept_of_a_change_whose_answer_fails():
    kept, fails = [], [False]

    def features(index):
        if fails[0]:
            raise ArithmeticError("no answer")
        return []

    session = session_of(CASES["plain"][0], features=features, keep=lambda *change: kept.append(change))
    session.decide(1, "a", 1)
    before = session.row(1)
    changes = (lambda: session.decide(1, "b", 1), lambda: session.accept(1), lambda: session.clear(1), session.undo)
    for change in changes:
        fails[0] = True
        with pytest.raises(ArithmeticError):
            change()
        fails[0] = False
        assert len(kept) == 1 and session.row(1) == before
    assert np.isnan(session.known()[1:]).all() and session.undo()["n_touched"] == 0


def test_rows_by_uncertainty_have_falling_entropies_and_lead_to_each_other():
    case = CASES["size_bias"]
    session = session_of(case[0])
    entropies = [entropy_of(enumerated(case, scores, np.full(6, NAN))) for scores in ROWS]
    expected = (np.argsort(entropies)[::-1] + 1).tolist()
    row, walked = session.overview()["start"]["entropy"], []
    while row:
        answer = session.row(row, "entropy")
        assert answer["previous"] == (walked[-1] if walked else None)
        walked.append(row)
        assert answer["position"] == len(walked)
        row = answer["next"]
    assert walked == expected


def test_the_next_row_without_decisions_comes_after_this_one_and_then_from_the_start():
    session = session_of(CASES["plain"][0])
    for row in (1, 3, 4):
        session.decide(row, "a", 1)
    assert session.overview()["start"]["file"] == 2
    assert [session.row(row)["next_untouched"] for row in (2, 4, 8)] == [5, 5, 2]
    assert session.row(1)["n_touched"] == 3
    for row in range(1, 9):
        session.accept(row)
    assert session.row(1)["next_untouched"] is None
    assert session.overview()["start"]["file"] == 1


def test_of_many_labels_those_shown_first_are_the_probable_the_known_and_the_best():
    scores = np.random.default_rng(1).normal(-4, 1, size=(1, 80))
    names = [f"label {k}" for k in range(80)]
    session = Session(CardinalitySpace(80, 1, 5).distribution(scores), names)
    order = np.argsort(-scores[0])
    rarest = names[order[-1]]
    answer = session.decide(1, rarest, 0)
    places = [order.tolist().index(label) for label in answer["brief"]]
    assert places == sorted(places) and places[-1] == 79
    assert set(order[:BRIEF]) <= set(answer["brief"])
    left_out = set(range(80)) - set(answer["brief"])
    assert left_out and all(answer["labels"][label]["marginal"] < 0.01 for label in left_out)
    assert answer["by_probability"] == order.tolist()


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda s: s.row(0), "whole number from 1 to 8; got 0"),
        (lambda s: s.row(9), "whole number from 1 to 8; got 9"),
        (lambda s: s.row(True), "got True"),
        (lambda s: s.row("1"), "got '1'"),
        (lambda s: s.row(1, "size"), "The order must be entropy or file; got 'size'"),
        (lambda s: s.row(1, ["file"]), "The order must be entropy or file"),
        (lambda s: s.decide(1, "z", 1), "one of the model's 6 labels; got 'z'"),
        (lambda s: s.decide(1, 0, 1), "one of the model's 6 labels; got 0"),
        (lambda s: s.decide(1, "a", 2), r"must be 1 \(present\), 0 \(absent\) or null \(open\); got 2"),
        (lambda s: s.decide(1, "a", True), "got True"),
        (lambda s: s.decide(1, "a", "x" * 500), r"got 'x{1,60}\.\.\."),
        (lambda s: s.decide(1, "a", 1, "none"), "The order must be"),
        (lambda s: s.undo("none"), "The order must be"),
    ],
)
def test_a_wrong_question_is_one_sentence_and_changes_nothing(call, words):
    session = session_of(CASES["plain"][0])
    with pytest.raises(ValueError, match=words) as refusal:
        call(session)
    assert "\n" not in str(refusal.value)
    assert np.isnan(session.known()).all()


def test_a_start_that_no_set_fits_names_the_row():
    known = np.full(ROWS.shape, NAN)
    known[4, :5] = 1
    with pytest.raises(ValueError, match=r"What is known of row 5 can't be: .* at most 4 labels, and 5 would be"):
        session_of(CASES["plain"][0], known=known)


# Features


def test_deviations_are_those_of_a_standard_scaler_largest_first():
    X = RNG.normal(size=(30, 15)) * np.arange(1, 16) + 100
    scaled = StandardScaler().fit_transform(X)
    names = [f"x{k}" for k in range(15)]
    shown = Features(X, names)(7)
    order = np.argsort(-np.abs(scaled[7]))[:SHOWN]
    assert [feature["name"] for feature in shown] == [names[k] for k in order]
    np.testing.assert_allclose([feature["deviation"] for feature in shown], scaled[7, order], rtol=1e-9)
    assert [float(feature["value"]) for feature in shown] == [float(f"{X[7, k]:.4g}") for k in order]


def test_sparse_rows_show_what_they_hold_as_dense_ones_do():
    X = sparse.random_array((40, 8), density=0.4, random_state=np.random.default_rng(3), format="csr")
    scaled, names = StandardScaler().fit_transform(X.toarray()), list("abcdefgh")
    for index in range(40):
        shown = {feature["name"]: feature["deviation"] for feature in Features(X, names)(index)}
        stored = np.flatnonzero(X.toarray()[index])
        assert set(shown) == {names[k] for k in stored}
        np.testing.assert_allclose([shown[names[k]] for k in stored], scaled[index, stored], rtol=1e-9)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_words_are_no_numbers_that_could_stand_out(form):
    X = form(np.array([[2.0, 1.0], [2.0, 5.0], [2.0, 3.0]]))
    shown = Features(X, ["colour", "size"], words={"colour"}, scale=([0.5, 3.0], [0.0, 1.0]))
    assert [[feature["name"] for feature in shown(row)] for row in range(3)] == [["size"]] * 3


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_missing_values_are_left_out_and_a_constant_column_has_no_deviation(form):
    X = form(np.array([[1.0, NAN, 3.0], [2.0, 5.0, 3.0], [6.0, 1.0, 3.0]]))
    shown = {feature["name"]: feature["deviation"] for feature in Features(X, ["a", "b", "c"])(0)}
    assert shown == {"a": pytest.approx(-2 / np.std([1, 2, 6])), "c": None}
    assert Features(X, ["a", "b", "c"])(1)[0]["deviation"] == pytest.approx(1.0)
