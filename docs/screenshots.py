"""Makes serving.png and tagging.png, the two pages as Chromium shows them for a model of made-up songs.

    python docs/screenshots.py [FOLDER]

Writes to this folder unless another is named. Needs playwright and Debian's chromium, as the tests of the pages do.
"""

import csv
import re
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
from browser import Tab, chromium  # noqa: E402

WORDS = {
    "calm": "evening lake snow slow quiet harbour",
    "happy": "sunny dance summer kite morning friends",
    "sad": "rain goodbye lonely letter grey station",
    "relaxing": "garden tea hammock breeze moss river",
    "angry": "storm fire broken thunder wall shout",
}
OTHERS = ["the", "a", "at", "of", "in", "with", "before", "after"]
ENERGY = {"calm": -1, "happy": 1, "sad": -0.5, "relaxing": -1, "angry": 2}
LAKE = """<svg xmlns="http://www.w3.org/2000/svg" width="640" height="360">
<rect width="640" height="360" fill="#7aa5a0"/><circle cx="420" cy="115" r="50" fill="#fbd98a"/>
<path d="M0 230Q110 150 220 190T420 240T640 150V360H0Z" fill="#355c48"/>
<rect y="300" width="640" height="60" fill="#486f92"/></svg>"""


def songs(n_rows, seed):
    """Rows of a table, and of each its label set."""
    random = np.random.default_rng(seed)
    for number in range(n_rows):
        tags = sorted(random.choice(list(WORDS), random.choice([1, 2], p=[0.6, 0.4]), replace=False))
        about = [*tags, random.choice(list(WORDS))]  # a title also speaks of what the song is not
        words = [random.choice(WORDS[tag].split()) for tag in about] + [*random.choice(OTHERS, 3)]
        yield {
            "song_id": f"S-{1000 * seed + number}",
            "title": " ".join(random.permutation(words)).capitalize(),
            "recorded": str(np.datetime64("2019-01-01") + int(random.integers(2000))),
            "tempo": round(110 + 15 * random.normal(), 1),
            "energy": round(sum(ENERGY[tag] for tag in tags) + random.normal(), 2),
            "genre": random.choice(["folk", "jazz", "ambient"]),
            "url": f"https://example.org/songs/{1000 * seed + number}",
            "tags": ";".join(tags),
        }


def write_table(path, rows):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@contextmanager
def running(folder, *command):
    """The address of a page that a command serves."""
    line = [sys.executable, "-m", "mlrh", *command]
    with subprocess.Popen(line, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        try:
            found = (re.search(r"http://\S+?(?=;|\s|$)", text) for text in process.stderr)
            yield next(own[0] for own in found if own)
        finally:
            process.terminate()


def main(target):
    with tempfile.TemporaryDirectory() as name, chromium() as browser:
        folder = Path(name)
        page = browser.new_page(viewport={"width": 640, "height": 360})
        page.set_content(f'<body style="margin:0">{LAKE}</body>')
        page.screenshot(path=folder / "lake.png")
        write_table(folder / "songs.csv", list(songs(300, 1)))
        new = [{**row, "photo": "lake.png"} for row in songs(24, 2)]
        new[0] |= {"title": "Slow evening at the quiet lake with rain", "energy": -0.8, "tempo": 176.5}
        write_table(folder / "new.csv", [{key: cell for key, cell in row.items() if key != "tags"} for row in new])
        fit = ("fit", "songs.csv", "--labels", "tags", "--scores", "linear", "--quality", "fast")
        subprocess.run([sys.executable, "-m", "mlrh", *fit], cwd=folder, check=True)
        with running(folder, "serve", "songs.mlrh", "--port", "0") as address:
            _picture_of_serving(browser, address, target / "serving.png")
        shown = (
            "--show",
            "title,recorded,genre,url,song_id,photo",
            "--images",
            ".",
            "--no-browser",
            "-o",
            "confirmed.csv",
        )
        with running(folder, "tag", "songs.mlrh", "new.csv", *shown) as address:
            _picture_of_tagging(browser, address, target / "tagging.png", folder)


def _picture_of_serving(browser, address, path):
    tab = Tab(browser, address)
    tab.wait("now !== null")
    for column, value in {"title": "Rain before the quiet harbour", "recorded": "2021-11-03", "energy": "-0.4"}.items():
        tab.page.fill(f"[data-column={column}]", value)
    tab.page.select_option("[data-column=genre]", "folk")
    tab.page.get_by_label("sad: absent").click()
    tab.wait("Object.keys(known).length === 1")
    _save(tab, path)


def _picture_of_tagging(browser, address, path, folder):
    tab = Tab(browser, address)
    tab.wait("document.querySelectorAll('#labels li').length > 0")
    tab.page.fill("#row", "1")
    tab.press("Enter")
    tab.page.wait_for_selector("#row-number:text-is('1')")
    tab.page.get_by_label("calm: present").click()
    tab.page.wait_for_selector("#labels li.present")
    without_folder = "folder => { $('output').textContent = $('output').textContent.replace(folder, ''); }"
    tab.page.evaluate(without_folder, f"{folder}/")
    _save(tab, path)


def _save(tab, path):
    tab.page.wait_for_timeout(500)  # what was drawn last
    tab.page.screenshot(path=path, full_page=True)
    tab.context.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
