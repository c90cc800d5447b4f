"""scikit-learn's own checks, for both classes, both label spaces and every solver, with no expected failures."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from mlrh import KernelMLRHClassifier, MLRHClassifier

ESTIMATORS = [
    classifier(label_space=label_space, solver=solver)
    for classifier in (MLRHClassifier, KernelMLRHClassifier)
    for label_space in ("cardinality", "observed")
    for solver in ("lbfgs", "newton-cg", "mm")
] + [
    MLRHClassifier(size_bias=True),
    MLRHClassifier(decision="hamming"),
    MLRHClassifier(solver="mm", mm_step="paper"),
    KernelMLRHClassifier(kernel="linear", size_bias=True),
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn_check_passes(estimator, check):
    check(estimator)
