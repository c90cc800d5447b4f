"""Lines of the table, one per target: what was measured, what it is held against, and how they are shown and kept."""

import math
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields

from benchmarks.timing import interleaved, timed


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


def raced(question, case, ours, competitor, theirs, repeats, *, times=1.0, calls=1, **more) -> Line:
    """The line of two functions that take turns, so many calls in a turn; theirs counts with a multiple of its time."""
    runs = interleaved({"ours": timed(ours, calls=calls), "theirs": timed(theirs, calls=calls)}, repeats)
    return compared(question, case, runs["ours"].median, competitor, times * runs["theirs"].median, **more)


def broken(question, case, reason) -> Line:
    """A line that says loudly that nothing was measured, and fails."""
    return Line(question, case, None, "", None, None, 0.0, reached=False, note=f"NOT MEASURED: {reason}")


def attempted(question, case, function, *arguments) -> Iterator[Line]:
    """Yields the function's lines, and a broken one where it ends in an error, so that what comes after is measured."""
    try:
        yield from function(*arguments)
    except Exception as error:
        traceback.print_exc()
        yield broken(question, case, f"{type(error).__name__}: {error}")


def from_dict(values) -> Line:
    """The line of a dictionary, as JSON holds it."""
    return Line(**{field.name: values[field.name] for field in fields(Line)})


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


COLUMNS = {
    "question": lambda line: line.question,
    "case": lambda line: line.case,
    "ours": lambda line: amount(line.ours, line.unit),
    "competitor": lambda line: "; ".join(filter(None, (line.competitor, line.note))),
    "theirs": lambda line: amount(line.theirs, line.unit),
    "ratio": lambda line: "" if line.ratio is None else f"{line.ratio:.2f}",
    "target": lambda line: "" if line.target is None or line.ratio is None else f"{line.target:.2f}",
    "passes": lambda line: {True: "yes", False: "NO", None: ""}[line.passes],
    "gap": lambda line: " / ".join(f"{gap:.0e}" for gap in (line.gap, line.their_gap) if gap is not None),
    "floor": lambda line: amount(line.floor, line.unit),
    "ours / floor": lambda line: f"{line.ours / line.floor:.1f}" if line.floor and line.ours else "",
}


def cells(line) -> list[str]:
    """What the table shows of a line, in the order of COLUMNS."""
    return [show_cell(line) for show_cell in COLUMNS.values()]


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
    rows = [COLUMNS, ["---"] * len(COLUMNS), *map(cells, lines)]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows)


def show(lines, console):
    """Print the table."""
    from rich.table import Table

    table = Table(*COLUMNS)
    for line in lines:
        style = {True: "green", False: "red", None: None}[line.passes]
        table.add_row(*cells(line), style=style)
    console.print(table)
