"""Plots put every number where it belongs: coordinates are read back from the SVG and compared with the numbers."""

import math
import re
from itertools import combinations, pairwise, product
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mlrh._style import DARK, LIGHT
from mlrh.experiments._plots import descent_plot, printable, reliability_plot, scatter_plot, size_plot, spread_plot

SVG = "{http://www.w3.org/2000/svg}"
NASTY = "<b>&\"'`|\x00\x1b[31m\ud800 ]]> name"
NUMBERS = st.floats(allow_nan=True, allow_infinity=True)
SHARES = st.floats(0, 1)
# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
COLOUR_BLINDNESS = {
    "none": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


def spread(rows, **options):
    return spread_plot(rows, **({"title": "Exact match", "axis": "share"} | options))


def marks(svg, class_):
    """Places of the marks of a class, in the order they are drawn, without those of the legend."""
    found = [e.get("transform") for e in ElementTree.fromstring(svg).iter(f"{SVG}path") if e.get("class") == class_]
    places = [tuple(map(float, re.fullmatch(r"translate\((\S+) (\S+)\)", place).groups())) for place in found]
    return places[1:] if class_ in ("fold", "mean", "published") else places


def texts(svg):
    return ["".join(element.itertext()) for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def bars(svg):
    rects = [e for e in ElementTree.fromstring(svg).iter(f"{SVG}rect") if e.get("class") == "bar"]
    return [{key: float(rect.get(key)) for key in ("x", "y", "width", "height")} for rect in rects]


def assert_drawn_inside(svg):
    root = ElementTree.fromstring(svg)
    _, _, width, height = map(float, root.get("viewBox").split())
    points = [place for c in ("fold", "mean", "published", "point", "end", "sample") for place in marks(svg, c)]
    for line in root.iter(f"{SVG}polyline"):
        points += [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]
    points += [(float(e.get("x")), float(e.get("y"))) for e in root.iter(f"{SVG}text")]
    for box in bars(svg):
        points += [(box["x"], box["y"]), (box["x"] + box["width"], box["y"] + box["height"])]
    assert all(0 <= x <= width and 0 <= y <= height for x, y in points)


def line_points(svg, place):
    """Points of the series' line; the legend draws one line per series first."""
    lines = list(ElementTree.fromstring(svg).iter(f"{SVG}polyline"))
    return [tuple(map(float, pair.split(","))) for pair in lines[place].get("points").split()]


def proportional(positions, values):
    """Whether positions are a linear function of the values, to the rounding of the coordinates."""
    slope, intercept = np.polyfit(values, positions, 1)
    return np.allclose(np.polyval([slope, intercept], values), positions, atol=0.02), slope


def test_folds_means_and_published_values_lie_on_one_linear_axis():
    svg = spread([("a", [0.1, 0.5, 0.3]), ("b", [0.25, 0.75], 0.9)])
    values = [0.1, 0.5, 0.3, 0.25, 0.75, 0.3, 0.5, 0.9]
    places = marks(svg, "fold") + marks(svg, "mean") + marks(svg, "published")
    linear, slope = proportional([x for x, _ in places], values)
    assert linear and slope > 0


def test_each_method_has_a_line_of_its_own_with_its_mean():
    svg = spread([("a", [0.125, 0.375]), ("b", [0.5]), ("c", [0.75])])
    (_, a1), (_, a2), (_, b), (_, c) = marks(svg, "fold")
    assert a1 == a2 and [a1, b, c] == [y for _, y in marks(svg, "mean")] and a1 < b < c
    assert {"0.250", "0.500", "0.750"} <= set(texts(svg))


@pytest.mark.parametrize(("higher_is_better", "best"), [(True, ["0.900", "0.900"]), (False, ["0.100"])])
def test_the_best_mean_is_bold_and_so_is_one_that_reads_the_same(higher_is_better, best):
    svg = spread([("a", [0.9]), ("b", [0.1]), ("c", [0.90001])], higher_is_better=higher_is_better)
    bold = [e.text for e in ElementTree.fromstring(svg).iter(f"{SVG}text") if e.get("font-weight") == "bold"]
    assert bold == ["Exact match", *best]


def test_the_legend_names_published_values_only_where_there_are_some():
    assert "published" in texts(spread([("a", [1, 2], 1.5)]))
    assert "published" not in texts(spread([("a", [1, 2], None), ("b", [1, 2])]))


def test_numbers_that_are_not_finite_have_no_mark_and_their_mean_is_printed():
    svg = spread([("a", [1.0, math.inf]), ("b", []), ("c", [math.nan]), ("d", [2.0, 4.0], math.nan)])
    assert len(marks(svg, "fold")) == 3 and len(marks(svg, "mean")) == 1 and not marks(svg, "published")
    assert texts(svg).count("inf") == 1 and texts(svg).count("\N{EN DASH}") == 2


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.text(), st.lists(NUMBERS, max_size=5), st.none() | NUMBERS), min_size=1, max_size=5))
@example([("largest", [1.7894736842105262e308], None)])
@example([("both ends", [-1.7976931348623157e308, 1.7976931348623157e308], 1e308)])
def test_a_spread_plot_of_any_numbers_and_names_is_xml_with_all_marks_inside(rows):
    assert_drawn_inside(spread(rows))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.tuples(SHARES, SHARES, st.integers(0, 9)), max_size=6), min_size=1, max_size=4))
def test_a_reliability_plot_of_any_shares_is_xml_with_all_marks_inside(series):
    svg = reliability_plot([(f"s{i}", points) for i, points in enumerate(series)], title="t")
    assert_drawn_inside(svg)
    assert len(marks(svg, "point")) == sum(count > 0 for points in series for _, _, count in points)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(NUMBERS, max_size=30), min_size=1, max_size=4))
def test_a_descent_plot_of_any_numbers_is_xml_with_all_marks_inside(series):
    svg = descent_plot([(f"s{i}", values) for i, values in enumerate(series)], title="t")
    assert_drawn_inside(svg)
    assert len(marks(svg, "end")) == sum(any(map(math.isfinite, values)) for values in series)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40).flatmap(lambda n: st.lists(st.lists(SHARES, min_size=n, max_size=n), min_size=1, max_size=5)))
def test_a_size_plot_of_any_shares_is_xml_with_all_bars_inside(series):
    svg = size_plot(range(len(series[0])), [(f"s{i}", shares) for i, shares in enumerate(series)], title="t")
    assert_drawn_inside(svg)
    left = sorted((bar["x"], bar["x"] + bar["width"]) for bar in bars(svg))
    assert all(end <= start + 0.02 for (_, end), (start, _) in pairwise(left))


def test_a_calibrated_point_lies_on_the_diagonal_and_an_overconfident_one_below():
    svg = reliability_plot([("m", [(0.0, 0.0, 5), (0.3, 0.3, 5), (0.8, 0.4, 5), (1.0, 1.0, 5)])], title="t")
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = marks(svg, "point")
    assert x1 - x0 == pytest.approx(0.3 * (x3 - x0), abs=0.02) and y0 - y1 == pytest.approx(0.3 * (y0 - y3), abs=0.02)
    assert x3 - x0 == pytest.approx(y0 - y3, abs=0.02)
    assert y2 > y0 - (x2 - x0)


def test_series_differ_in_shape_and_in_colour():
    points = [(0.5, 0.5, 1)]
    root = ElementTree.fromstring(reliability_plot([(name, points) for name in "abcd"], title="t"))
    looks = [(e.get("d"), e.get("fill")) for e in root.iter(f"{SVG}path") if e.get("class") == "point"]
    assert len({shape for shape, _ in looks}) == len({fill for _, fill in looks}) == 4


def test_the_area_of_a_bar_is_its_share():
    svg = size_plot([0, 1, 2], [("truth", [0.1, 0.6, 0.3]), ("model", [0.0, 0.5, 0.5])], title="t")
    heights = np.array([bar["height"] for bar in bars(svg)])
    assert np.allclose(heights / heights[1] * 0.6, [0.1, 0.6, 0.3, 0.0, 0.5, 0.5], atol=1e-3)
    assert len({round(bar["width"], 2) for bar in bars(svg)}) == 1
    assert len({round(bar["y"] + bar["height"], 1) for bar in bars(svg)}) == 1


def test_all_bars_of_a_size_stand_before_those_of_the_next():
    found = bars(size_plot([1, 2], [("truth", [0.5, 0.5]), ("model", [0.4, 0.6])], title="t"))
    truth, model = found[:2], found[2:]
    assert truth[0]["x"] < model[0]["x"] < truth[1]["x"] < model[1]["x"]


def test_a_tenfold_smaller_excess_lies_one_equal_step_lower():
    svg = descent_plot([("m", [101.0, 11.0, 2.0, 1.0])], title="t")
    (_, y0), (_, y1), (_, y2), (_, best) = line_points(svg, 1)
    assert y1 - y0 == pytest.approx(y2 - y1, abs=0.02) and y1 > y0
    assert best > y2


def test_iterations_lie_at_the_logarithm_of_one_more():
    svg = descent_plot([("m", [9.0, 8.0, 7.0, 6.0, 1.0])], title="t")
    linear, slope = proportional([x for x, _ in line_points(svg, 1)], np.log([1, 2, 3, 4, 5]))
    assert linear and slope > 0


def test_solvers_that_end_at_the_same_best_value_end_on_the_same_line():
    svg = descent_plot([("a", [5.0, 2.0, 1.0]), ("b", [4.0, 1.0]), ("c", [1.0])], title="t")
    assert len({y for _, y in marks(svg, "end")}) == 1
    assert [x for x, _ in marks(svg, "end")] == sorted((x for x, _ in marks(svg, "end")), reverse=True)


def test_a_gap_in_the_objective_is_a_gap_in_the_line():
    svg = descent_plot([("m", [9.0, 5.0, math.nan, 3.0, 1.0])], title="t")
    assert [len(line_points(svg, place)) for place in (1, 2)] == [2, 2]


def test_a_long_descent_keeps_its_ends_and_fewer_points_than_values():
    svg = descent_plot([("m", [1 + 9 / (1 + i) ** 2 for i in range(2000)])], title="t")
    points = line_points(svg, 1)
    assert 100 < len(points) < 1200
    assert points[-1] == marks(svg, "end")[0]
    assert points == sorted(points) and points[0][1] == min(y for _, y in points)


@pytest.mark.parametrize(
    "plot",
    [
        lambda name: spread_plot([(name, [1, 2], 1)], title=name, axis=name),
        lambda name: reliability_plot([(name, [(0.5, 0.5, 3)])], title=name),
        lambda name: size_plot([name], [(name, [0.5])], title=name),
        lambda name: descent_plot([(name, [2, 1])], title=name),
    ],
)
def test_names_from_outside_are_text_and_nothing_else(plot):
    root = ElementTree.fromstring(plot(NASTY))
    allowed = {"svg", "title", "g", "path", "text", "line", "polyline", "rect"}
    assert {e.tag.removeprefix(SVG) for e in root.iter()} <= allowed
    assert root.get("role") == "img" and root.get("aria-label").startswith(root.find(f"{SVG}title").text)
    assert root.find(f"{SVG}title").text == "<b>&\"'`|\ufffd\ufffd[31m\ufffd ]]> name"


def test_unprintable_characters_are_replaced_and_words_of_all_scripts_kept():
    assert printable("a\x1b[1m\u202eb\x9b\ufffe") == "a\ufffd[1m\ufffdb\ufffd\ufffd"
    assert printable("Ünïcode 漢字 עברית 😀 1 ± 2\n") == "Ünïcode 漢字 עברית 😀 1 ± 2\n"


def test_a_name_too_long_for_its_two_lines_keeps_its_beginning_and_its_end():
    first, second = [text for text in texts(spread([("start" + "q" * 200 + "end", [1.0])])) if "qq" in text]
    assert first.startswith("startq") and "…" in second and second.endswith("qend")


def linear_rgb(colour):
    channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    """The contrast of WCAG 2."""
    low, high = sorted(linear_rgb(colour) @ [0.2126, 0.7152, 0.0722] for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def cielab(rgb):
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    share = to_xyz @ rgb / [0.9505, 1.0, 1.089]
    f = np.where(share > 0.008856, np.cbrt(share), 7.787 * share + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("scheme", [LIGHT, DARK])
def test_text_and_marks_have_the_contrast_that_wcag_asks_for(scheme):
    for ground in (scheme["paper"], scheme["raised"]):
        assert all(contrast(scheme[name], ground) >= 4.5 for name in ("ink", "muted", "link"))
    marked = [value for name, value in scheme.items() if name.startswith("series") or name == "truth"]
    assert all(contrast(value, scheme["paper"]) >= 3 for value in marked)


@pytest.mark.parametrize("kind", COLOUR_BLINDNESS)
@pytest.mark.parametrize("scheme", [LIGHT, DARK])
def test_colours_of_series_stay_apart_for_colour_blind_eyes(scheme, kind):
    matrix = np.array(COLOUR_BLINDNESS[kind])
    marked = [value for name, value in scheme.items() if name.startswith("series") or name == "truth"]
    seen = [cielab(np.clip(matrix @ linear_rgb(value), 0, 1)) for value in marked]
    assert min(np.linalg.norm(one - other) for one, other in combinations(seen, 2)) > 15


def test_names_in_a_scatter_plot_cover_neither_marks_nor_each_other():
    rng = np.random.RandomState(0)
    names = [f"method number {place}" for place in range(12)]
    x, y = np.sort(10 ** rng.uniform(-1, 0, 12)), 40 + np.sort(rng.uniform(0, 2, 12))  # nobody beats anybody
    svg = scatter_plot(list(zip(names, x, y, strict=True)), title="time", across="seconds", up="exact match")
    shown = [e for e in ElementTree.fromstring(svg).iter(f"{SVG}text") if e.text in names]
    assert 4 <= len(shown) < 12  # the others have no room, and their tooltips
    assert all(f"<title>{name}: " in svg for name in names)
    half = 14 * 0.5 * len(names[-1]) / 2  # of a name, at half of the font's size for each letter
    boxes = [(float(e.get("x")), float(e.get("y")) - 5) for e in shown]
    for (a, b), (c, d) in combinations(boxes, 2):
        assert abs(a - c) > 2 * half or abs(b - d) > 12
    for (a, b), (c, d) in product(boxes, marks(svg, "point")):
        assert abs(a - c) > half or abs(b - d) > 8
    assert_drawn_inside(svg)


def test_kinds_of_methods_have_marks_and_a_legend_of_their_own():
    points, kinds = [("ours", 1.0, 2.0), ("theirs", 2.0, 1.0), ("their second", 3.0, 1.5)], ("own", "other")
    svg = scatter_plot(points, title="t", across="x", up="y", kinds=kinds, kind=lambda name: int(name != "ours"))
    assert {"own", "other"} <= set(texts(svg))
    found = re.findall(r'class="point"[^>]*?--(series-\d)', svg)
    assert found == ["series-1", "series-2", "series-2"]
    svg = spread(
        [("ours", [1.0, 2.0]), ("theirs", [1.5])], dots=kinds, kind=lambda name: int(name != "ours"), decimals=1
    )
    assert re.findall(r'class="fold"[^>]*?--(series-\d)', svg) == ["series-1", "series-2"] + 2 * ["series-1"] + [
        "series-2"
    ]
    assert "1.5" in texts(svg) and "1.500" not in texts(svg)
