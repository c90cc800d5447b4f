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

CLASSES_AND_SPACES = [
    (classifier, label_space)
    for classifier in (MLRHClassifier, KernelMLRHClassifier)
    for label_space in ("cardinality", "observed")
]
# One of each class; every other line is among the slow tests.
ESTIMATORS = [
    MLRHClassifier(),
    KernelMLRHClassifier(),
    # A strength that is chosen depends on how rows fall into folds, so a row twice is not a row of weight 2.
    MLRHClassifier(label_space="open", set_bias_strength=1.0),
    MLRHClassifier(l1_ratio=0.5),
    MLRHClassifierCV(Cs=[0.1, 1.0], cv=2),
    KernelMLRHClassifierCV(Cs=[0.1, 1.0], cv=2),
    TunedThresholds(MLRHClassifier()),
    CalibratedSets(MLRHClassifier(), cv=2),
    LabelPowerset(),
    MLkNN(n_neighbors=3, smoothing=0.5),
    IBLR(n_neighbors=3, with_features=True),
    CorrLog(),
    ProbabilisticChain(),
    CCnet([0.1, 1.0], l1_ratios=[0.5], cv=2),
    OrConstant(LogisticRegression()),
]
WITH_OTHER_PARAMETERS = [
    *(
        classifier(label_space=label_space, solver=solver)
        for classifier, label_space in CLASSES_AND_SPACES
        for solver in ("lbfgs", "newton-cg", "mm")
    ),
    MLRHClassifier(size_bias=True),
    KernelMLRHClassifier(label_space="open", set_bias_strength=1.0),
    MLRHClassifier(decision="hamming"),
    MLRHClassifier(solver="mm", mm_step="paper"),
    MLRHClassifier(l1_ratio=1.0, label_space="observed"),
    KernelMLRHClassifier(kernel="linear", size_bias=True),
    TunedThresholds(MLRHClassifier(label_space="observed"), metric="exact_match", per_label=False),
    TunedThresholds(KernelMLRHClassifier(), metric="f1_micro"),
    TunedThresholds(LogisticRegression(), metric="hamming", cv=3),
    TunedThresholds(LinearSVC(), metric="jaccard"),
    TunedThresholds(GaussianNB(), metric="f1_example", beta=2),
    CalibratedSets(KernelMLRHClassifier(label_space="observed"), method="isotonic", cv=2),
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
