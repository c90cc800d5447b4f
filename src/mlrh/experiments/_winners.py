"""Who wins a comparison, by how much, and whether that is more than chance, in words.

Used for methods over data sets (Wilcoxon's test) and over the folds of one (the corrected t-test); both with Holm's
correction for the number of methods.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from mlrh._words import counted, fixed, p_value

OURS = "MLRH"  # how the names of mlrh's own methods begin
LEVEL = 0.05  # of the tests


class Duel(NamedTuple):
    """The first method against another one: on how many it is better, level and worse; its mean gain; corrected p."""

    other: str
    wins: int
    ties: int
    losses: int
    gain: float
    p: float

    @property
    def is_sure(self):
        """Whether the first method is ahead by more than chance."""
        return self.p < LEVEL and self.wins > self.losses


@dataclass(frozen=True)
class Ranked:
    """Methods by one measure, the best first, and the first one against each other.

    figures, written, are what the methods are ordered by, and `of_two` the words before those of two. A mean gain is
    multiplied by `factor` and written with `decimals`. `unit` is what a duel counts ("set", "fold"), and `test` names
    the test that p is of. `too_few` is a sentence, if any, that p can't tell chance; `beside` has a sentence more on
    the first and another method, by its name.
    """

    title: str
    methods: Sequence[str]
    figures: Sequence[str]
    n_first: int  # so many methods are level
    of_two: str
    duels: Sequence[Duel]
    factor: float
    decimals: int
    unit: str
    test: str
    too_few: str = ""
    beside: Mapping[str, str] = field(default_factory=dict)


def holm(p_values) -> np.ndarray:
    """p values after Holm's correction: the smallest times n, the next times n - 1, and so on, never falling."""
    p_values = np.asarray(p_values, dtype=np.float64)
    order, n = np.argsort(p_values), len(p_values)
    corrected = np.empty(n)
    corrected[order] = np.maximum.accumulate(p_values[order] * (n - np.arange(n)))
    return np.minimum(corrected, 1.0)


def who_wins(ranked: Sequence[Ranked], over: str, *, always_a_rival: bool) -> Iterator[str]:
    """The first methods and how far they are ahead by the first measure; then a paragraph for each other measure.

    The rival is the best method of the other side, mlrh's own or others'. Where there is no other side it is the
    second, if there must always be one.
    """
    firsts: dict[str, list[str]] = {}
    for found in ranked:
        firsts.setdefault(enumerated(found.methods[: found.n_first]), []).append(found.title)
    n_methods = len(ranked[0].methods)
    among = f"first of {counted(n_methods, 'method')} {over}"
    winners = "; ".join(f"{methods} in {enumerated(titles)}" for methods, titles in firsts.items())
    if len(firsts) == 1 and all(found.n_first == 1 for found in ranked):
        winners = f"{ranked[0].methods[0]} is {among}, in {enumerated([found.title for found in ranked])}."
    else:
        winners = f"{among[0].upper()}{among[1:]}: {winners}."
    details: list[str] = []
    for found in ranked:
        is_told = any(found.too_few in detail for detail in details)
        details.append(_ahead(found, n_methods, always_a_rival, not is_told))
    yield " ".join(filter(None, [winners, details[0]]))
    yield from filter(None, details[1:])


def enumerated(words: Sequence[str]) -> str:
    """Words with commas and a last "and"."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _ahead(ranked, n_methods, always_a_rival, says_too_few):
    """Sentences on the first method and its rival: how often it is better, by how much, and whether by chance."""
    first, is_ours = ranked.methods[0], ranked.methods[0].startswith(OURS)
    rivals = [duel for duel in ranked.duels if duel.other.startswith(OURS) != is_ours]
    side = "the best method of others" if is_ours else "the best of mlrh"
    if not rivals and always_a_rival:
        rivals, side = list(ranked.duels), "the second"
    if not rivals:
        return ""
    rival = rivals[0]
    figures = f"{ranked.of_two} {ranked.figures[0]} and {ranked.figures[ranked.methods.index(rival.other)]}"
    if len(ranked.methods) != n_methods:
        figures += f" among the {len(ranked.methods)} methods that have it"
    score = _score(ranked, rival, f"{rival.other}, {side},")
    words = f"In {ranked.title} {first} {score}{_how_far(ranked, rival)} ({figures})."
    is_level = not rival.wins and not rival.losses
    chance = "" if is_level else _chance(ranked, rival, says_too_few)
    return " ".join(filter(None, [words, chance, "" if is_level else ranked.beside.get(rival.other, "")]))


def _score(ranked, rival, other):
    """On how many sets or folds the first beats the other, is level and loses, in words that follow its name."""
    counts = {"beats": rival.wins, "is level": rival.ties, "loses": rival.losses}
    n = sum(counts.values())
    (verb, own), *rest = [(verb, own) for verb, own in counts.items() if own]
    whom = {"beats": other, "is level": f"with {other}", "loses": f"to {other}"}[verb]
    of_all = f"{own} of {n} {ranked.unit}s" if own < n else f"all {n} {ranked.unit}s" if n > 1 else f"one {ranked.unit}"
    return enumerated([f"{verb} {whom} on {of_all}", *(f"{verb} on {own}" for verb, own in rest)])


def _how_far(ranked, rival):
    """The mean gain beside the rival, in words."""
    if np.isnan(rival.gain):
        return f"; they finished no {ranked.unit} both in time"
    if not rival.wins and not rival.losses:
        return ""
    written = fixed(abs(ranked.factor * rival.gain), ranked.decimals)
    if written == fixed(0.0, ranked.decimals):
        return "; on average the two are level"
    unit = " points" if ranked.factor == 100 else ""
    return f"; on average it is {written}{unit} {'better' if rival.gain > 0 else 'worse'}"


def _chance(ranked, rival, says_too_few):
    if ranked.too_few:
        return ranked.too_few if says_too_few else ""
    verdict, written = "is more than" if rival.p < LEVEL else "may be", p_value(rival.p)
    sign = "" if written.startswith("<") else "= "
    words = f"That {verdict} chance ({ranked.test}, p {sign}{written} with Holm's correction)."
    if len(ranked.duels) == 1:
        return words
    n_sure = sum(duel.is_sure for duel in ranked.duels)
    return f"{words} It is ahead of {n_sure or 'none'} of the {len(ranked.duels)} others by more than chance."
