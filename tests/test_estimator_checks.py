"""scikit-learn's own checks, for both classes, both label spaces and every solver, with no expected failures."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from mlrh import KernelMLRHClassifier, MLRHClassifier

CLASSES_AND_SPACES = [
    (classifier, label_space)
    for classifier in (MLRHClassifier, KernelMLRHClassifier)
    for label_space in ("cardinality", "observed")
]
ESTIMATORS = [classifier(label_space=label_space, solver="lbfgs") for classifier, label_space in CLASSES_AND_SPACES] + [
    MLRHClassifier(size_bias=True),
    MLRHClassifier(decision="hamming"),
    MLRHClassifier(solver="mm", mm_step="paper"),
    KernelMLRHClassifier(kernel="linear", size_bias=True),
]
WITH_OTHER_SOLVERS = [
    classifier(label_space=label_space, solver=solver)
    for classifier, label_space in CLASSES_AND_SPACES
    for solver in ("newton-cg", "mm")
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn_check_passes(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(WITH_OTHER_SOLVERS)
def test_scikit_learn_check_passes_with_other_solvers(estimator, check):
    check(estimator)
