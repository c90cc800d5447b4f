"""Text and elements of an SVG: how wide a text is, how it is broken, how an element is written. Knows nothing of data.

Lengths are units of the viewBox. No font can be measured here, so widths are estimated from above, after a wide font.
"""

import math
import re
import unicodedata
from html import escape

from mlrh.experiments.style import colour

WIDTH = 480
FONT = 14


def printable(text):
    """The text with every character that XML forbids or that steers a terminal or the writing direction replaced."""
    return _UNPRINTABLE.sub("\ufffd", str(text))


_UNPRINTABLE = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u200d\u2010-\u2029\u202f-\u2065\u206a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
)


def plain(text):
    """The text on one line, without what can't be drawn."""
    return printable(" ".join(str(text).split()))


def width(text, bold=False):
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


def fit(text, room, bold=False):
    """The text, with its middle left out where it is wider than the room."""
    text = plain(text)
    if width(text, bold) <= room:
        return text
    for kept in range(len(text) - 1, 0, -1):
        shorter = text[: kept - kept // 2] + "…" + text[len(text) - kept // 2 :]
        if width(shorter, bold) <= room:
            return shorter
    return "…"


def wrapped(text, room, most, bold=False):
    """The text on at most `most` lines, broken after a space or a sign where there is one in the line's second half."""
    if most == 1 or width(text, bold) <= room:
        return [fit(text, room, bold)]
    fits = next((n for n in range(len(text), 1, -1) if width(text[:n], bold) <= room), 1)
    breaks = (n for n in range(fits, fits // 2, -1) if text[n - 1] in " -_/,=+" or text[n : n + 1] in (" ", "("))
    cut = next(breaks, fits)
    return [text[:cut].rstrip(), *wrapped(text[cut:].lstrip(), room, most - 1, bold)]


def number(value):
    if math.isnan(value):
        return "\N{EN DASH}"
    size = abs(value)
    text = f"{value:.3f}" if size == 0 or 1e-3 <= size < 1e4 else f"{value:.3g}"
    return text.replace("-", "\N{MINUS SIGN}")


# SVG


def document(title, names, height, parts):
    title = plain(title)
    label = f"{title}: {', '.join(map(plain, names))}"
    head = {"role": "img", "aria_label": label, "viewBox": f"0 0 {WIDTH} {short(height)}"}
    font = {"font_family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "font_size": FONT}
    look = {"xmlns": "http://www.w3.org/2000/svg", "fill": colour("ink")}
    return element("svg", tip(title), *parts, **head, **font, **look)


def text_at(x, y, text, *, anchor="start", fill="ink", **look):
    return element("text", escape(plain(text)), x=x, y=y, text_anchor=anchor, fill=colour(fill), **look)


def line_between(x1, y1, x2, y2, **look):
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, **look)


def tip(text):
    return element("title", escape(plain(text)))


def moved(x, y):
    return f"translate({short(x)} {short(y)})"


def element(tag, /, *children, **attributes):
    """One element; children are markup already, attributes are escaped here."""
    written = "".join(f' {_attribute(key)}="{escape(short(value))}"' for key, value in attributes.items())
    return f"<{tag}{written}>{''.join(children)}</{tag}>"


def _attribute(key):
    return key.rstrip("_").replace("_", "-")


def short(value):
    """A number with at most two decimals, a text as it is."""
    if isinstance(value, str):
        return value
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text
