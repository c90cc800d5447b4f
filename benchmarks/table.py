"""Lines of the table, one per target: what was measured, what it is held against, and how they are shown and kept."""

import math
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields

HEADS = (
    "question",
    "case",
    "ours",
    "competitor",
    "theirs",
    "ratio",
    "target",
    "passes",
    "gap",
    "floor",
    "ours / floor",
)


@dataclass(frozen=True)
class Line:
    """One target: ours and theirs in the same unit, their ratio, and the target that the ratio must not exceed.

    `gap` and `their_gap` are relative distances to the own optimum; a fit whose gap is above what is allowed has
    reached=False and doesn't pass, however fast it is. `floor` is what can't be undercut, in the same unit. ratio is
    None where nothing could be measured; the note says why. target is None for a figure that is only told.
    """

    question: str
    case: str
    ours: float | None
    competitor: str
    theirs: float | None
    ratio: float | None
    target: float | None
    unit: str = "s"
    gap: float | None = None
    their_gap: float | None = None
    floor: float | None = None
    reached: bool = True
    note: str = ""

    @property
    def passes(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        if self.target is None:
            return None
        return bool(self.reached and self.ratio is not None and self.ratio <= self.target)


def compared(question, case, ours, competitor, theirs, *, target, **more) -> Line:
    """A line whose ratio is ours / theirs."""
    more["reached"] = bool(more.get("reached", True))  # NumPy's own truth values are not for JSON
    return Line(question, case, ours, competitor, theirs, ours / theirs, target, **more)


def broken(question, case, reason) -> Line:
    """A line that says loudly that nothing was measured, and fails."""
    return Line(question, case, None, "", None, None, 0.0, reached=False, note=f"NOT MEASURED: {reason}")


def attempted(question, case, lines: Iterable[Line]) -> Iterator[Line]:
    """Yields the lines, and one that is broken where they end in an error, so that what comes after is measured."""
    try:
        yield from lines
    except Exception as error:
        traceback.print_exc()
        yield broken(question, case, f"{type(error).__name__}: {error}")


def from_dict(values) -> Line:
    """The line of a dictionary, as JSON holds it, or as a script with question, case, ours_s, ... returns it."""
    names = {"ours_s": "ours", "competitor_s": "theirs", "ours_gap": "gap", "competitor_gap": "their_gap"}
    values = {names.get(name, name): value for name, value in values.items()}
    values.setdefault("competitor", "")
    known = {field.name for field in fields(Line)}
    return Line(**{name: value for name, value in values.items() if name in known})


def to_dict(line) -> dict:
    """What JSON holds of a line."""
    return {**asdict(line), "passes": line.passes}


def geometric_mean(lines: Iterable[Line], question, *, target) -> Line | None:
    """The line for the geometric mean of a question's ratios; None if there are none; fails where one is missing."""
    own = [line for line in lines if line.question == question and line.target is not None]
    ratios = [line.ratio for line in own if line.ratio is not None and line.reached]
    if not ratios:
        return None
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    missing = len(own) - len(ratios)
    note = f"without {missing} of {len(own)} cases" if missing else ""
    case = f"geometric mean of {len(ratios)} cases"
    return Line(question, case, mean, "fastest competitor", 1.0, mean, target, "", reached=not missing, note=note)


def cells(line) -> tuple[str, ...]:
    """What the table shows of a line, in the order of HEADS."""
    gaps = " / ".join(f"{gap:.0e}" for gap in (line.gap, line.their_gap) if gap is not None)
    above = f"{line.ours / line.floor:.1f}" if line.floor and line.ours else ""
    verdict = {True: "yes", False: "NO", None: ""}[line.passes]
    return (
        line.question,
        line.case,
        amount(line.ours, line.unit),
        "; ".join(filter(None, (line.competitor, line.note))),
        amount(line.theirs, line.unit),
        "" if line.ratio is None else f"{line.ratio:.2f}",
        "" if line.target is None or line.ratio is None else f"{line.target:.2f}",
        verdict,
        gaps,
        amount(line.floor, line.unit),
        above,
    )


def amount(value, unit) -> str:
    """A figure with its unit, three digits; seconds in s, ms or us."""
    if value is None:
        return ""
    if unit != "s":
        return f"{value:.3g} {unit}".strip()
    scale, name = next(((s, n) for s, n in ((1.0, "s"), (1e3, "ms")) if abs(value) * s >= 1), (1e6, "us"))
    return f"{value * scale:.3g} {name}"


def markdown(lines) -> str:
    """The table in Markdown."""
    rows = [HEADS, ("---",) * len(HEADS), *map(cells, lines)]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows)


def show(lines, console):
    """Print the table."""
    from rich.table import Table

    table = Table(*HEADS)
    for line in lines:
        style = {True: "green", False: "red", None: None}[line.passes]
        table.add_row(*cells(line), style=style)
    console.print(table)
