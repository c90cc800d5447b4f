"""Decide for the metric that counts: five decisions from one fit, each measured by all five metrics.

The scenes show one to three overlaid digits. Run it with `python examples/decisions.py`.
"""

import numpy as np
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mlrh import MLRHClassifier, decisions
from mlrh.data import load_digit_scenes
from mlrh.spaces import metric_function


def saving(tp, fp, fn):
    """To miss a digit costs as much as four that aren't there."""
    return -(fp + 4.0 * fn)


METRICS = {"exact_match": "exact_match", "hamming": "hamming", "f1": "f1", "jaccard": "jaccard", "saving": saving}


def main(n_train=1500, n_test=2000):
    """Prints the table and returns it: {decision: {metric: mean over the test scenes}}."""
    train, test = load_digit_scenes(n_train, part="train"), load_digit_scenes(n_test, part="test")
    model = make_pipeline(StandardScaler(), MLRHClassifier(C=0.1, size_bias=True)).fit(train.X, train.Y)
    distribution = model[-1].distribution(model[:-1].transform(test.X))
    answers = {name: decisions.best(distribution, metric) for name, metric in METRICS.items()}
    table = {name: means(test.Y, answer) for name, answer in answers.items()}
    show(table, answers)
    promised = decisions.expected(distribution, "f1", answers["f1"]).mean()
    print(f"\nThe model expected an F1 of {promised:.3f} from the decision for it; it was {table['f1']['f1']:.3f}.")
    limited = decisions.f1(distribution, min_labels=1, max_labels=2)
    print(f"With one or two digits to an answer it is {means(test.Y, limited)['f1']:.3f}.")
    return table


def means(truth, answer):
    """Every metric of the answers, averaged over scenes; "hamming" is the share of right labels."""
    right, wrong, missed = (truth & answer).sum(axis=1), (answer > truth).sum(axis=1), (truth > answer).sum(axis=1)
    functions = {name: metric_function(metric, truth.shape[1]) for name, metric in METRICS.items()}
    return {name: float(np.mean(function(right, wrong, missed))) for name, function in functions.items()}


def show(table, answers):
    print("decision for  " + "".join(f"{name:>12}" for name in METRICS) + "   labels per scene")
    for name, row in table.items():
        cells = "".join(f"{value:>11.3f}" + ("*" if metric == name else " ") for metric, value in row.items())
        print(f"{name:<14}{cells}   {answers[name].sum(axis=1).mean():.2f}")
    print("* the metric that the decision is for")


if __name__ == "__main__":
    main()
