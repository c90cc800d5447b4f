"""The page of the comparison on public sets, and tables of the README and how-to-choose.md, from the records here.

    python docs/comparison/write.py

runs no method: `mlrh compare --suite public --output docs/comparison` does that, and writes the page, too.
"""

from pathlib import Path

from mlrh.experiments import read_records, write_report
from mlrh.experiments._public_pages import in_how_to_choose, in_readme, suite_report

FOLDER = Path(__file__).parent
PAGES = {FOLDER.parents[1] / "README.md": in_readme, FOLDER.parent / "how-to-choose.md": in_how_to_choose}


def main():
    records = read_records(FOLDER / "records.jsonl")
    write_report(suite_report(records), FOLDER)
    for page, written in PAGES.items():
        page.write_text(written(page.read_text(encoding="utf-8"), records), encoding="utf-8")


if __name__ == "__main__":
    main()
