"""Ctrl-C during a refit, at many places: the estimator is that of the earlier fit or of the new one, entirely."""

import sys
from copy import copy
from pathlib import Path

import joblib
import numpy as np
import pytest
from sklearn.datasets import make_multilabel_classification
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression

import mlrh
from mlrh import KernelMLRHClassifier, KernelMLRHClassifierCV, MLRHClassifier, MLRHClassifierCV
from mlrh.baselines import IBLR, CorrLog, LabelPowerset, MLkNN, OrConstant, ProbabilisticChain
from mlrh.estimators import CalibratedSets, TunedThresholds

X, Y = make_multilabel_classification(40, n_features=3, n_classes=3, allow_unlabeled=False, random_state=0)
EARLIER, NEW = slice(0, 20), slice(10, 40)
ROOMS = tuple(str(Path(mlrh.__file__).parent / room) for room in ("estimators", "baselines"))
QUICK = {"tol": 1e-2, "n_jobs": 1}


def fit(estimator, rows):
    return estimator.fit(X[rows], Y[rows])


def fit_one_label(estimator, rows):
    return estimator.fit(X[rows], Y[rows, 0])


def partial_fit(estimator, rows):
    return estimator.partial_fit(X[rows], Y[rows], classes=range(3))


CASES = {
    "linear": (MLRHClassifier(**QUICK), fit),
    "linear, size_bias": (MLRHClassifier(size_bias=True, **QUICK), fit),
    "partial_fit": (MLRHClassifier(**QUICK), partial_fit),
    "kernel": (KernelMLRHClassifier(label_space="observed", **QUICK), fit),
    "linear CV": (MLRHClassifierCV(Cs=[0.1, 1.0], cv=2, **QUICK), fit),
    "kernel CV": (KernelMLRHClassifierCV(Cs=[0.1, 1.0], cv=2, **QUICK), fit),
    "calibrated": (CalibratedSets(MLRHClassifier(**QUICK), cv=2), fit),
    "thresholds": (TunedThresholds(MLRHClassifier(**QUICK), cv=2), fit),
    "powerset": (LabelPowerset(LogisticRegression()), fit),
    "neighbours": (MLkNN(n_neighbors=3), fit),
    "shares of neighbours": (IBLR(n_neighbors=3), fit),
    "pairs of labels": (CorrLog(tol=1e-2), fit),
    "searched chain": (ProbabilisticChain(), fit),
    "constant": (OrConstant(LogisticRegression()), fit_one_label),
}


class Interrupts:
    """Raises KeyboardInterrupt at one instruction of the package's estimators, by its number; -1: never."""

    def __init__(self, at):
        self.at, self.count = at, 0

    def __call__(self, frame, event, argument):
        if not frame.f_code.co_filename.startswith(ROOMS):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            if self.count == self.at:
                sys.settrace(None)
                raise KeyboardInterrupt
            self.count += 1
        return self


def interrupted(at, function, *arguments):
    """Call the function with an interrupt; returns how many instructions it had."""
    interrupts, before = Interrupts(at), sys.gettrace()
    sys.settrace(interrupts)
    try:
        function(*arguments)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return interrupts.count


def attributes(estimator):
    return {name: joblib.hash(value) for name, value in vars(estimator).items()}


def places(n):
    """Some of the last 90 instructions, where attributes are set, and a few before."""
    return sorted({*range(max(n - 90, 0), n, 6), *np.linspace(0, n - 1, 5).astype(int).tolist()})


@pytest.mark.filterwarnings("ignore")  # of few rows and a coarse tol
@pytest.mark.parametrize("name", CASES)
def test_an_interrupted_refit_leaves_one_whole_fit(name):
    estimator, show = CASES[name]
    earlier = show(copy(estimator), EARLIER)
    new = copy(earlier)
    n = interrupted(-1, show, new, NEW)
    wholes = [attributes(earlier), attributes(new)]
    assert wholes[0] != wholes[1]
    for at in places(n):
        refitted = copy(earlier)
        interrupted(at, show, refitted, NEW)
        assert attributes(refitted) in wholes, f"after an interrupt at instruction {at} of {n}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_an_interrupted_first_fit_leaves_the_estimator_unfitted_or_fitted(name):
    estimator, show = CASES[name]
    n = interrupted(-1, show, copy(estimator), NEW)
    for at in places(n)[::4]:
        first = copy(estimator)
        interrupted(at, show, first, NEW)
        if attributes(first) == attributes(estimator):
            with pytest.raises(NotFittedError):
                first.predict(X)
        else:
            assert len(first.predict(X)) == len(X)
