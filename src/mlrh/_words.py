"""Figures in words: for people who wait, and for tables and reports."""

from mlrh._indicators import UNKNOWN

LARGE_SHARE = 0.05  # of impossible true sets, from which on a note says so


def left_in_words(seconds: float | None) -> str:
    """How long is left, roughly; nothing where it isn't known."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"{max(round(seconds), 1)} s left"
    return f"{round(seconds / 60)} min left"


def fixed(number: float, decimals: int, *, signed: bool = False) -> str:
    """A number with so many decimals; what rounds to 0 has no minus sign.

    >>> fixed(-0.0001, 2), fixed(-0.0001, 2, signed=True), fixed(-1.5, 2)
    ('0.00', '+0.00', '-1.50')
    """
    return f"{round(float(number), decimals) + 0.0:{'+' if signed else ''}.{decimals}f}"  # -0.0 + 0.0 is 0.0


def p_value(p: float) -> str:
    """The p of a test with three decimals, never as 0.

    >>> p_value(0.0123), p_value(0.0004)
    ('0.012', '< 0.001')
    """
    return f"{p:.3f}" if p >= 0.0005 else "< 0.001"


def counted(n: int, word: str) -> str:
    """A number of things.

    >>> counted(1, "row"), counted(2000, "label")
    ('1 row', '2,000 labels')
    """
    return f"{n:,} {word}{'' if n == 1 else 's'}"


def described_data(data) -> str:
    """Rows, features, labels and labels per row of a MultilabelData, in words."""
    sizes = (data.Y == 1).sum(axis=1)
    n_rows, n_features = data.X.shape
    spread = f"{sizes.min()} to {sizes.max()}" if sizes.min() < sizes.max() else "in every row"
    counts = [counted(n_rows, "row"), counted(n_features, "feature"), counted(data.Y.shape[1], "label")]
    n_unknown = int((data.Y == UNKNOWN).sum())
    unknown = f"; {n_unknown:,} of {data.Y.size:,} unknown" if n_unknown else ""
    return f"{data.name}: {', '.join(counts)}; {sizes.mean():.2f} labels per row ({spread}){unknown}"


def impossible_note(share: float, model: str) -> str:
    """A sentence where a model holds a large share of the true sets impossible, and nothing elsewhere."""
    if not share > LARGE_SHARE:  # NaN where no row is complete
        return ""
    return (
        f"{share:.0%} of the true sets are impossible to {model}, so that it can't be right there; the open label "
        "space has all sets of the sizes that training shows, and more rows show more."
    )
