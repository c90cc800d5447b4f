"""The fastest setting of a side, accurate enough or at its defaults. Knows not who competes or what is solved."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from benchmarks.optimum import ENOUGH

SHORT = 1.0  # seconds below which a run is repeated before it is judged
HOPELESS = 1.5  # times the best so far, and SHORT at least, beyond which a run that isn't accurate ends its ladder
FINALISTS = 3
CLOSE = 1.5  # times the fastest that a finalist may take


@dataclass(frozen=True)
class Ladder:
    """A solver: tolerances (`steps` of an `option`), from loose to tight, the `default` one, and `variants` of a run.

    The first variant climbs. run(step, variant) gives seconds and a result, gap(result) its relative distance to the
    solver's own optimum.
    """

    name: str
    option: str
    steps: tuple[float, ...]
    variants: tuple[str, ...]
    run: Callable[[float, str], tuple[float, Any]]
    gap: Callable[[Any], float]
    default: float | None = None


@dataclass(frozen=True)
class Setting:
    """A step of a ladder in one variant: seconds when it was tried, and the gap that it reached."""

    ladder: Ladder
    step: float
    variant: str
    seconds: float
    gap: float

    @property
    def name(self) -> str:
        return f"{self.ladder.name}, {self.ladder.option}{self.step:.2g}, {self.variant}"

    def call(self):
        """Seconds and result of another run."""
        return self.ladder.run(self.step, self.variant)


def finalists(ladders: Iterable[Ladder], *, enough=ENOUGH, limit=FINALISTS, tell=None) -> list[Setting]:
    """The fastest settings that are accurate enough, fastest first; empty if there are none.

    Each ladder is climbed until a step is accurate enough, then that step is tried in the other variants; a step that
    isn't accurate and takes far longer than the best so far ends its ladder, since tighter ones take longer still.
    """
    found: list[Setting] = []
    for ladder in ladders:
        best = min((setting.seconds for setting in found), default=float("inf"))
        reached = _climb(ladder, enough, max(HOPELESS * best, SHORT), tell)
        found += [] if reached is None else _in_variants(reached, best, tell)
    return _fastest([setting for setting in found if setting.gap <= enough], limit)


def at_defaults(ladders: Iterable[Ladder], *, limit=FINALISTS, tell=None) -> list[Setting]:
    """The fastest settings with the default tolerances, however accurate these are; fastest first."""
    found: list[Setting] = []
    for ladder in ladders:
        best = min((setting.seconds for setting in found), default=float("inf"))
        found += _in_variants(_tried(ladder, ladder.default, ladder.variants[0], tell), best, tell)
    return _fastest(found, limit)


def _in_variants(setting, best, tell):
    """The setting, and the same step in the other variants unless it is far slower than the best so far."""
    if setting.seconds > max(3 * best, SHORT):  # more cores can't make up for more
        return [setting]
    return [setting, *(_tried(setting.ladder, setting.step, own, tell) for own in setting.ladder.variants[1:])]


def _fastest(found, limit):
    """Up to `limit` settings, fastest first, without those that are far slower than the first."""
    ordered = sorted(found, key=lambda setting: setting.seconds)
    return [setting for setting in ordered[:limit] if setting.seconds <= CLOSE * ordered[0].seconds]


def _climb(ladder, enough, hopeless, tell):
    """The first step that is accurate enough, or the one half-way to it if that is so, too, and faster."""
    last = None
    for step in ladder.steps:
        setting = _tried(ladder, step, ladder.variants[0], tell)
        if setting.gap <= enough:
            return _between(last, setting, enough, tell)
        if setting.seconds > hopeless:
            return None
        last = setting
    return None


def _between(missed, reached, enough, tell):
    if missed is None:
        return reached
    middle = _tried(reached.ladder, math.sqrt(missed.step * reached.step), reached.variant, tell)
    return middle if middle.gap <= enough and middle.seconds < reached.seconds else reached


def _tried(ladder, step, variant, tell):
    """A setting with the least seconds of up to three runs."""
    seconds, result = ladder.run(step, variant)
    for _ in range(2):
        if seconds < SHORT:
            seconds = min(seconds, ladder.run(step, variant)[0])
    setting = Setting(ladder, step, variant, seconds, ladder.gap(result))
    if tell is not None:
        tell(f"  {setting.name}: {seconds:.3g} s, gap {setting.gap:.1e}")
    return setting
