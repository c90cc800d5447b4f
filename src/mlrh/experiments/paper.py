"""The paper's tables as data: what it published, and what follows from enumeration alone.

Jaemoon Lee and Hoda Shajari, A Hidden Variables Approach to Multilabel Logistic Regression. Exact match and accuracy
are in percent, as printed there.
"""

from collections.abc import Callable
from itertools import product

import numpy as np

from mlrh.experiments.report import Table

TABLE_5 = {
    "iris": {"mm": 98.02, "scikit-learn": 97.22, "statsmodels": 97.38},
    "wine": {"mm": 96.08, "scikit-learn": 96.11, "statsmodels": 95.55},
}
TABLE_6 = {"scene": ("Image", 2407, 294, 6, 3), "emotions": ("Music", 593, 72, 6, 3)}
TABLE_7 = {  # exact match in percent, Hamming loss
    "scene": {
        "MLRH-WTA (RBF)": (72.61, 0.079),
        "MLRH-MP (RBF)": (54.22, 0.096),
        "BR-SVM (RBF)": (64.90, 0.075),
        "LP-LR": (65.33, 0.111),
    },
    "emotions": {
        "MLRH-WTA (RBF)": (33.37, 0.188),
        "MLRH-MP (RBF)": (31.03, 0.189),
        "BR-SVM (RBF)": (33.20, 0.178),
        "LP-LR": (24.59, 0.228),
    },
}
SCORES = (0.7, -0.4)  # w_1'x and w_2'x in the worked example of Tables 1 and 2
NAMED_SETS = {(1, 0): "{1}", (0, 1): "{2}", (1, 1): "{1, 2}"}


def exponential_scheme(y, h, scores) -> float:
    """prod_k h_k^y_k exp(h_k s_k), with 0^0 = 1: the joint weight of labels and hidden variables in section 3.2."""
    return float(np.prod([float(h_k) ** y_k * np.exp(h_k * s) for y_k, h_k, s in zip(y, h, scores, strict=True)]))


def multiplication_scheme(y, h, scores) -> float:
    """prod_k (r_k + 1) / 2 exp(h_k s_k), r_k = (2 h_k - 1)(2 y_k - 1): the joint weight that replaces it."""
    factors = [
        ((2 * h_k - 1) * (2 * y_k - 1) + 1) / 2 * np.exp(h_k * s) for y_k, h_k, s in zip(y, h, scores, strict=True)
    ]
    return float(np.prod(factors))


def hidden_variable_tables() -> tuple[Table, Table]:
    """Tables 1 and 2: the weight of every label set and hidden state by each scheme, enumerated."""
    note = f"Example scores w_1'x = {SCORES[0]}, w_2'x = {SCORES[1]}; a weight of 0 is impossible."
    mismatch = (
        "The hidden state (1, 1) adds the same term to every label set, so each weighs more than its own score says.",
        "The paper prints exp(w'x) for y = {2}, h = (0, 1); it is exp(w_2'x).",
    )
    cure = ("Only h = y is left, and the weights are those of the model: exp of the sum of the scores of the set.",)
    return (
        _scheme_table("Table 1. The mismatch problem, enumerated", exponential_scheme, (note, *mismatch)),
        _scheme_table("Table 2. Its cure, enumerated", multiplication_scheme, (note, *cure)),
    )


def _scheme_table(title, scheme: Callable, notes):
    states = list(product((0, 1), repeat=2))
    rows = []
    for y, name in NAMED_SETS.items():
        weights = [scheme(y, h, SCORES) for h in states]
        model = np.exp(np.dot(y, SCORES))
        rows.append((name, *(f"{weight:.4f}" for weight in weights), f"{sum(weights):.4f}", f"{model:.4f}"))
    hidden = [f"h = ({first}, {second})" for first, second in states]
    return Table(title, ("label set", *hidden, "sum over h", "model's weight"), tuple(rows), notes)
