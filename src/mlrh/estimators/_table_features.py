"""From the texts and dates of a table to features: counts of words and of letters in a row, and parts of the calendar.

Counts only: how they are weighed (TF-IDF) is learned with the classifier, from its training rows alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer

from mlrh._budget import VARIABLE, max_bytes
from mlrh.data.containers import DAY, FIRST_DAYS, LAST_DAYS, DataError, MultilabelData, Schema

# Words of two letters or more, and three or four letters in a row within a word and the blanks around it: these catch
# endings, compounds, typing errors and languages without blanks. What one row alone has says nothing about others.
COUNTED: dict[str, dict[str, Any]] = {
    "words": {"analyzer": "word", "token_pattern": r"(?u)\b\w\w+\b"},
    "pieces": {"analyzer": "char_wb", "ngram_range": (3, 4)},
}
LEAST_ROWS = 2
MOST = {"words": 10_000, "pieces": 20_000}  # of a column, the commonest; a label's coefficients for them take 240 kB
SAMPLED = 2**23  # characters that words are taken from, of rows evenly spread: what is common is common in these, too
COUNTS = 64  # bytes that a character takes while it is counted: it begins two pieces and a part of a word
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
PARTS = {"month": MONTHS, "weekday": DAYS, "hour": tuple(map(str, range(24)))}
FIRST_WEEKDAY = 3  # 1970 began on a Thursday


@dataclass(frozen=True, eq=False)
class TableFeatures:
    """What counts of the texts and dates of a table, learned from training rows by `found_in`.

    Attributes
    ----------
    words, pieces : mapping of str to tuple of str
        By the name of each text, the words and the letters in a row that are counted.
    parts : mapping of str to tuple of str
        By the name of each column of dates, the parts of the calendar (names in PARTS) that count beside the days.
    """

    words: Mapping[str, tuple[str, ...]]
    pieces: Mapping[str, tuple[str, ...]]
    parts: Mapping[str, tuple[str, ...]]

    @classmethod
    def found_in(cls, data: MultilabelData) -> "TableFeatures":
        """What occurs in two rows or more of the data, and the parts of the calendar that differ between rows."""
        found: dict[str, dict] = {
            kind: {name: _vocabulary(data, name, kind) for name in data.texts} for kind in COUNTED
        }
        parts = {name: _varying_parts(_column(data, name)) for name in data.dates}
        return cls(found["words"], found["pieces"], parts)

    def n_features(self, schema: Schema) -> int:
        """The number of columns that `matrix` makes of the schema's features."""
        n_counts = sum(len(own) for own in (*self.words.values(), *self.pieces.values()))
        return len(schema.feature_names) - len(schema.texts) + sum(map(len, self.parts.values())) + n_counts

    def expand(self, data: MultilabelData) -> MultilabelData:
        """The data set with these features in place of texts and beside dates.

        Features that are no text come first, then parts of the calendar, as nominal features, then blocks of counts,
        whose places are in `counts`.
        """
        names = [name for name in data.feature_names if name not in data.texts]
        taken = set(data.feature_names)
        categories = dict(data.categories)
        for name, parts in self.parts.items():
            for part in parts:
                names.append(_other_than(f"{name}: {part}", taken))
                categories[names[-1]] = PARTS[part]
        counts = []
        for name, _, vocabulary in self._blocks():
            counts.append((len(names), len(names) + len(vocabulary)))
            names += [_other_than(f"{name}: {own}", taken) for own in vocabulary]
        about: dict[str, Any] = {"feature_names": tuple(names), "categories": categories, "texts": {}, "dates": ()}
        return replace(data, X=self.matrix(data), **about, counts=tuple(counts))

    def matrix(self, data: MultilabelData):
        """X of `expand`, (n_samples, n_features): a CSR array where there are texts."""
        plain = [column for column, name in enumerate(data.feature_names) if name not in data.texts]
        columns = [data.X[:, plain]]
        columns += [_part(_column(data, name), part)[:, None] for name, parts in self.parts.items() for part in parts]
        X = np.hstack(columns)
        blocks = [_counted(data, name, kind, vocabulary) for name, kind, vocabulary in self._blocks()]
        return sparse.csr_array(sparse.hstack([sparse.csr_array(X), *blocks], format="csr")) if blocks else X

    def _blocks(self):
        """Name of the text, kind and vocabulary of each block of counts that isn't empty."""
        found = [(name, kind, getattr(self, kind)[name]) for name in self.words for kind in COUNTED]
        return [block for block in found if block[2]]


def expanded(data: MultilabelData) -> MultilabelData:
    """The data set with features in place of its texts and beside its dates; the same where it has none of them."""
    return TableFeatures.found_in(data).expand(data) if data.texts or data.dates else data


def _vocabulary(data, name, kind):
    """The commonest words or pieces of a text, sorted; of a sample of its rows where it is long."""
    codes = _column(data, name)
    rows = codes[~np.isnan(codes)].astype(np.int64)
    texts = data.texts[name]
    n_characters = sum(len(texts[code]) for code in rows.tolist())
    needed, allowed = COUNTS * n_characters, max_bytes()
    if needed > allowed:
        what = f"to count the {n_characters:,} characters of column {name!r} would take {needed:,} bytes"
        rule = f"the limit is {allowed:,}; ignore the column, or set {VARIABLE} to {needed} or more"
        raise DataError(f"{data.name}: {what}, and {rule}.")
    step = 1 + n_characters // SAMPLED
    vectorizer = CountVectorizer(min_df=LEAST_ROWS, max_features=MOST[kind], **COUNTED[kind])
    try:
        vectorizer.fit([texts[code] for code in rows[::step].tolist()])
    except ValueError:  # no word is in so many rows
        return ()
    return tuple(sorted(vectorizer.vocabulary_))


def _counted(data, name, kind, vocabulary):
    """Counts (n_samples, n_words) of the words in a text; those of a missing text are 0."""
    codes = _column(data, name)
    present = np.flatnonzero(~np.isnan(codes))
    used, place = np.unique(codes[present].astype(np.int64), return_inverse=True)
    vectorizer = CountVectorizer(vocabulary=vocabulary, dtype=np.float64, **COUNTED[kind])
    texts = data.texts[name]
    counts = sparse.csr_array(vectorizer.transform([texts[code] for code in used.tolist()] or [""]))
    row_of = np.full(len(codes), len(used))  # the row after the last is empty
    row_of[present] = place
    empty = sparse.csr_array((1, counts.shape[1]))
    return sparse.csr_array(sparse.vstack([counts[: len(used)], empty], format="csr"))[row_of]


def _varying_parts(days):
    """Names of the parts of the calendar that differ between rows."""
    days = days[~np.isnan(days)]
    return tuple(part for part in PARTS if len(days) and len(np.unique(_part(days, part))) > 1)


def _part(days, part):
    """The number of the month, the weekday or the hour of days since 1970, from 0; NaN where missing."""
    missing = np.isnan(days)
    seconds = np.round(np.clip(np.where(missing, 0.0, days), FIRST_DAYS, LAST_DAYS) * DAY).astype(np.int64)
    whole = seconds // DAY
    if part == "month":
        number = whole.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) % len(MONTHS)
    elif part == "weekday":
        number = (whole + FIRST_WEEKDAY) % len(DAYS)
    else:
        number = seconds % DAY // 3600
    return np.where(missing, np.nan, number)


def _column(data, name):
    column = data.X[:, [data.feature_names.index(name)]]
    return (column.toarray() if sparse.issparse(column) else column).ravel()


def _other_than(name, taken):
    """The name, with quotes after it where it is taken; adds it to these."""
    while name in taken:
        name += "'"
    taken.add(name)
    return name
