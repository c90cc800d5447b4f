"""How far the confidence in a label set can be trusted: the joint model against one logistic regression per label.

Run it with `python docs/confidence/compare.py`, with the data sets at hand; it takes seven minutes of processor time.
`--data NAME` and `--kernel NAME` run a part, `--jobs N` has N processes.

Five outer folds (shuffled; two deals for emotions and scene, one for yeast), standardised features. For each fold C,
and gamma of the RBF kernel, have the best log-loss of the set in 3 inner folds of the training rows; CalibratedSets
calibrates with 5 folds of the same rows. K logistic regressions are the cardinality space with all sizes and no bias:
their confidence is the product of the probabilities of the labels above 1/2 and of the others' complements. Held-out
rows are pooled; intervals are the middle 95 % of 2,000 bootstrap draws of rows, the same rows for both models and all
deals: they are about the rows that are asked, not about other fits. A difference is bold where its interval leaves out
0.
"""

import argparse
import warnings

import numpy as np
from joblib import Parallel, delayed
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold
from sklearn.preprocessing import StandardScaler

from mlrh import KernelMLRHClassifier, MLRHClassifier
from mlrh.data import load
from mlrh.estimators.calibration import CalibratedSets, isotonic_map
from mlrh.estimators.cv import best_index, validation_scores
from mlrh.estimators.kernel import gamma_scale
from mlrh.metrics import expected_calibration_error, risk_coverage

SEEDS = {"emotions": 2, "scene": 2, "yeast": 1}  # how often the rows are dealt out anew
CS = {"linear": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0), "RBF": (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)}
GAMMAS = {"linear": (None,), "RBF": (0.3, 1.0)}
MODELS = ("cardinality", "observed", "one per label")
METHODS = ("raw", "temperature", "isotonic")
N_DRAWS = 2000


def classifier(kernel, model, n_labels):
    """The classifier, its C and gamma still to be chosen."""
    options = {
        "cardinality": {"size_bias": True},
        "observed": {"label_space": "observed"},
        "one per label": {"min_labels": 0, "max_labels": n_labels},
    }[model]
    return (MLRHClassifier if kernel == "linear" else KernelMLRHClassifier)(n_jobs=1, **options)


def tuned(model, kernel, X, Y):
    """The classifier with the C and gamma of the best log-loss of the set on held-out training rows."""
    settings = [{} if gamma is None else {"gamma": gamma * gamma_scale(X)} for gamma in GAMMAS[kernel]]
    splits = list(KFold(3, shuffle=True, random_state=0).split(X))
    scores = validation_scores(model, X, Y, Cs=CS[kernel], settings=settings, splits=splits, scorers=[log_prob])[0]
    setting, C = best_index(scores)
    return model.set_params(C=CS[kernel][C], **settings[setting])


def log_prob(model, X, Y):
    return float(np.maximum(model.distribution(X).log_prob(Y), np.log(1e-6)).mean())


def answers(data, kernel, model, train, test):
    """(test rows, right or not, {method: confidence}, (temperature, C)) of one model on one outer fold."""
    warnings.simplefilter("ignore", ConvergenceWarning)
    warnings.filterwarnings("ignore", "The training rows don't determine the model", UserWarning)
    scaler = StandardScaler().fit(data.X[train])
    X, Y, X_test = scaler.transform(data.X[train]), data.Y[train], scaler.transform(data.X[test])
    chosen = tuned(classifier(kernel, model, Y.shape[1]), kernel, X, Y)
    calibrated = CalibratedSets(chosen).fit(X, Y)
    predicted = calibrated.predict(X_test)
    raw = np.minimum(calibrated.estimator_.distribution(X_test).prob(predicted), 1.0)
    # What method="isotonic" gives, without fitting all folds again.
    isotonic = isotonic_map(calibrated.raw_confidence_, calibrated.raw_correct_).predict(raw)
    confidence = {"raw": raw, "temperature": calibrated.confidence(X_test), "isotonic": isotonic}
    return test, (predicted == data.Y[test]).all(axis=1), confidence, (calibrated.temperature_, chosen.C)


def pooled(name, kernel, model, n_seeds, n_jobs):
    """Right or not, {method: confidence}, both (n_seeds, n_samples), and all (temperature, C), over all outer folds."""
    data = load(name)
    splits = [KFold(5, shuffle=True, random_state=seed).split(data.X) for seed in range(n_seeds)]
    tasks = [(seed, *fold) for seed, folds in enumerate(splits) for fold in folds]
    results = Parallel(n_jobs=n_jobs)(delayed(answers)(data, kernel, model, train, test) for _, train, test in tasks)
    right = np.empty((n_seeds, len(data.Y)), bool)
    confidence = {method: np.empty(right.shape) for method in METHODS}
    for (seed, _, _), (rows, correct, by_method, _) in zip(tasks, results, strict=True):
        right[seed, rows] = correct
        for method in METHODS:
            confidence[method][seed, rows] = by_method[method]
    return right, confidence, [choice for *_, choice in results]


def mean_over_seeds(measure, confidence, right):
    return np.mean([measure(c, r) for c, r in zip(confidence, right, strict=True)])


def interval(measure, first, second):
    """2.5 and 97.5 % of the difference of a measure between two (confidence, right) over bootstrap draws of rows."""
    rng = np.random.default_rng(0)
    n_rows = first[0].shape[1]
    differences = []
    for _ in range(N_DRAWS):
        rows = rng.integers(n_rows, size=n_rows)
        values = [
            mean_over_seeds(measure, confidence[:, rows], right[:, rows]) for confidence, right in (first, second)
        ]
        differences.append(values[0] - values[1])
    return np.percentile(differences, [2.5, 97.5])


def area(confidence, right):
    return risk_coverage(confidence, right).area


def compared(measure, first, second):
    """Measure of the first, of the second, and the difference with its interval, as cells of a table."""
    values = [mean_over_seeds(measure, *answers) for answers in (first, second)]
    low, high = interval(measure, first, second)
    mark = "**" if low > 0 or high < 0 else ""
    return f"{values[0]:.3f} | {values[1]:.3f} | {mark}{values[0] - values[1]:+.3f}{mark} ({low:+.3f}, {high:+.3f})"


def main(names, kernels, n_jobs):
    print("| data | kernel | label space | calibration | ECE | of LRs | difference | area | of LRs | difference |")
    print("| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    notes = []
    for name in names:
        for kernel in kernels:
            results = {model: pooled(name, kernel, model, SEEDS[name], n_jobs) for model in MODELS}
            for model, (right, _, choices) in results.items():
                ranges = " | ".join(f"{min(values):.3g} to {max(values):.3g}" for values in zip(*choices, strict=True))
                notes.append(f"| {name} | {kernel} | {model} | {right.mean():.3f} | {ranges} |")
            for model in MODELS[:2]:
                for method in METHODS:
                    joint, separate = ((results[m][1][method], results[m][0]) for m in (model, MODELS[2]))
                    cells = (compared(measure, joint, separate) for measure in (expected_calibration_error, area))
                    print(f"| {name} | {kernel} | {model} | {method} | {' | '.join(cells)} |", flush=True)
    print("\n| data | kernel | model | exact match | temperature | C |\n| --- | --- | --- | ---: | ---: | ---: |")
    print("\n".join(notes))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", action="append", choices=list(SEEDS))
    parser.add_argument("--kernel", action="append", choices=list(CS))
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    main(given.data or list(SEEDS), given.kernel or list(CS), given.jobs)
