"""Train on rows where nobody looked at half of the labels, and compare with the usual ways around it.

Run it with `python examples/unknown_labels.py`.
"""

import numpy as np
from sklearn.preprocessing import StandardScaler

from mlrh import MLRHClassifier
from mlrh.data import load_digit_scenes
from mlrh.metrics import evaluate


def main(n_train=2000, n_test=1000):
    train, test = load_digit_scenes(n_train, part="train"), load_digit_scenes(n_test, part="test")
    scaler = StandardScaler().fit(train.X)
    X, Y = scaler.transform(train.X), train.Y.astype(float)
    Y[np.random.RandomState(0).uniform(size=Y.shape) < 0.5] = np.nan
    complete = ~np.isnan(Y).any(axis=1)
    print(f"{len(Y)} scenes, {np.isnan(Y).mean():.0%} of the entries of Y are NaN; complete rows: {complete.sum()}.\n")
    fits = {
        "known entries, jointly": (X, Y, {"size_bias": True}),
        "known entries, one LR per label": (X, Y, {"min_labels": 0, "max_labels": 10}),
        "NaN filled with 0": (X, np.nan_to_num(Y), {"size_bias": True}),
        "nothing hidden": (X, train.Y, {"size_bias": True}),
    }
    print(f"{'trained on':32}  exact match  log-loss of the set")
    for name, (X_train, Y_train, options) in fits.items():
        model = MLRHClassifier(C=0.1, **options).fit(X_train, Y_train)
        distribution = model.distribution(scaler.transform(test.X))
        measures = evaluate(test.Y, distribution.mode(), distribution.log_prob(test.Y))
        print(f"{name:32}  {measures['exact_match']:11.3f}  {measures['set_log_loss']:19.2f}")


if __name__ == "__main__":
    main()
