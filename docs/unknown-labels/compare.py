"""What training with hidden labels gains over the usual ways around them, on emotions and scene.

Run it with `python docs/unknown-labels/compare.py`, with the data sets at hand; it takes several minutes. Five outer
folds (shuffled, seed 0), standardised features. Of the training rows, 30% of the entries of Y are hidden at random; the
test rows are complete. C, and gamma of the RBF kernel, by 3 inner folds and the log-probability that each method gives
to what it takes as known.
"""

import warnings

import numpy as np
from joblib import Parallel, delayed
from sklearn.model_selection import KFold
from sklearn.preprocessing import StandardScaler

from mlrh import KernelMLRHClassifier, MLRHClassifier
from mlrh.data import load
from mlrh.estimators.cv import best_index, log_prob, validation_scores
from mlrh.estimators.kernel import gamma_scale
from mlrh.metrics import evaluate

HIDDEN = 0.3
CS = {"linear": tuple(np.logspace(-3, 0, 7)), "RBF": tuple(np.logspace(0, 2, 5))}
GAMMAS = {"linear": (None,), "RBF": (0.3, 1.0)}  # in units of gamma="scale"
MODELS = {"linear": MLRHClassifier, "RBF": KernelMLRHClassifier}


def hidden_kept(Y):
    return Y, np.arange(len(Y))


def rows_dropped(Y):
    complete = np.flatnonzero(~np.isnan(Y).any(axis=1))
    return Y[complete], complete


def zeros_filled(Y):
    return np.nan_to_num(Y), np.arange(len(Y))


BASELINE = "per-label LR on the known entries"
METHODS = {  # what becomes of Y, and the options of the classifier; None stands for the number of labels
    "all known entries, size_bias=True": (hidden_kept, {"size_bias": True}),
    "all known entries, min_labels=1": (hidden_kept, {"min_labels": 1}),
    "all known entries": (hidden_kept, {}),
    BASELINE: (hidden_kept, {"min_labels": 0, "max_labels": None}),
    "incomplete rows dropped, size_bias=True": (rows_dropped, {"size_bias": True}),
    "incomplete rows dropped": (rows_dropped, {}),
    "hidden filled with 0, size_bias=True": (zeros_filled, {"size_bias": True}),
    "hidden filled with 0": (zeros_filled, {}),
}


def measured(name, kernel, method, fold):
    """Measures of one method on one outer fold, and its chosen C."""
    data = load(name)
    train, test = list(KFold(5, shuffle=True, random_state=0).split(data.X))[fold]
    scaler = StandardScaler().fit(data.X[train])
    Y = data.Y[train].astype(np.float64)
    Y[np.random.RandomState(fold).uniform(size=Y.shape) < HIDDEN] = np.nan
    prepare, options = METHODS[method]
    Y, rows = prepare(Y)
    with warnings.catch_warnings():
        # Few complete rows may lack a label or a size; the classifier says so and keeps the fit finite.
        warnings.filterwarnings("ignore", "The training rows don't determine the model", UserWarning)
        model, C = chosen(kernel, options, scaler.transform(data.X[train][rows]), Y)
    distribution = model.distribution(scaler.transform(data.X[test]))
    return evaluate(data.Y[test], distribution.mode(), distribution.log_prob(data.Y[test])), C


def chosen(kernel, options, X, Y):
    """The model fitted at the C and gamma that inner folds choose, and how C lies in its grid."""
    options = {key: Y.shape[1] if value is None else value for key, value in options.items()}
    model = MODELS[kernel](n_jobs=1, **options)
    settings = [{} if gamma is None else {"gamma": gamma * gamma_scale(X)} for gamma in GAMMAS[kernel]]
    inner = list(KFold(3, shuffle=True, random_state=0).split(X))
    options = {"Cs": CS[kernel], "settings": settings, "splits": inner, "scorers": [log_prob], "n_jobs": 1}
    setting, C = best_index(validation_scores(model, X, Y, **options)[0])
    return model.set_params(C=CS[kernel][C], **settings[setting]).fit(X, Y), CS[kernel][C]


def rows_of_table(name, kernel):
    """Lines of the table for one data set and kernel: mean and spread over folds, and gains over the baseline."""
    tasks = [(method, fold) for method in METHODS for fold in range(5)]
    results = Parallel(n_jobs=-1)(delayed(measured)(name, kernel, method, fold) for method, fold in tasks)
    folds = {method: [r for (m, _), r in zip(tasks, results, strict=True) if m == method] for method in METHODS}
    for method, outcomes in folds.items():
        cells = []
        for key in ("exact_match", "set_log_loss"):
            values, base = (np.array([m[key] for m, _ in f]) for f in (outcomes, folds[BASELINE]))
            gain = values - base
            cells += [f"{values.mean():.3f}", f"{gain.mean():+.3f} ± {gain.std(ddof=1):.3f}"]
        empty = np.mean([m["empty_share"] for m, _ in outcomes])
        Cs = sorted({f"{C:.2g}" for _, C in outcomes}, key=float)
        yield f"| {name} | {kernel} | {method} | {' | '.join(cells)} | {empty:.3f} | {', '.join(Cs)} |"


def main():
    print("| data | scores | trained on | exact match | gain | log-loss of the set | change | empty answers | C |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, kernel in (("emotions", "linear"), ("emotions", "RBF"), ("scene", "linear"), ("scene", "RBF")):
        for row in rows_of_table(name, kernel):
            print(row, flush=True)


if __name__ == "__main__":
    main()
