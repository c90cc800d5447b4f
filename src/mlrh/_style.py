"""Colours of plots and the style sheet of pages. The rules are in `_style.css`.

The series' colours keep a contrast of 3 to the background and stay apart under simulated colour blindness, in both
schemes; the tests compute both.
"""

from importlib.resources import files

COLOURS = {  # on a light and on a dark background
    "paper": ("#ffffff", "#14171c"),
    "raised": ("#f4f6f8", "#1d2229"),
    "ink": ("#1c2128", "#e6e9ed"),
    "muted": ("#57606a", "#a3adb8"),
    "line": ("#d0d7de", "#3a424c"),
    "link": ("#0a58a8", "#79b8f3"),
    "truth": ("#7a828c", "#8b949e"),
    "series-1": ("#0072b2", "#4aa3e0"),
    "series-2": ("#d55e00", "#ef7d33"),
    "series-3": ("#009e73", "#45d6a5"),
    "series-4": ("#332288", "#f3d9fa"),
}
LIGHT, DARK = ({name: pair[scheme] for name, pair in COLOURS.items()} for scheme in (0, 1))


def colour(name):
    """The colour as a CSS variable of the page, with the light colour where a plot stands alone."""
    return f"var(--{name}, {LIGHT[name]})"


def page_css():
    """The style sheet that the report and the tagging page share, with the colours of both schemes put in."""
    rules = files("mlrh").joinpath("_style.css").read_text("utf-8")
    for scheme, colours in (("light", LIGHT), ("dark", DARK)):
        variables = " ".join(f"--{name}: {value};" for name, value in colours.items())
        rules = rules.replace(f"/* {scheme} colours */", variables)
    return rules
