"""Seconds of calls that take turns, so that a busy machine slows all of them alike. Knows nothing of what is called."""

import math
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sklearn.exceptions import ConvergenceWarning

SLOW = 20.0  # seconds of a call beyond which three turns must do
SLOW_REPEATS = 3
ENOUGH = 2.0  # seconds that short calls fill with further turns
MAX_REPEATS = 51

Call = Callable[[], tuple[float, Any]]


@dataclass(frozen=True)
class Runs:
    """Seconds of the turns of one call, in order."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def timed(function, *, calls=1) -> Call:
    """A call that returns its own seconds, the mean of so many calls of the function, and the last result."""

    def call():
        begin = time.perf_counter()
        for _ in range(calls):
            result = function()
        return (time.perf_counter() - begin) / calls, result

    return call


def interleaved(calls: Mapping[str, Call], repeats, *, warm_up=True) -> dict[str, Runs]:
    """Runs of each call by name: first, second, ..., first, second, ..., at least `repeats` turns each.

    Short calls get more turns, until ENOUGH seconds are filled; where a call takes more than SLOW seconds, SLOW_REPEATS
    turns are made. With warm_up, a turn before the first isn't counted.
    """
    if warm_up:
        _turn(calls)
    turns = [_turn(calls)]
    while len(turns) < _wanted(turns[0], repeats):
        turns.append(_turn(calls))
    return {name: Runs(tuple(turn[name] for turn in turns)) for name in calls}


def _turn(calls):
    return {name: call()[0] for name, call in calls.items()}


def _wanted(turn, repeats):
    """Number of turns, judged by the first."""
    if max(turn.values()) > SLOW:
        return min(repeats, SLOW_REPEATS)
    filling = math.ceil(ENOUGH / max(sum(turn.values()), 1e-9))
    return max(repeats, min(filling, MAX_REPEATS)) if repeats >= 5 else repeats


def turns(runs, repeats) -> str:
    """A few words on fewer turns than were asked for."""
    return f"{len(runs.seconds)} turns, since a run takes over {SLOW:.0f} s" if len(runs.seconds) < repeats else ""


def quietly(function, *arguments):
    """The function's result, without warnings of fits that end early or have more than one optimum."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", "The training rows don't determine the model", UserWarning)
        return function(*arguments)
