"""Methods compared by one nested protocol, on the paper's data sets or on your own, and the report of what came out."""

from mlrh.experiments._methods import FAMILIES
from mlrh.experiments._protocol import PROFILES, Dataset, Profile
from mlrh.experiments._records import RecordFile, read_records
from mlrh.experiments._report import Report, to_html, to_markdown, to_terminal, write_report
from mlrh.experiments._reproduce import compare, paper_datasets, reproduce

__all__ = [
    "FAMILIES",
    "PROFILES",
    "Dataset",
    "Profile",
    "RecordFile",
    "Report",
    "compare",
    "paper_datasets",
    "read_records",
    "reproduce",
    "to_html",
    "to_markdown",
    "to_terminal",
    "write_report",
]
