"""scikit-learn's own checks of every estimator, with other parameters among the slow tests."""

import pytest
import sklearn
from packaging.version import Version
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import SVC, LinearSVC
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks

from mlrh import CalibratedSets, KernelMLRHClassifier, KernelMLRHClassifierCV, MLRHClassifier, MLRHClassifierCV
from mlrh.baselines import IBLR, CCnet, CorrLog, LabelPowerset, MLkNN, OrConstant, ProbabilisticChain
from mlrh.estimators.thresholds import TunedThresholds

# One of each class; every other line is among the slow tests.
ESTIMATORS = [
    MLRHClassifier(),
    # To the optimum: weighted rows have another kernel matrix than repeated ones, and other numbers of rows in folds;
    # fits that stop early differ by more than the checks allow.
    KernelMLRHClassifier(tol=1e-12),
    MLRHClassifierCV(Cs=[0.1, 1.0], cv=2),
    KernelMLRHClassifierCV(Cs=[0.1, 1.0], cv=2, tol=1e-12),
    TunedThresholds(MLRHClassifier(C=0.01, tol=1e-14)),
    CalibratedSets(MLRHClassifier(C=0.01, tol=1e-14), cv=2),
    LabelPowerset(),
    MLkNN(n_neighbors=3, smoothing=0.5),
    IBLR(n_neighbors=3, with_features=True),
    CorrLog(),
    ProbabilisticChain(),
    CCnet([0.1, 1.0], l1_ratios=[0.5], cv=2),
    OrConstant(LogisticRegression()),
]
# Each class with each solver and each space once: a solver knows neither (test_solvers.py has all pairs).
WITH_OTHER_PARAMETERS = [
    MLRHClassifier(solver="newton-cg"),
    MLRHClassifier(label_space="observed", solver="lbfgs"),
    MLRHClassifier(label_space="observed", solver="mm"),
    # To the optimum, as above, where it is sharp (a strong penalty, or steps of Newton): rounding errors end a fit.
    KernelMLRHClassifier(C=0.1, solver="lbfgs", tol=1e-14),
    KernelMLRHClassifier(solver="mm"),
    KernelMLRHClassifier(label_space="observed", solver="newton-cg", tol=1e-14),
    # A strength that is chosen depends on how rows fall into folds, so a row twice is not a row of weight 2.
    MLRHClassifier(label_space="open", set_bias_strength=1.0),
    MLRHClassifier(l1_ratio=0.5),
    MLRHClassifier(size_bias=True),
    KernelMLRHClassifier(label_space="open", set_bias_strength=1.0, solver="newton-cg", tol=1e-14),
    MLRHClassifier(decision="hamming"),
    MLRHClassifier(solver="mm", mm_step="paper"),
    MLRHClassifier(l1_ratio=1.0, label_space="observed"),
    KernelMLRHClassifier(kernel="linear", size_bias=True, tol=1e-14),
    KernelMLRHClassifier(C=0.01, kernel_approximation="nystroem", tol=1e-14),
    KernelMLRHClassifier(kernel_approximation="fourier", n_components=50),
    TunedThresholds(MLRHClassifier(C=0.01, label_space="observed", tol=1e-14), metric="exact_match", per_label=False),
    TunedThresholds(KernelMLRHClassifier(C=0.01, tol=1e-14), metric="f1_micro"),
    TunedThresholds(LogisticRegression(), metric="hamming", cv=3),
    TunedThresholds(LinearSVC(), metric="jaccard"),
    TunedThresholds(GaussianNB(), metric="f1_example", beta=2),
    CalibratedSets(KernelMLRHClassifier(C=0.01, label_space="observed", tol=1e-14), method="isotonic", cv=2),
    CalibratedSets(GaussianNB(), cv=3),
    LabelPowerset(GaussianNB()),
    MLkNN(),
    OrConstant(SVC()),
]


def wrong_checks(estimator):
    """Checks of scikit-learn 1.6 that make y binary with other classes for weighted than for repeated rows."""
    if Version(sklearn.__version__) >= Version("1.7") or not isinstance(estimator, TunedThresholds):
        return {}
    kinds = ["dense", "sparse"] if get_tags(estimator).input_tags.sparse else ["dense"]
    return {f"check_sample_weight_equivalence_on_{kind}_data": "y differs" for kind in kinds}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(ESTIMATORS, expected_failed_checks=wrong_checks)
def test_scikit_learn_check_passes(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(WITH_OTHER_PARAMETERS, expected_failed_checks=wrong_checks)
def test_scikit_learn_check_passes_with_other_parameters(estimator, check):
    check(estimator)
