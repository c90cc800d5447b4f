"""Methods compared by one nested protocol, on the paper's data sets or on your own, and the report of what came out."""

from importlib import import_module

_PLACES = {
    "_methods": ("FAMILIES", "Family", "Outcome"),
    "_protocol": ("PROFILES", "Dataset", "Profile"),
    "_records": ("RecordFile", "read_records"),
    "_report": ("Report", "to_html", "to_markdown", "to_terminal", "write_report"),
    "_reproduce": ("compare", "paper_datasets", "reproduce"),
}
__all__ = sorted(name for names in _PLACES.values() for name in names)


def __getattr__(name):
    # At first use: a record file can be read without scikit-learn.
    for place, names in _PLACES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{place}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
