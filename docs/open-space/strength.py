"""The open space beside the other two, and its chosen strength beside all others, on the published test parts.

    MLRH_DATA=folder python docs/open-space/strength.py

Linear scores at one C per set, the same for all spaces. Prints, per data set, exact match, Hamming loss by marginals
and log-loss of the set (a probability counts as at least 1e-6), then the log-loss for every strength of set biases.
"""

import time
import warnings

import numpy as np
from scipy import sparse
from sklearn.preprocessing import StandardScaler

from mlrh import MLRHClassifier
from mlrh.data import load
from mlrh.spaces.open import STRENGTHS

CS = {"emotions": 0.1, "scene": 0.1, "yeast": 0.01, "birds": 0.1, "medical": 10.0, "flags": 0.1}
SPACES = {
    "cardinality, size_bias": {"size_bias": True},
    "observed": {"label_space": "observed"},
    "open": {"label_space": "open"},
}


def parts(name):
    """Training and test rows; numbers are standardised, words stay as they are."""
    train, test = load(name, "train"), load(name, "test")
    if sparse.issparse(train.X):
        return train.X, train.Y, test.X, test.Y
    scaler = StandardScaler().fit(train.X)
    return scaler.transform(train.X), train.Y, scaler.transform(test.X), test.Y


def main():
    print("| data set | space | exact match % | Hamming | log-loss | standard error | seconds of processor |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    curves = []
    for name, C in CS.items():
        X, Y, X_test, Y_test = parts(name)
        MLRHClassifier(C=C, label_space="open").fit(X, Y)  # loads the compiled code
        for title, options in SPACES.items():
            start = time.process_time()
            model = MLRHClassifier(C=C, **options).fit(X, Y)
            seconds = time.process_time() - start
            d, losses = model.distribution(X_test), losses_of(model, X_test, Y_test)
            right, wrong = (d.mode() == Y_test).all(axis=1).mean(), ((d.marginals() > 0.5) != Y_test).mean()
            error = losses.std() / np.sqrt(len(losses))
            values = f"{100 * right:.1f} | {wrong:.4f} | {losses.mean():.3f} | {error:.3f} | {seconds:.2f}"
            print(f"| {name} | {title} | {values} |", flush=True)
        curve = {
            strength: losses_of(
                MLRHClassifier(C=C, label_space="open", set_bias_strength=strength).fit(X, Y), X_test, Y_test
            )
            for strength in STRENGTHS
        }
        chosen, best = model.set_bias_strength_, min(curve, key=lambda strength: curve[strength].mean())
        error = curve[best].std() / np.sqrt(len(Y_test))
        values = " | ".join(f"{curve[strength].mean():.3f}" for strength in STRENGTHS)
        curves.append(f"| {name} | {values} | {chosen:g} | {best:g} | {error:.3f} |")
    print(
        "\n| data set | "
        + " | ".join(f"{strength:g}" for strength in STRENGTHS)
        + " | chosen | best | standard error |"
    )
    print("| --- |" + " --- |" * (len(STRENGTHS) + 3))
    print("\n".join(curves))


def losses_of(model, X, Y):
    return -np.maximum(model.distribution(X).log_prob(Y), np.log(1e-6))


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # labels and sizes that the training rows of a set lack
    main()
