"""The page of the comparison on public sets and the README's table, from the records beside this file.

    python docs/comparison/write.py

runs no method: `mlrh compare --suite public --output docs/comparison` does that, and writes the page, too.
"""

from pathlib import Path

from mlrh.experiments import read_records, write_report
from mlrh.experiments._public_pages import in_readme, suite_report

FOLDER = Path(__file__).parent
README = FOLDER.parents[1] / "README.md"


def main():
    records = read_records(FOLDER / "records.jsonl")
    write_report(suite_report(records), FOLDER)
    README.write_text(in_readme(README.read_text(encoding="utf-8"), records), encoding="utf-8")


if __name__ == "__main__":
    main()
