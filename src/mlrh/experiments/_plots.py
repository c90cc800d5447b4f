"""Plots as SVG: numbers in, the text of one <svg> element out. Knows nothing of runs, records or pages.

Lengths are units of the viewBox, which is 480 wide: text of 14 units is still 10 pixels high on a phone of 360 pixels.
No font can be measured here, so widths of text are estimated from above, after a wide font. Every mark of a number is
a <path> or <rect> of a class (`fold`, `mean`, `published`, `point`, `bar`, `end`); `translate` places a path.
"""

import math
import re
import unicodedata
from dataclasses import dataclass
from functools import partial
from html import escape
from itertools import groupby, pairwise

from mlrh._style import colour

WIDTH = 480
FONT = 14
MARGIN = 10
LINE = 18
SHAPES = ("circle", "square", "triangle", "diamond")
DASHES = ("none", "7 3", "2 3", "10 3 2 3")
SERIES = tuple(f"series-{number}" for number in range(1, len(SHAPES) + 1))


def spread_plot(rows, *, title, axis, higher_is_better=True, dots=("fold",), kind=lambda name: 0, decimals=3):
    """SVG of one line per method: a dot for each fold, a bar at their mean, the mean's number at the right.

    Parameters
    ----------
    rows : list of (name, values) or (name, values, published)
        Values of the folds; `published` is a number, drawn as a hollow diamond, or None. The best mean is printed bold.
        Numbers that are not finite have no mark; the mean is printed as it is.
    title, axis : str
        What the plot shows, and the quantity on its axis.
    dots : tuple of str, at most two
        What dots of each kind stand for, in the legend.
    kind : function of a name
        The place in `dots` of the method's kind, which gives its dots their colour and shape.
    decimals : int
        Of the means.
    """
    rows = [_spread_row(*row) for row in rows]
    number = partial(_number, decimals=decimals)
    best = _best([row.mean for row in rows], higher_is_better, number)
    gutter = min(190, max(_width(row.name) for row in rows)) + 2
    numbers = max(_width(number(row.mean), bold=True) for row in rows)
    every = [v for row in rows for v in (*row.values, row.mean, row.published) if math.isfinite(v)]
    low, high = _padded(every)
    scale = _Scale(low, high, MARGIN + gutter + 14, WIDTH - MARGIN - numbers - 14)
    published = any(math.isfinite(row.published) for row in rows)
    of_dots = [(partial(_fold, place), words) for place, words in enumerate(dots)]
    legend = [*of_dots, *[(_mean, "mean"), (_published, "published")][: 2 if published else 1]]
    parts, top = _head(title, legend)
    lines = [_wrapped(row.name, gutter, 2) for row in rows]
    bottom = top + sum(_row_height(names) for names in lines)
    parts += _vertical_grid(scale, top, bottom)
    for row, names in zip(rows, lines, strict=True):
        middle = top + _row_height(names) / 2
        parts += _spread_line(row, names, middle, scale=scale, kind=kind(row.name), number=number, best=best)
        top += _row_height(names)
    direction = "higher is better →" if higher_is_better else "← lower is better"
    parts.append(_below(scale, bottom + 40, axis, fill="ink"))
    parts.append(_below(scale, bottom + 58, direction))
    return _document(title, [row.name for row in rows], bottom + 68, parts)


def reliability_plot(series, *, title):
    """SVG of the share of correct answers against their mean confidence, with the diagonal of a calibrated model.

    Parameters
    ----------
    series : list of (name, points)
        Up to four; points are (mean confidence, share correct, count), the marks' areas grow with the counts. Points of
        count 0 are left out.
    title : str
    """
    series = [(name, [point for point in points if point[2]]) for name, points in series]
    parts, top = _head(title, [(_line_sample(place), name) for place, (name, _) in enumerate(series)])
    parts.append(_text(MARGIN, top + 4, "share correct", fill="muted"))
    left, side = 48, WIDTH - 48 - 24
    across = _Scale(0, 1, left, left + side)
    up = _Scale(0, 1, top + 22 + side, top + 22)
    parts += _vertical_grid(across, up.stop, up.start) + _horizontal_grid(up, across, _ticks(0, 1, 5))
    parts.append(_line(across(0), up(0), across(1), up(1), stroke=colour("muted"), stroke_dasharray="5 4"))
    most = max((count for _, points in series for _, _, count in points), default=1)
    for place, (name, points) in enumerate(series):
        at = [(across(confidence), up(share)) for confidence, share, _ in points]
        parts.append(_polyline(at, place))
        for (x, y), (confidence, share, count) in zip(at, points, strict=True):
            tip = f"{name}: confidence {confidence:.3f}, correct {share:.3f}, {count:g} answers"
            parts.append(_marker("point", place, x, y, radius=3 + 5 * math.sqrt(count / most), tip=tip))
    parts.append(_below(across, up.start + 42, "mean confidence"))
    return _document(title, [name for name, _ in series], up.start + 52, parts)


def size_plot(sizes, series, *, title):
    """SVG of grouped bars: the share of rows that have each number of labels.

    Parameters
    ----------
    sizes : list of int
        Numbers of labels, one group of bars each.
    series : list of (name, shares)
        One share per size; the first is the truth, drawn grey, and up to four follow.
    title : str
    """
    colours = ("truth", *SERIES)
    parts, top = _head(title, [(_swatch(colours[place]), name) for place, (name, _) in enumerate(series)])
    parts.append(_text(MARGIN, top + 4, "share of rows", fill="muted"))
    highest = max(share for _, shares in series for share in shares) or 1.0
    up = _Scale(0, highest * 1.04, top + 22 + 220, top + 22)
    across = _Scale(0, len(sizes), 56, WIDTH - MARGIN)
    ticks = [(share, f"{round(100 * share, 10):g} %") for share, _ in _ticks(0, highest * 1.04, 5)]
    parts += _horizontal_grid(up, across, ticks)
    group = across(1) - across(0)
    bar = group * 0.8 / len(series)
    for place, (name, shares) in enumerate(series):
        for number, (size, share) in enumerate(zip(sizes, shares, strict=True)):
            x, y = across(number) + group * 0.1 + place * bar, up(share)
            box = {"x": x, "y": y, "width": bar * 0.92, "height": up.start - y, "fill": colour(colours[place])}
            tip = f"{name}: {100 * share:.1f} % of rows have {size} labels"
            parts.append(_element("rect", _tip(tip), class_="bar", **box))
    parts.append(_line(across.start, up.start, across.stop, up.start, stroke=colour("muted")))
    parts += _size_labels(sizes, across, up.start + 20)
    parts.append(_below(across, up.start + 42, "number of labels"))
    return _document(title, [name for name, _ in series], up.start + 52, parts)


def descent_plot(series, *, title):
    """SVG of how far each solver's objective lies above the best value of all, by iteration, both axes logarithmic.

    The line at the bottom is the best value itself, which a logarithm can't show; iteration i lies at log(1 + i), so
    that the start is there too.

    Parameters
    ----------
    series : list of (name, values)
        Up to four; the objective at the start and after each iteration. Values that are not finite leave a gap.
    title : str
    """
    best = min((v for _, values in series for v in values if math.isfinite(v)), default=0.0)
    excess = [[_log_excess(float(value), best) for value in values] for _, values in series]
    decades = _decades([v for values in excess for v in values if math.isfinite(v)])
    parts, top = _head(title, [(_line_sample(place, dashed=True), name) for place, (name, _) in enumerate(series)])
    parts.append(_text(MARGIN, top + 4, "objective above the best value", fill="muted"))
    floor = top + 22 + 270
    up = _Scale(decades[0], decades[-1], floor - 28, top + 22)
    longest = max(1, *(len(values) - 1 for values in excess))
    across = _Scale(0, math.log1p(longest), 62, WIDTH - MARGIN - 14)
    parts += _descent_grid(decades, across, up, floor=floor, longest=longest)
    for place, ((name, _), values) in enumerate(zip(series, excess, strict=True)):
        at = [_descent_point(i, value, across, up, floor=floor) for i, value in enumerate(values)]
        runs = _runs(at)
        parts += [_polyline(_thinned(run), place, dashed=True) for run in runs]
        if runs:
            tip = f"{name}: {len(values) - 1} iterations, ends {_excess_words(values)}"
            parts.append(_marker("end", place, *runs[-1][-1], radius=5.5, tip=tip))
    parts.append(_below(across, floor + 42, "iteration"))
    return _document(title, [name for name, _ in series], floor + 52, parts)


def scatter_plot(points, *, title, across, up, kinds=(), kind=lambda name: 0):
    """SVG of one mark per method; those that no other method beats in both numbers, less across and more up, are named.

    A name for which there is no room is left to the mark's tooltip.

    Parameters
    ----------
    points : list of (name, x, y)
        x is positive, on a logarithmic axis.
    title, across, up : str
        What the plot shows, and the quantities on its axes.
    kinds : tuple of str, at most four
        What the marks stand for, in the legend.
    kind : function of a name
        The place in `kinds` of the method's kind, which gives its mark colour and shape.
    """
    decades = _decades([math.log10(x) for _, x, _ in points])
    low, high = _padded([y for _, _, y in points])
    parts, top = _head(title, [(_point_sample(place), words) for place, words in enumerate(kinds)])
    parts.append(_text(MARGIN, top + 4, up, fill="muted"))
    level = _Scale(low, high, top + 22 + 420, top + 22)
    along = _Scale(decades[0], decades[-1], 56, WIDTH - MARGIN - 14)
    parts += _horizontal_grid(level, along, _ticks(low, high, 5))
    for decade in decades[:: math.ceil(len(decades) / 6)]:
        parts += _upright(along(decade), level.stop, level.start, "10" + str(decade).translate(_SUPERSCRIPT))
    places = [(along(math.log10(x)), level(y)) for _, x, y in points]
    for (name, x, y), place in zip(points, places, strict=True):
        tip = f"{one_line(name)}: {x:.3g}, {_number(y)}"
        parts.append(_marker("point", kind(name), *place, radius=5.5, tip=tip))
    unbeaten = [
        (name, place)
        for (name, x, y), place in zip(points, places, strict=True)
        if not any(a <= x and b >= y and (a, b) != (x, y) for _, a, b in points)
    ]
    parts += _names_beside(unbeaten, places)
    parts.append(_below(along, level.start + 42, across))
    return _document(title, [name for name, _, _ in points], level.start + 52, parts)


# Input


@dataclass(frozen=True)
class _Row:
    name: str
    values: list
    mean: float
    published: float


def _spread_row(name, values, published=None):
    values = [float(value) for value in values]
    # Each value is divided before the sum, which could overflow.
    mean = sum(value / len(values) for value in values) if values else math.nan
    return _Row(one_line(name), values, mean, math.nan if published is None else float(published))


def _best(means, higher_is_better, number):
    """The best mean as it is printed, so that equal print is equally bold; None where there is no mean."""
    means = [mean for mean in means if not math.isnan(mean)]
    return number(max(means) if higher_is_better else min(means)) if means else None


@dataclass(frozen=True)
class _Box:
    left: float
    right: float
    top: float
    bottom: float

    def meets(self, other):
        """Whether two boxes overlap."""
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


def _names_beside(named, marks):
    """Texts for [(name, place of its mark)], each where it covers no mark and no other name, the highest first."""
    taken = [_Box(x - 6, x + 6, y - 6, y + 6) for x, y in marks]
    parts = []
    for name, (x, y) in sorted(named, key=lambda own: own[1][1]):
        name = one_line(name)
        wide = _width(name)
        # The baseline's start: at the right, at the left, above, below.
        starts = [(x + 10, y + 5), (x - 10 - wide, y + 5), (x - wide / 2, y - 11), (x - wide / 2, y + 20)]
        for left, base in starts:
            box = _Box(left, left + wide, base - FONT, base + 4)
            if left >= MARGIN and box.right <= WIDTH - MARGIN and not any(map(box.meets, taken)):
                parts.append(_text(left + wide / 2, base, name, anchor="middle"))
                taken.append(box)
                break
    return parts


# Scales and ticks


@dataclass(frozen=True)
class _Scale:
    """Positions of the values from low to high, between start and stop."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value):
        # Halves, because the difference of two large numbers can overflow.
        share = (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return self.start + min(1.0, max(0.0, share)) * (self.stop - self.start)


def _padded(values):
    """Ends of an axis a little wider than the values; of one that floats can divide, where they are nearly equal."""
    # Beyond what lets the ends differ by a float, values are drawn at the end of the axis.
    low, high = (min(max(end, -8e307), 8e307) for end in (min(values, default=0.0), max(values, default=1.0)))
    size = max(abs(low), abs(high))
    if high / 2 - low / 2 <= max(1e-9 * size, 1e-290):
        pad = 0.05 * size if size > 1e-280 else 0.05
    else:
        pad = 0.1 * (high / 2 - low / 2)
    return low - pad, high + pad


def _ticks(low, high, most):
    """Round numbers between low and high, at most `most` steps apart, with their labels."""
    raw = high / most - low / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    places = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    size = max(abs(low), abs(high))
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    digits = max(1, math.ceil(math.log10(size / step)) + 1)
    spell = (lambda v: f"{v:.{decimals}f}") if 1e-4 <= size < 1e6 else (lambda v: f"{v:.{digits}g}")
    return [(place * step, spell(place * step).replace("-", "\N{MINUS SIGN}")) for place in places]


def _ticks_with_room(scale):
    """The most ticks whose labels don't touch."""
    for most in range(6, 0, -1):
        ticks = _ticks(scale.low, scale.high, most)
        ends = [(scale(value) - _width(label) / 2, scale(value) + _width(label) / 2) for value, label in ticks]
        if all(left[1] + 10 <= right[0] for left, right in pairwise(ends)):
            return ticks
    return ticks[:1]


def _decades(logs):
    """Whole powers of ten around the logarithms."""
    low, high = math.floor(min(logs, default=0)), math.ceil(max(logs, default=1))
    return list(range(low, max(high, low + 1) + 1))


def _log_excess(value, best):
    """log10(value - best): -inf at the best value, nan where the value is not finite."""
    if not math.isfinite(value):
        return math.nan
    half = value / 2 - best / 2
    return math.log10(half) + math.log10(2) if half > 0 else -math.inf


def _excess_words(logs):
    last = next(log for log in reversed(logs) if not math.isnan(log))
    return "at the best value" if last == -math.inf else f"about 1e{math.floor(last)} above the best value"


def _descent_point(iteration, log, across, up, *, floor):
    """Place of one value, None for a gap."""
    if math.isnan(log):
        return None
    return across(math.log1p(iteration)), floor if log == -math.inf else up(log)


def _runs(points):
    """The points without the gaps, as one list for each unbroken stretch."""
    return [list(run) for is_gap, run in groupby(points, key=lambda point: point is None) if not is_gap]


def _thinned(points):
    """The points without those that lie less than half a unit from the last one kept; the last stays."""
    kept = points[:1]
    for point in points[1:-1]:
        if math.dist(point, kept[-1]) >= 0.5:
            kept.append(point)
    return kept + points[1:][-1:]


# Parts of plots


def _head(title, legend):
    """Title and legend, and where the plot below them starts."""
    parts, top = [], 20
    for line in _wrapped(one_line(title), WIDTH - 2 * MARGIN, 3, bold=True):
        parts.append(_text(MARGIN, top, line, font_weight="bold"))
        top += LINE
    x, top = MARGIN, top + 8
    for draw, name in legend:
        name = _fit(one_line(name), WIDTH - 2 * MARGIN - 34)
        wide = 34 + _width(name)
        if x > MARGIN and x + wide > WIDTH - MARGIN:
            x, top = MARGIN, top + LINE + 2
        parts += [draw(x + 13, top - 5), _text(x + 34, top, name)]
        x += wide + 16
    return parts, top + 20


def _spread_line(row, names, middle, *, scale, kind, number, best):
    """Name, marks and number of one method."""
    first = middle + 5 - (len(names) - 1) * LINE / 2
    parts = [_text(MARGIN, first + i * LINE, line) for i, line in enumerate(names)]
    marks = [_line(scale.start, middle, scale.stop, middle, stroke=colour("line"))]
    marks += [_fold(kind, scale(value), middle) for value in row.values if math.isfinite(value)]
    if math.isfinite(row.published):
        marks.append(_published(scale(row.published), middle))
    if math.isfinite(row.mean):
        marks.append(_mean(scale(row.mean), middle))
    published = f", published {number(row.published)}" if math.isfinite(row.published) else ""
    parts.append(_element("g", _tip(f"{row.name}: mean {number(row.mean)}{published}"), *marks))
    weight = {"font_weight": "bold"} if number(row.mean) == best else {}
    return [*parts, _text(WIDTH - MARGIN, middle + 5, number(row.mean), anchor="end", **weight)]


def _row_height(names):
    return 28 if len(names) == 1 else 20 + LINE * len(names) - 10


def _fold(kind, x, y):
    return _shape("fold", SHAPES[kind], x, y, radius=4.5, fill=colour(SERIES[kind]), fill_opacity=0.5)


def _mean(x, y):
    return _element("path", class_="mean", d="M0-9V9", transform=_moved(x, y), stroke=colour("ink"), stroke_width=3)


def _published(x, y):
    look = {"fill": "none", "stroke": colour("series-2"), "stroke_width": 2.2}
    return _shape("published", "diamond", x, y, radius=6, **look)


def _line_sample(place, dashed=False):
    """A drawing of one series for the legend."""

    def draw(x, y):
        line = _polyline([(x - 13, y), (x + 15, y)], place, dashed=dashed)
        return line + _marker("sample", place, x + 1, y, radius=5)

    return draw


def _point_sample(place):
    return lambda x, y: _marker("sample", place, x, y, radius=5.5)


def _swatch(name):
    return lambda x, y: _element("rect", x=x - 2, y=y - 7, width=14, height=14, fill=colour(name))


def _vertical_grid(scale, top, bottom):
    return [part for value, label in _ticks_with_room(scale) for part in _upright(scale(value), top, bottom, label)]


def _upright(x, top, bottom, label):
    """A vertical line with a label below, moved aside where it would leave the plot."""
    text = _text(min(x, WIDTH - _width(label) / 2), bottom + 20, label, anchor="middle", fill="muted")
    return [_line(x, top, x, bottom, stroke=colour("line")), text]


def _horizontal_grid(up, across, ticks):
    return [part for value, label in ticks for part in _level(up(value), across, label, stroke=colour("line"))]


def _level(y, across, label, **look):
    """A horizontal line with a label at its left."""
    text = _text(across.start - 8, y + 5, _fit(label, across.start - 8), anchor="end", fill="muted")
    return [_line(across.start, y, across.stop, y, **look), text]


def _below(scale, y, text, fill="muted"):
    """Text under the middle of the scale, moved aside where it would leave the plot."""
    text = _fit(text, WIDTH - 2 * MARGIN)
    half = _width(text) / 2
    x = min(max((scale.start + scale.stop) / 2, MARGIN + half), WIDTH - MARGIN - half)
    return _text(x, y, text, anchor="middle", fill=fill)


def _size_labels(sizes, across, y):
    """Labels under the groups of bars, as many as have room."""
    labels = [_fit(one_line(size), 60) for size in sizes]
    room = across(1) - across(0)
    every = math.ceil((max(map(_width, labels)) + 6) / room)
    return [
        _text(across(place + 0.5), y, label, anchor="middle", fill="muted")
        for place, label in enumerate(labels)
        if place % every == 0
    ]


def _descent_grid(decades, across, up, *, floor, longest):
    shown = decades[:: -math.ceil(len(decades) / 7)]
    parts = _horizontal_grid(up, across, [(decade, "10" + str(decade).translate(_SUPERSCRIPT)) for decade in shown])
    parts += _level(floor, across, "best", stroke=colour("muted"), stroke_dasharray="5 4")
    powers = [10**power for power in range(math.floor(math.log10(longest)) + 1)]
    for iteration in [0, *powers]:
        parts += _upright(across(math.log1p(iteration)), up.stop, floor, str(iteration))
    return parts


_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _polyline(points, place, dashed=False):
    line = {"fill": "none", "stroke": colour(SERIES[place]), "stroke_width": 2, "stroke_linejoin": "round"}
    dash = {"stroke_dasharray": DASHES[place]} if dashed else {}
    return _element("polyline", points=" ".join(f"{_short(x)},{_short(y)}" for x, y in points), **line, **dash)


def _marker(class_, place, x, y, *, radius, tip=None):
    """The mark of the series at this place, in its shape and colour."""
    look = {"fill": colour(SERIES[place]), "stroke": colour("paper"), "stroke_width": 1.2}
    return _shape(class_, SHAPES[place], x, y, radius=radius, tip=tip, **look)


def _shape(class_, shape, x, y, *, radius, tip=None, **look):
    r = _short(radius)
    side = _short(0.9 * radius)
    outline = {
        "circle": f"M-{r} 0a{r} {r} 0 1 0 {_short(2 * radius)} 0a{r} {r} 0 1 0 {_short(-2 * radius)} 0Z",
        "square": f"M-{side} -{side}h{_short(1.8 * radius)}v{_short(1.8 * radius)}h{_short(-1.8 * radius)}Z",
        "triangle": f"M0 {_short(-1.1 * radius)}L{r} {_short(0.8 * radius)}H-{r}Z",
        "diamond": f"M0 {_short(-1.2 * radius)}L{r} 0L0 {_short(1.2 * radius)}L-{r} 0Z",
    }
    children = [] if tip is None else [_tip(tip)]
    return _element("path", *children, class_=class_, d=outline[shape], transform=_moved(x, y), **look)


# Text and elements


def printable(text):
    """The text with every character that XML forbids or that steers a terminal or the writing direction replaced."""
    return _UNPRINTABLE.sub("\ufffd", str(text))


_UNPRINTABLE = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u200d\u2010-\u2029\u202f-\u2065\u206a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
)


def one_line(text):
    """The text on one line, without what can't be drawn."""
    return printable(" ".join(str(text).split()))


def _width(text, bold=False):
    """An upper estimate of the text's width."""
    return FONT * (1.1 if bold else 1.0) * sum(map(_em, text))


def _em(character):
    if unicodedata.combining(character):
        return 0.0
    if unicodedata.east_asian_width(character) in "WF":
        return 1.05
    if character in " .,:;|!'`()[]{}/\\-ijlftrI":
        return 0.42
    if character in "mwMW@%…—":
        return 1.0
    if character.isascii() and character.isalnum():
        return 0.8 if character.isupper() else 0.65
    return 0.84


def _fit(text, room, bold=False):
    """The text, with its middle left out where it is wider than the room."""
    text = one_line(text)
    if _width(text, bold) <= room:
        return text
    for kept in range(len(text) - 1, 0, -1):
        shorter = text[: kept - kept // 2] + "…" + text[len(text) - kept // 2 :]
        if _width(shorter, bold) <= room:
            return shorter
    return "…"


def _wrapped(text, room, most, bold=False):
    """The text on at most `most` lines, broken after a space or a sign where there is one in the line's second half."""
    if most == 1 or _width(text, bold) <= room:
        return [_fit(text, room, bold)]
    fits = next((n for n in range(len(text), 1, -1) if _width(text[:n], bold) <= room), 1)
    second_half = range(fits, max(fits // 2 - 1, 0), -1)
    breaks = (n for n in second_half if text[n - 1] in " -_/,=+" or text[n : n + 1] in (" ", "("))
    cut = next(breaks, fits)
    return [text[:cut].rstrip(), *_wrapped(text[cut:].lstrip(), room, most - 1, bold)]


def _number(value, decimals=3):
    if math.isnan(value):
        return "\N{EN DASH}"
    size = abs(value)
    text = f"{value:.{decimals}f}" if size == 0 or 10.0**-decimals <= size < 1e4 else f"{value:.3g}"
    return text.replace("-", "\N{MINUS SIGN}")


def _document(title, names, height, parts):
    title = one_line(title)
    label = f"{title}: {', '.join(map(one_line, names))}"
    head = {"role": "img", "aria_label": label, "viewBox": f"0 0 {WIDTH} {_short(height)}"}
    font = {"font_family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "font_size": FONT}
    look = {"xmlns": "http://www.w3.org/2000/svg", "fill": colour("ink")}
    return _element("svg", _tip(title), *parts, **head, **font, **look)


def _text(x, y, text, *, anchor="start", fill="ink", **look):
    return _element("text", escape(one_line(text)), x=x, y=y, text_anchor=anchor, fill=colour(fill), **look)


def _line(x1, y1, x2, y2, **look):
    return _element("line", x1=x1, y1=y1, x2=x2, y2=y2, **look)


def _tip(text):
    return _element("title", escape(one_line(text)))


def _moved(x, y):
    return f"translate({_short(x)} {_short(y)})"


def _element(tag, /, *children, **attributes):
    """One element; children are markup already, attributes are escaped here."""
    names = [key.rstrip("_").replace("_", "-") for key in attributes]
    pairs = zip(names, attributes.values(), strict=True)
    written = "".join(f' {name}="{escape(_short(value))}"' for name, value in pairs)
    return f"<{tag}{written}>{''.join(children)}</{tag}>"


def _short(value):
    """A number with at most two decimals, a text as it is."""
    if isinstance(value, str):
        return value
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text
