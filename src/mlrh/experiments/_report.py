"""Reports as Markdown, as one self-contained HTML page and in the terminal. Knows nothing of where numbers come from.

All text is plain, and whatever it holds is escaped; only a whole cell can be marked as the best one, by **...**.
"""

import re
from dataclasses import dataclass, replace
from html import escape
from itertools import count
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.rule import Rule
from rich.table import Table as RichTable
from rich.text import Text

from mlrh._files import naming, replacing
from mlrh._style import LIGHT, page_css
from mlrh.experiments._plots import one_line, printable

PAGE = "report.html"


@dataclass(frozen=True)
class Table:
    """Cells under column names. A cell **...** is the best one.

    The first column, and those whose places are in `words`, are aligned left; the others right.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    words: tuple[int, ...] = ()

    @property
    def is_left(self) -> tuple[bool, ...]:
        """For each column whether it is aligned left."""
        return tuple(place in (0, *self.words) for place in range(len(self.columns)))


@dataclass(frozen=True)
class Figure:
    """A plot and what it shows. The HTML page draws it; Markdown shows it where it has a file beside the page."""

    svg: str
    caption: str
    file: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the report: paragraphs, then tables, then figures."""

    title: str
    paragraphs: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()


@dataclass(frozen=True)
class Report:
    """Title, paragraphs that sum up, sections, a footer that says what made it, and lines for the end of a run."""

    title: str
    summary: tuple[str, ...]
    sections: tuple[Section, ...]
    footer: tuple[str, ...] = ()
    closing: tuple[str, ...] = ()


def without_empty(report) -> Report:
    """The report without columns in which every cell is empty, and without tables that have nothing to say."""
    sections = [
        replace(section, tables=tuple(filter(None, map(_without_empty_columns, section.tables))))
        for section in report.sections
    ]
    return replace(report, sections=tuple(sections))


def _without_empty_columns(table):
    """The table, or None where only the names of its rows are left."""
    kept = [place for place in range(len(table.columns)) if place == 0 or any(row[place] for row in table.rows)]
    if len(kept) < 2:
        return None
    rows = tuple(tuple(row[place] for place in kept) for row in table.rows)
    words = tuple(new for new, place in enumerate(kept) if place in table.words)
    return replace(table, columns=tuple(table.columns[place] for place in kept), rows=rows, words=words)


def write_report(report, folder):
    """Paths of report.md, report.html and files of figures, all written or, after a failure, as they were."""
    folder = Path(folder)
    contents = {folder / "report.md": to_markdown(report), folder / PAGE: to_html(report)}
    contents |= {
        folder / own.file: _alone(own.svg) for section in report.sections for own in section.figures if own.file
    }
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(*contents) as files:
        for file, (path, content) in zip(files, contents.items(), strict=True):
            with naming(path):
                file.write(content.encode())
    return tuple(contents)


# Markdown


def to_markdown(report):
    """The report as GitHub-flavoured Markdown; a figure is a line that refers to the HTML page."""
    blocks = [_markdown_heading("#", report.title), *map(_markdown_paragraph, report.summary)]
    figures = 0
    for section in report.sections:
        blocks.append(_markdown_heading("##", section.title))
        blocks += map(_markdown_paragraph, section.paragraphs)
        for table in section.tables:
            blocks += _markdown_table(table)
        for figure in section.figures:
            figures += 1
            blocks += _markdown_figure(figure, figures)
    if report.footer:
        blocks += ["---", *map(_markdown_paragraph, report.footer)]
    return "\n\n".join(blocks) + "\n"


def _markdown_figure(figure, number):
    caption = _markdown_text(one_line(figure.caption))
    if figure.file:
        return [f"![Figure {number}]({figure.file})", f"Figure {number}: {caption}"]
    return [f"[Figure {number}]({PAGE}#figure-{number}), in the HTML page: {caption}"]


def part_in_markdown(paragraphs, table) -> str:
    """Paragraphs and a table, for a page that has more than the report."""
    return "\n\n".join([*map(_markdown_paragraph, paragraphs), *_markdown_table(table)]) + "\n"


def _markdown_heading(level, title):
    # Signs at the end would close the heading and vanish.
    closed = re.sub(r"(#+)$", r"\\\1", _markdown_text(one_line(title)))
    return f"{level} {closed}"


def _markdown_table(table):
    lines = [[_markdown_cell(cell) for cell in row] for row in (table.columns, *table.rows)]
    widths = [max(3, *(cell_len(line[place]) for line in lines)) for place in range(len(table.columns))]
    dashes = ["-" * (width - 1) for width in widths]
    rule = [f":{own}" if is_left else f"{own}:" for own, is_left in zip(dashes, table.is_left, strict=True)]
    padded = [_padded(line, widths, table.is_left) for line in lines]
    rows = [f"| {' | '.join(line)} |" for line in (padded[0], rule, *padded[1:])]
    title = [_markdown_heading("###", table.title)] if table.title else []
    return [*title, "\n".join(rows), *map(_markdown_paragraph, table.notes)]


def _markdown_cell(cell):
    text, best = _cell(cell)
    written = "<br>".join(_markdown_text(line).replace("|", r"\|") for line in text.split("\n"))
    return f"**{written}**" if best else written


def _padded(cells, widths, is_left):
    gaps = [" " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True)]
    return [cell + gap if left else gap + cell for cell, gap, left in zip(cells, gaps, is_left, strict=True)]


def _markdown_paragraph(text):
    written = _markdown_text(one_line(text))
    # What would start a heading, a list, a quotation or a rule at the start of a line.
    return re.sub(r"^(\d+)([.)])|^([#+\-=])", lambda m: f"{m[1]}\\{m[2]}" if m[1] else f"\\{m[3]}", written)


def _markdown_text(text):
    """Plain text with the signs of Markdown escaped; an underscore inside a word has no meaning and stays."""
    text = re.sub(r"([\\`*\[\]<>~$])", r"\\\1", text)
    text = re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)
    return re.sub(r"&(?=#?\w+;)", r"\\&", text)


def _alone(svg):
    """A plot as a file: with a background of its own, since it may be shown on a dark page."""
    head, rest = svg.split(">", 1)
    return f'{head}><rect width="100%" height="100%" fill="{LIGHT["paper"]}"/>{rest}\n'


# HTML


def to_html(report):
    """The report as one page that needs no other file, no network and no script."""
    anchors = _anchors(section.title for section in report.sections)
    title = escape(one_line(report.title))
    parts = [f"<header>\n<h1>{title}</h1>\n{_html_paragraphs(report.summary)}</header>\n"]
    parts += [_html_contents(report.sections, anchors), "<main>\n"]
    figures = 0
    for section, anchor in zip(report.sections, anchors, strict=True):
        parts.append(_html_section(section, anchor, figures))
        figures += len(section.figures)
    parts.append("</main>\n")
    if report.footer:
        parts.append(f"<footer>\n{_html_paragraphs(report.footer)}</footer>\n")
    return _HTML_PAGE.format(title=title, css=page_css(), body="".join(parts))


_HTML_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
{css}</style>
</head>
<body>
{body}</body>
</html>
"""


def _anchors(titles):
    """A fragment name for each title, made of its letters and digits, each one different."""
    anchors: list[str] = []
    for title in titles:
        name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section"
        # The page itself has names of this form.
        name = f"section-{name}" if re.fullmatch(r"figure-\d+|contents", name) else name
        numbered = (name if number == 1 else f"{name}-{number}" for number in count(1))
        anchors.append(next(anchor for anchor in numbered if anchor not in anchors))
    return anchors


def _html_contents(sections, anchors):
    if len(sections) < 2:
        return ""
    items = [
        f'<li><a href="#{anchor}">{escape(one_line(section.title))}</a></li>\n'
        for section, anchor in zip(sections, anchors, strict=True)
    ]
    return f'<nav aria-labelledby="contents">\n<h2 id="contents">Contents</h2>\n<ol>\n{"".join(items)}</ol>\n</nav>\n'


def _html_section(section, anchor, figures_before):
    """One section; figures are counted through the whole page."""
    parts = [f'<section aria-labelledby="{anchor}">\n<h2 id="{anchor}">{escape(one_line(section.title))}</h2>\n']
    parts.append(_html_paragraphs(section.paragraphs))
    parts += map(_html_table, section.tables)
    if section.figures:
        figures = [_html_figure(figure, number) for number, figure in enumerate(section.figures, figures_before + 1)]
        parts.append(f'<div class="figures">\n{"".join(figures)}</div>\n')
    return "".join([*parts, "</section>\n"])


def _html_figure(figure, number):
    caption = f"<figcaption>Figure {number}: {escape(one_line(figure.caption))}</figcaption>"
    return f'<figure id="figure-{number}">\n{figure.svg}\n{caption}\n</figure>\n'


def _html_table(table):
    title = escape(one_line(table.title))
    heading = f"<h3>{title}</h3>\n" if title else ""
    names = [escape(_lines(name)).replace("\n", "<br>") for name in table.columns]
    looks = [' class="words"' if is_left else "" for is_left in table.is_left[1:]]
    heads = [f'<th scope="col"{look}>{name}</th>' for name, look in zip(names[1:], looks, strict=True)]
    head, rows = _html_name(names[0], "col") + "".join(heads), ""
    for row in table.rows:
        name, *cells = map(_html_cell, row)
        written = [f"<td{look}>{cell}</td>" for cell, look in zip(cells, looks, strict=True)]
        rows += f"<tr>{_html_name(name, 'row')}{''.join(written)}</tr>\n"
    # A box that scrolls must be reachable by keyboard, and then it needs a name.
    label = title or "Table"
    scroll = f'<div class="scroll" role="region" tabindex="0" aria-label="{label}">'
    notes = "".join(f'<p class="note">{escape(one_line(note))}</p>\n' for note in table.notes)
    body = f"<table>\n<thead>\n<tr>{head}</tr>\n</thead>\n<tbody>\n{rows}</tbody>\n</table>"
    return f"{heading}{scroll}\n{body}\n</div>\n{notes}"


def _html_name(written, scope):
    """A cell of the first column; a width in a table's cell is advice only, in a block it holds."""
    # Long names break after a sign rather than inside a word.
    broken = re.sub(r"(?<=\w)(?=\()|(?<=[_/=,])(?=\w)", "<wbr>", written)
    return f'<th scope="{scope}"><div>{broken}</div></th>'


def _html_cell(cell):
    text, best = _cell(cell)
    written = escape(text).replace("\n", "<br>")
    return f"<strong>{written}</strong>" if best else written


def _html_paragraphs(paragraphs):
    return "".join(f"<p>{escape(one_line(text))}</p>\n" for text in paragraphs)


# Terminal


def to_terminal(report, console):
    """None; the report is printed on the rich console, without its figures."""
    console.print(Text(one_line(report.title), style="bold"))
    for text in report.summary:
        _print_paragraph(text, console)
    for section in report.sections:
        console.print()
        console.print(Rule(Text(one_line(section.title), style="bold"), align="left", characters="─"))
        for text in section.paragraphs:
            _print_paragraph(text, console)
        for table in section.tables:
            _print_table(table, console)
    if report.footer:
        console.print()
        for text in report.footer:
            console.print(Text(one_line(text), style="dim"))


def _print_paragraph(text, console):
    console.print()
    console.print(Text(one_line(text)))


def _print_table(table, console):
    """The table, in several parts that repeat the first column where it is wider than the console."""
    cells = [[Text(text, style="bold" if best else "") for text, best in map(_cell, row)] for row in table.rows]
    head = [Text(_lines(name), style="bold") for name in table.columns]
    columns = zip(head, *cells, strict=True)
    widths = [max(cell_len(line) for text in column for line in text.plain.split("\n")) for column in columns]
    console.print()
    if table.title:
        console.print(Text(one_line(table.title), style="bold"))
    parts, widest = _column_parts(widths, console.width)
    for number, places in enumerate(parts):
        part = RichTable(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
        part.add_column(head[0], justify="left", overflow="fold", max_width=widest)
        for place in places[1:]:
            part.add_column(head[place], justify="left" if table.is_left[place] else "right", overflow="fold")
        if number:
            console.print()
        for row in cells:
            part.add_row(*(row[place] for place in places))
        console.print(part)
    for note in table.notes:
        console.print(Text(one_line(note), style="dim"))


def _column_parts(widths, room):
    """Places of the columns in each part, the first and as many others as fit, and the width of the first."""
    gap = 3
    whole = sum(widths) + gap * (len(widths) - 1)
    first = widths[0] if whole <= room else max(1, min(widths[0], 2 * room // 5))
    parts: list[list[int]] = [[0]]
    used = first
    for place, width in enumerate(widths[1:], start=1):
        if len(parts[-1]) > 1 and used + gap + width > room:
            parts.append([0])
            used = first
        parts[-1].append(place)
        used += gap + width
    return parts, max(1, first)


# Cells


def _lines(text):
    """Plain text whose only white space is blanks and line breaks."""
    return printable("\n".join(" ".join(line.split()) for line in str(text).strip().splitlines()))


def _cell(cell):
    """Text of a cell, and whether it is marked as the best."""
    text = _lines(cell)
    inner = text[2:-2].strip() if text.startswith("**") and text.endswith("**") else ""
    return (inner, True) if inner else (text, False)
