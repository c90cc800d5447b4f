"""A table as people have it, for tests: title, date, identifier, link, number, word, and a column of tags.

Run as a script, it writes the files of docs/tables.md into the working folder.
"""

import csv
import io
from pathlib import Path

import numpy as np

WORDS = {
    "health": "doctor hospital medicine vaccine nurse patient clinic therapy fever diet",
    "tech": "chip software robot code server network browser laptop battery screen",
    "sport": "goal match league coach stadium player referee trophy season team",
    "art": "museum painter opera gallery sculpture novel poem theatre actor violin",
    "money": "bank tax market stock price budget wage loan bond trade",
}
OTHERS = "the new old big city report today people world week after says first more about"
COLUMNS = ("id", "title", "published", "url", "length", "section", "tags")


def articles(n_rows, seed=0):
    """Rows of COLUMNS as texts, and the label set of each; titles hold two or three words of each label."""
    random = np.random.default_rng(seed)
    rows, sets = [], []
    for number in range(n_rows):
        labels = sorted(random.choice(list(WORDS), random.choice(3, p=[0.5, 0.35, 0.15]) + 1, replace=False))
        words = [*random.choice(OTHERS.split(), 5)]
        for label in labels:
            words += [*random.choice(WORDS[label].split(), random.integers(2, 4), replace=False)]
        title = " ".join(random.permutation(words)).capitalize()
        day = np.datetime64("2022-01-03") + int(random.integers(900))
        link = f"https://news.example/{10_000 * seed + number}"
        section = random.choice(["north", "south", "west"])
        cells = [
            9000 + 10_000 * seed + number,
            title,
            day,
            link,
            int(random.integers(200, 2000)),
            section,
            ";".join(labels),
        ]
        rows.append([str(cell) for cell in cells])
        sets.append(set(labels))
    return rows, sets


def csv_of(rows, columns=COLUMNS):
    """The rows as the text of a CSV file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    return text.getvalue()


if __name__ == "__main__":
    Path("articles.csv").write_text(csv_of(articles(150)[0]))
    Path("test.csv").write_text(csv_of(articles(150, seed=1)[0]))
    untagged = [row[:-1] for row in articles(40, seed=2)[0]]
    Path("new.csv").write_text(csv_of(untagged, COLUMNS[:-1]))
