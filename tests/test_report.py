"""Reports say the same in Markdown, HTML and the terminal, judged by parsers that are not ours."""

import io
import os
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console

from mlrh.experiments._plots import spread_plot
from mlrh.experiments._report import (
    Figure,
    Report,
    Section,
    Table,
    to_html,
    to_markdown,
    to_terminal,
    without_empty,
    write_report,
)

NASTY = "<script>alert(1)</script> &amp; a|b `c` *d* _e_ [f](javascript:g) \\ \\| ~~h~~ $i$ [red]j[/red]"
VOID = {"meta", "br", "wbr", "link", "img", "hr", "input"}
SIGNS = st.text(st.sampled_from("ab1 |\\`*_<>&;#[]()~$!:-\n\u202e\x1b漢é"), max_size=12)


def report(*, tables=(), paragraphs=(), figures=(), **parts):
    sections = (Section("Data", paragraphs, tables, figures),)
    return Report(**({"title": "Results", "summary": (), "sections": sections, "footer": ()} | parts))


def full_report():
    svg = spread_plot([("a<b", [0.1, 0.2])], title="Folds & means", axis="share")
    table = Table("Scores", ("method", "exact match"), (("joint", "**0.5 ± 0.1**"), ("a|b <i>", "0.4")), ("n = 10",))
    sections = (
        Section("Data <1>", ("One <b> word.",), (table,), (Figure(svg, "Once."),)),
        Section("Data <1>", (), (), (Figure(svg, "Again."), Figure(svg, "And again."))),
    )
    return Report("Results & more", ("In short.",), sections, ("Command: mlrh report", "2020-01-01"))


class Page(HTMLParser):
    """The tags of a page with their attributes, its cells, and whether every tag is closed where it should be."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.cells, self.wrong, self.text = [], [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append([])
        if tag == "br" and self.cells:
            self.cells[-1].append("\n")

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        self.text.append(data)
        if {"td", "th"} & set(self.open):
            self.cells[-1].append(data)


def markdown_cells(text):
    """Text of all cells of the tables, as the CommonMark parser of another project reads them."""
    tokens = MarkdownIt("commonmark").enable("table").enable("strikethrough").parse(text)
    cells = [tokens[i + 1].children for i, token in enumerate(tokens) if token.type in ("th_open", "td_open")]
    return ["".join("\n" if token.content == "<br>" else token.content for token in cell) for cell in cells]


def tidy(text):
    """What a cell shows: white space is one blank or one line break, steering characters are replaced."""
    lines = [" ".join(line.split()) for line in text.strip().splitlines()]
    return "\n".join(lines).replace("\u202e", "\ufffd").replace("\x1b", "\ufffd")


def terminal(report, width=100, colour=False):
    file = io.StringIO()
    to_terminal(
        report, Console(file=file, width=width, force_terminal=colour, color_system="standard" if colour else None)
    )
    return file.getvalue()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(SIGNS, SIGNS), min_size=1, max_size=4))
def test_markdown_and_html_cells_read_back_as_they_were_given(rows):
    rows = [row for row in rows if not any(re.fullmatch(r"\*\*.*\*\*", tidy(cell), re.DOTALL) for cell in row)]
    given = report(tables=(Table("", ("name", "value"), tuple(rows)),))
    cells = ["name", "value", *(tidy(cell) for row in rows for cell in row)]
    assert markdown_cells(to_markdown(given)) == cells
    assert ["".join(cell) for cell in Page(to_html(given)).cells] == cells


def test_markdown_columns_are_padded_to_the_same_width_and_aligned():
    table = Table("", ("m", "exact match"), (("漢字", "1"), ("abcdef", "**0.25**"), ("", "")))
    lines = [line for line in to_markdown(report(tables=(table,))).splitlines() if line.startswith("|")]
    assert lines == [
        "| m      | exact match |",
        "| :----- | ----------: |",
        "| 漢字   |           1 |",
        "| abcdef |    **0.25** |",
        "|        |             |",
    ]


def test_a_figure_with_a_file_is_written_beside_the_page_and_shown_in_markdown(tmp_path):
    svg = spread_plot([("a", [0.1, 0.2])], title="Folds", axis="share")
    given = report(figures=(Figure(svg, "Kept."), Figure(svg, "Shown <here>.", file="folds.svg")))
    written = {path.name: path.read_text() for path in write_report(given, tmp_path)}
    assert set(written) == {"report.md", "report.html", "folds.svg"}
    assert "[Figure 1](report.html#figure-1), in the HTML page: Kept." in written["report.md"]
    assert "![Figure 2](folds.svg)\n\nFigure 2: Shown \\<here\\>." in written["report.md"]
    root = ElementTree.fromstring(written["folds.svg"])
    assert root[0].attrib == {"width": "100%", "height": "100%", "fill": "#ffffff"}
    assert len(list(root.iter())) == 1 + len(list(ElementTree.fromstring(svg).iter()))


def test_columns_of_words_are_aligned_left_in_every_output():
    table = Table("", ("m", "result", "gain"), (("a", "won", "1"), ("b", "lost all", "20")), words=(1,))
    given = report(tables=(table,))
    assert "| :-- | :------- | ---: |\n| a   | won      |    1 |" in to_markdown(given)
    cells = [(tag, attributes.get("class")) for tag, attributes in Page(to_html(given)).tags if tag in ("td", "th")]
    assert cells[:3] == [("th", None), ("th", "words"), ("th", None)] and cells[4:6] == [("td", "words"), ("td", None)]
    assert ".words { text-align: left; }" in to_html(given)
    (line,) = [line for line in terminal(given).splitlines() if line.startswith("a ")]
    assert re.fullmatch(r"a +won +1 *", line) and line.index("won") == terminal(given).splitlines()[-1].index("lost")
    kept = without_empty(report(tables=(Table("", ("m", "x", "result"), (("a", "", "won"),), words=(2,)),)))
    assert kept.sections[0].tables[0].words == (1,)


def test_a_best_cell_is_bold_in_every_output():
    given = report(tables=(Table("", ("m", "x"), (("joint", "**0.25**"), ("other", "0.5"))),))
    rendered = MarkdownIt("commonmark").enable("table").render(to_markdown(given))
    assert re.findall(r"<strong>(.*?)</strong>", rendered) == ["0.25"]
    assert re.findall(r"<strong>(.*?)</strong>", to_html(given)) == ["0.25"]
    assert "\x1b[1m0.25\x1b[0m" in terminal(given, colour=True) and "\x1b[1m0.5" not in terminal(given, colour=True)


@pytest.mark.parametrize("cell", ["****", "**", "** **", "2**3", "**a"])
def test_stars_that_wrap_nothing_are_stars(cell):
    given = report(tables=(Table("", ("m",), ((cell,),)),))
    assert markdown_cells(to_markdown(given))[1] == cell
    assert "<strong>" not in to_html(given) and cell in terminal(given)


@settings(max_examples=200, deadline=None)
@given(SIGNS.filter(str.strip))
def test_a_paragraph_of_any_text_reads_back_from_html_and_the_terminal(text):
    given, shown = report(paragraphs=(text,)), " ".join(tidy(text).split())
    page = Page(to_html(given))
    assert shown in page.text and not page.wrong and not page.open
    assert shown in terminal(given)


@settings(max_examples=200, deadline=None)
@given(SIGNS.filter(str.strip))
def test_a_best_cell_of_any_text_reads_back_from_markdown(text):
    markdown = to_markdown(report(tables=(Table("", ("m",), ((f"**{text.strip()}**",),)),)))
    assert markdown_cells(markdown)[1] == tidy(text)
    assert MarkdownIt("commonmark").enable("table").render(markdown).count("<strong>") == 1


@settings(max_examples=200, deadline=None)
@given(SIGNS.filter(str.strip))
def test_a_heading_and_a_paragraph_of_plain_text_read_back_from_markdown(text):
    markdown = to_markdown(report(title=text, paragraphs=(text,)))
    tokens = MarkdownIt("commonmark").enable("strikethrough").parse(markdown)
    kinds = [f"{kind}_{end}" for kind in ("heading", "heading", "paragraph") for end in ("open", "inline", "close")]
    assert [token.type for token in tokens] == [kind if "inline" not in kind else "inline" for kind in kinds]
    for place in (1, 7):
        assert "".join(token.content for token in tokens[place].children) == " ".join(tidy(text).split())


def test_whatever_names_hold_adds_no_tag_and_no_attribute():
    def page(name):
        table = Table(name, (name, name), ((name, name),), (name,))
        svg = spread_plot([(name, [1.0, 2.0])], title=name, axis=name)
        section = Section(name, (name,), (table,), (Figure(svg, name),))
        return Page(to_html(Report(name, (name,), (section, section), (name,))))

    def tags(page):
        return [(tag, sorted(attributes)) for tag, attributes in page.tags if tag not in ("wbr", "text")]

    assert tags(page(NASTY)) == tags(page("plain"))
    assert not page(NASTY).wrong and "".join(page(NASTY).cells[0]) == NASTY


def test_the_page_is_balanced_and_complete():
    html = to_html(full_report())
    page = Page(html)
    assert html.startswith("<!DOCTYPE html>\n") and not page.open and not page.wrong
    assert ("html", {"lang": "en"}) in page.tags
    assert [a["content"] for t, a in page.tags if a.get("name") == "viewport"] == [
        "width=device-width, initial-scale=1"
    ]
    assert "prefers-color-scheme: dark" in html and "@media print" in html


def test_the_page_loads_nothing_and_runs_nothing():
    html = to_html(full_report())
    page = Page(html)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object", "embed", "use", "image"}
    assert not {key for _, attributes in page.tags for key in attributes if key.startswith("on") or key == "src"}
    assert not re.search(r"url\(|@import", html)
    assert re.findall(r"https?://[^\s\"<]+", re.sub(r'xmlns="[^"]*"', "", html)) == []


def test_every_fragment_leads_to_exactly_one_element():
    page = Page(to_html(full_report()))
    names = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    links = [a["href"][1:] for tag, a in page.tags if tag == "a" and a["href"].startswith("#")]
    assert len(links) == 2 and len(set(names)) == len(names) and set(links) <= set(names)
    figures = re.findall(r"\(report\.html#(.*?)\)", to_markdown(full_report()))
    assert figures == ["figure-1", "figure-2", "figure-3"] and set(figures) <= set(names)


def test_titles_that_look_like_the_pages_own_names_get_others():
    sections = tuple(Section(title) for title in ("Contents", "Figure 1", "a", "a", "a-2", "???", "!!!"))
    page = Page(to_html(Report("t", (), sections)))
    names = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(set(names)) == len(names) == 8


def test_the_terminal_shows_every_cell_of_a_table_wider_than_it():
    columns = tuple(f"metric {i}" for i in range(12))
    rows = tuple((f"method number {i}", *(f"{i}.{j:02} ± 0.001" for j in range(1, 12))) for i in range(3))
    shown = terminal(report(tables=(Table("Wide", columns, rows),)), width=60)
    assert max(map(len, shown.splitlines())) <= 60
    assert all(cell in shown for row in rows for cell in row)
    assert all(name in shown for name in columns)


def test_the_terminal_takes_nothing_for_markup_or_control():
    shown = terminal(report(title=NASTY + "\x1b[31m", tables=(Table("[bold]t", ("[x]",), (("[red]y\x9b",),)),)), 300)
    assert NASTY in shown and "[bold]t" in shown and "[x]" in shown and "[red]y\ufffd" in shown
    assert "\x1b" not in shown


def test_write_report_writes_both_files_the_same_every_time_and_nothing_else(tmp_path):
    paths = write_report(full_report(), tmp_path / "a" / "b")
    assert [path.name for path in paths] == ["report.md", "report.html"]
    assert sorted(os.listdir(tmp_path / "a" / "b")) == ["report.html", "report.md"]
    assert paths[0].read_bytes() == to_markdown(full_report()).encode()
    assert paths[1].read_bytes() == to_html(full_report()).encode()


def test_an_empty_report_is_a_page_all_the_same():
    empty = Report("", (), ())
    assert not Page(to_html(empty)).open and to_markdown(empty).startswith("#") and terminal(empty) == "\n"
    assert "<tbody>\n</tbody>" in to_html(report(tables=(Table("", ("a", "b"), ()),)))
