"""A fit in the background of the tagging page: what it says, what it moves, and how it ends."""

import sys
import threading
import time

import numpy as np
import pytest

from mlrh.spaces import CardinalitySpace, ObservedSpace
from mlrh.web._retraining import Retrained, Retraining, moved
from mlrh.web._session import Session

NAMES = ["happy", "sad", "calm"]
RNG = np.random.default_rng(0)
SCORES, NEW_SCORES = RNG.normal(size=(6, 3)), RNG.normal(size=(6, 3))


def distribution(scores):
    return CardinalitySpace(3, 1, 2).distribution(scores)


@pytest.fixture
def session():
    session = Session(distribution(SCORES), NAMES)
    session.accept(2)
    return session


def retraining_of(session, code, load=lambda: Retrained(distribution(NEW_SCORES))):
    return Retraining(session, [sys.executable, "-c", code], load, kept="confirmed.mlrh")


def ended(retraining):
    """The state once the fit has ended."""
    deadline = time.monotonic() + 60
    while retraining.state()["state"] == "running" and time.monotonic() < deadline:
        time.sleep(0.01)
    return retraining.state()


def test_what_moved_is_the_difference_of_the_two_distributions_over_undecided_rows(session):
    before, after = distribution(SCORES), distribution(NEW_SCORES)
    rows = [0, 2, 3, 4, 5]
    changes = moved(before, after, session)
    sets, new_sets = before.mode()[rows], after.mode()[rows]
    assert (changes["n_open"], changes["n_sets"]) == (5, int((sets != new_sets).any(axis=1).sum()))
    for label in changes["labels"]:
        place = NAMES.index(label["name"])
        expected = before.marginals()[rows, place].sum(), after.marginals()[rows, place].sum()
        np.testing.assert_allclose((label["before"], label["after"]), expected, rtol=1e-12)
    steps = [abs(label["after"] - label["before"]) for label in changes["labels"]]
    assert steps == sorted(steps, reverse=True)
    for one in changes["rows"]:
        assert one["row"] != 2
        assert one["after"] == [NAMES[k] for k in np.flatnonzero(after.mode()[one["row"] - 1])]
        assert one["before"] != one["after"]
    assert len(changes["rows"]) == changes["n_sets"] > 0


def test_where_every_row_is_decided_nothing_moves(session):
    for row in range(1, 7):
        session.accept(row)
    changes = moved(distribution(SCORES), distribution(NEW_SCORES), session)
    assert (changes["n_open"], changes["n_sets"], changes["rows"]) == (0, 0, [])


def test_after_a_fit_the_session_answers_by_the_new_model_and_keeps_decisions(session):
    known = session.known()
    retraining = retraining_of(session, "")
    assert retraining.state() == {"state": "none"}
    assert retraining.start()["state"] == "running"
    state = ended(retraining)
    assert state["state"] == "done", state
    assert state["sentence"].startswith("Retrained with 1 decided row: ") and "confirmed.mlrh." in state["sentence"]
    np.testing.assert_array_equal(session.known(), known)
    marginals = [label["marginal"] for label in session.row(1)["labels"]]
    np.testing.assert_array_equal(marginals, distribution(NEW_SCORES).marginals()[0])
    start = session.overview()["start"]["entropy"]
    entropies = distribution(NEW_SCORES).entropy()
    assert start - 1 == max((row for row in range(6) if row != 1), key=lambda row: entropies[row])


def test_after_a_fit_sets_are_refused_as_the_new_model_refuses_them(session):
    best = session.row(1)["best"]["probability"]
    assert not session.row(1)["is_refused"]
    retraining = retraining_of(session, "", lambda: Retrained(distribution(SCORES), best + 1e-6))
    retraining.start()
    assert ended(retraining)["state"] == "done"
    assert session.row(1)["is_refused"]


def test_a_fit_that_fails_is_told_by_its_last_line_and_changes_nothing(session):
    retraining = retraining_of(session, "import sys; sys.exit('note\\nError: There is too little to learn from.')")
    retraining.start()
    assert ended(retraining)["error"] == "The fit failed: There is too little to learn from."
    np.testing.assert_array_equal(
        [label["marginal"] for label in session.row(1)["labels"]], distribution(SCORES).marginals()[0]
    )
    assert retraining.start()["state"] == "running"  # another try
    ended(retraining)


def test_a_model_that_does_not_know_what_was_decided_is_not_used(session):
    session.decide(2, "happy", None)
    never = ObservedSpace(np.array([[0, 0, 1]])) if session.known()[1, 2] == 0 else ObservedSpace(np.array([[0, 0, 0]]))
    retraining = retraining_of(session, "", lambda: Retrained(never.distribution(NEW_SCORES)))
    retraining.start()
    assert "The retrained model can't be used: What is known of row 2 can't be" in ended(retraining)["error"]
    np.testing.assert_array_equal(
        [label["marginal"] for label in session.row(1)["labels"]], distribution(SCORES).marginals()[0]
    )


def test_a_change_that_the_new_model_can_not_take_back_is_told_by_name_and_those_before_still_can_be():
    session = Session(distribution(SCORES), NAMES)
    session.decide(3, "calm", 1)
    session.decide(2, "happy", 1)
    session.decide(2, "happy", 0)
    never_happy = ObservedSpace(np.array([[0, 1, 0], [0, 0, 1]]))
    session.retrained(never_happy.distribution(NEW_SCORES), 0.0)
    with pytest.raises(ValueError, match=r"^Row 2 can't become what it was: no label set .* holds happy; undo again"):
        session.undo()
    assert session.row(2)["labels"][0]["known"] == 0
    assert session.undo()["row"] == 2 and session.undo()["row"] == 3 and not session.decided().any()


def test_one_fit_runs_at_a_time_the_page_answers_meanwhile_and_the_end_of_the_page_ends_it(session):
    retraining = retraining_of(session, "import time; time.sleep(600)")
    retraining.start()
    with pytest.raises(ValueError, match="A fit is running already; wait until it has ended"):
        retraining.start()
    assert session.accept(3)["n_touched"] == 2
    assert retraining.state()["state"] == "running"
    ender = threading.Thread(target=retraining.close)
    ender.start()
    ender.join(60)
    assert not ender.is_alive() and ended(retraining)["state"] == "failed"


def test_nothing_decided_is_nothing_to_retrain_with():
    with pytest.raises(ValueError, match="No row has a decision yet"):
        retraining_of(Session(distribution(SCORES), NAMES), "").start()
