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


@dataclass(frozen=True)
class Ranked:
    """Methods by one measure, the best first, and the first one against each other.

    figures are what they are ordered by, written, and `of_first` the words before that of the first. A mean gain is
    multiplied by `factor` and written with `decimals`. `too_few` says, if anything, why p can't tell chance; `beside`
    has a sentence more on the first and another method, by its name.
    """

    title: str
    methods: Sequence[str]
    figures: Sequence[str]
    n_first: int  # so many methods are level
    of_first: str
    duels: Sequence[Duel]
    factor: float
    decimals: int
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
    winners = "; ".join(f"{methods} in {enumerated(titles)}" for methods, titles in firsts.items())
    # That there are too few is said once.
    repeats = bool(ranked[0].too_few)
    details = [_ahead(found, always_a_rival, not (repeats and place)) for place, found in enumerate(ranked)]
    yield f"First {over}: {winners}. {details[0]}"
    yield from details[1:]


def enumerated(words: Sequence[str]) -> str:
    """Words with commas and a last "and"."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _ahead(ranked, always_a_rival, says_too_few):
    """The first method and its rival."""
    title, first = ranked.title, ranked.methods[0]
    of_first = f"{ranked.of_first} {ranked.figures[0]} among {counted(len(ranked.methods), 'method')}"
    words = f"{title[0].upper()}{title[1:]}: {first} has {of_first}"
    is_ours = first.startswith(OURS)
    rivals = [duel for duel in ranked.duels if duel.other.startswith(OURS) != is_ours]
    side = "best method of others" if is_ours else "best of mlrh"
    if not rivals and always_a_rival:
        rivals, side = list(ranked.duels), "second"
    if not rivals:
        return f"{words}."
    rival = rivals[0]
    words += f"; {_of_rival(ranked, rival, side)}: "
    if rival.ties and not (rival.wins or rival.losses):
        return f"{words}the two tie on all {rival.ties}."
    words += f"it loses on {rival.wins}, ties on {rival.ties} and wins on {rival.losses}"
    chance = "" if ranked.too_few and not says_too_few else _chance(ranked, rival.p)
    return " ".join(filter(None, [f"{words}.", chance, ranked.beside.get(rival.other, "")]))


def _of_rival(ranked, rival, side):
    """Who the rival is, and how far behind, ahead or level with the first."""
    place, gap = ranked.methods.index(rival.other), _behind(ranked, rival.gain)
    if place >= ranked.n_first:
        return f"the {side} is {rival.other} with {ranked.figures[place]}, {gap}"
    is_even = fixed(abs(ranked.factor * rival.gain), ranked.decimals) == fixed(0.0, ranked.decimals)
    return f"level with it is the {side}, {rival.other}{'' if is_even else f', {gap}'}"


def _behind(ranked, gain):
    if np.isnan(gain):
        return "with no set that both have finished in time"
    unit = " points" if ranked.factor == 100 else ""
    written = fixed(abs(ranked.factor * gain), ranked.decimals)
    return f"{written}{unit} {'behind' if gain >= 0 else 'ahead'} on average"


def _chance(ranked, p):
    if ranked.too_few:
        return f"Whether that is chance can't be told from so few {ranked.too_few}."
    written = p_value(p)
    sign = "" if written.startswith("<") else "= "
    return f"That {'is more than' if p < LEVEL else 'may be'} chance (p {sign}{written})."
