"""Unpenalised multiclass logistic regression by three programs: the comparison of the paper's Table 5.

The training folds of Iris and Wine are (nearly) separable, so the likelihood often has no maximum and what a program
returns depends on where it stops, by its cap on the iterations or its own tolerance: both are part of the result.
"""

import warnings
from importlib.util import find_spec

import numpy as np
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression

from mlrh.estimators import MLRHClassifier

MAX_ITER = {"mm": 100, "scikit-learn": 100, "statsmodels": 100}
PROGRAM_NAMES = {"mm": "MM algorithm", "scikit-learn": "Scikit-learn", "statsmodels": "Statsmodels"}


def _by_mm(X, y, max_iter):
    """The paper's algorithm with its own step, twice the safe one."""
    model = MLRHClassifier(C=np.inf, solver="mm", mm_step="paper", max_iter=max_iter, n_jobs=1).fit(X, y)
    return model.coef_.T, model.intercept_, model.n_iter_


def _by_scikit_learn(X, y, max_iter):
    model = LogisticRegression(C=np.inf, max_iter=max_iter).fit(X, y)
    return model.coef_.T, model.intercept_, int(model.n_iter_.max())


def _by_statsmodels(X, y, max_iter):
    """MNLogit by BFGS: its default, Newton's method, meets a singular matrix on separable rows."""
    from statsmodels.discrete.discrete_model import MNLogit  # an optional extra

    steps: list = []
    model = MNLogit(y, np.column_stack([np.ones(len(X)), X]))
    fitted = model.fit(method="bfgs", maxiter=max_iter, disp=False, callback=steps.append)
    parameters = np.column_stack([np.zeros(1 + X.shape[1]), np.asarray(fitted.params)])
    return parameters[1:], parameters[0], len(steps)


PROGRAMS = {"mm": _by_mm, "scikit-learn": _by_scikit_learn, "statsmodels": _by_statsmodels}


def available() -> list[str]:
    """The programs that are installed."""
    return [program for program in PROGRAMS if program != "statsmodels" or find_spec("statsmodels")]


def measure(program, X, y, X_test, y_test) -> dict[str, float]:
    """Accuracy on the test rows, log-loss of the training rows and iterations of a program on classes 0, 1, ...."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # that there may be no convergence is known beforehand
        coef, intercept, n_iter = PROGRAMS[program](X, y, MAX_ITER[program])
    log_prob = log_softmax(X @ coef + intercept, axis=1)[np.arange(len(y)), y]
    predicted = (X_test @ coef + intercept).argmax(axis=1)
    return {
        "accuracy": float((predicted == y_test).mean()),
        "train_log_loss": -float(log_prob.mean()),
        "n_iter": n_iter,
    }
