"""The benchmark of chunks counts what it says: evaluations, anonymous memory, the objective of SGD; and it runs."""

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from benchmarks import chunks, problems
from mlrh import MLRHClassifier

CONTEXT = SimpleNamespace(quick=True, tell=lambda message: None)


def test_evaluations_are_counted_once_and_the_rows_are_as_before():
    problem = problems.synthetic(200, 5, 3)
    fit = MLRHClassifier(max_iter=1000).fit
    counted = chunks.n_evaluations(lambda: fit(problem.X, problem.Y))
    parts = chunks.Counted(problem.X, problem.Y)
    MLRHClassifier().fit_chunks(parts)
    assert parts.n_passes == counted + 2  # the look, and the sums that no coefficient changes
    assert chunks.n_evaluations(lambda: None) == 0


def test_the_objective_of_a_label_is_that_of_logistic_regression():
    problem = problems.synthetic(300, 4, 2, max_size=1)
    labels = problem.Y[:, 0]
    fitted = LogisticRegression(tol=1e-10).fit(problem.X, labels)
    log_probs = fitted.predict_log_proba(problem.X)[np.arange(300), labels]
    expected = -log_probs.sum() + 0.5 * np.square(fitted.coef_).sum()
    assert chunks.binary_objective(fitted, problem.X, labels) == pytest.approx(expected)


def test_anonymous_memory_is_that_of_the_largest_array():
    before = chunks.anonymous_bytes()

    def work():
        array = np.ones(40_000_000 // 8)
        for _ in range(20):
            array += 1.0

    assert chunks.largest_anonymous(work) > before + 30_000_000


@pytest.mark.slow
def test_every_line_of_chunks_is_measured_in_small():
    lines = list(chunks.measure(1, CONTEXT))
    assert len(lines) == 17 and all(line.ratio is not None and not line.note.startswith("NOT") for line in lines)
    assert {line.target for line in lines} == {chunks.TARGET, chunks.TARGET_SLOPE, 1.1, None}
    assert all(line.passes for line in lines if line.case.startswith("passes, L2"))
