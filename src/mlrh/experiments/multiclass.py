"""Unpenalised multiclass logistic regression by three programs: the comparison of the paper's Table 5.

The training folds of Iris and Wine are (nearly) separable, so the likelihood often has no maximum and what a program
returns depends on where it stops: the caps are part of the result.
"""

import warnings

import numpy as np
from sklearn.linear_model import LogisticRegression

from mlrh.estimators import MLRHClassifier

MAX_ITER = {"mm": 100, "scikit-learn": 100, "statsmodels": 100}
PROGRAM_NAMES = {"mm": "MM algorithm", "scikit-learn": "Scikit-learn", "statsmodels": "Statsmodels"}


def _by_mm(X, y, X_test, max_iter):
    """The paper's algorithm with its own step, twice the safe one."""
    model = MLRHClassifier(C=np.inf, solver="mm", mm_step="paper", max_iter=max_iter, n_jobs=1)
    return model.fit(X, y).predict(X_test)


def _by_scikit_learn(X, y, X_test, max_iter):
    return LogisticRegression(C=np.inf, max_iter=max_iter).fit(X, y).predict(X_test)


def _by_statsmodels(X, y, X_test, max_iter):
    """MNLogit by BFGS: its default, Newton's method, meets a singular matrix on separable rows."""
    from statsmodels.discrete.discrete_model import MNLogit  # an optional extra

    classes, codes = np.unique(y, return_inverse=True)
    fitted = MNLogit(codes, _with_constant(X)).fit(method="bfgs", maxiter=max_iter, disp=False)
    scores = np.column_stack([np.zeros(len(X_test)), _with_constant(X_test) @ np.asarray(fitted.params)])
    return classes[scores.argmax(axis=1)]


def _with_constant(X):
    return np.column_stack([np.ones(len(X)), X])


PROGRAMS = {"mm": _by_mm, "scikit-learn": _by_scikit_learn, "statsmodels": _by_statsmodels}


def accuracy(program, X, y, X_test, y_test) -> float:
    """Share of the test rows that a program classifies right after at most its MAX_ITER iterations."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # that there was no convergence is known beforehand
        predicted = PROGRAMS[program](X, y, X_test, MAX_ITER[program])
    return float((predicted == y_test).mean())
