"""What partial_fit costs where its memory holds only a sample of the rows: the objective on all rows, beside fit's.

    MLRH_DATA=FOLDER python docs/partial-fit/cost.py

prints the table of docs/how-to-choose.md: rows shown in calls of 500, C=1, a budget that holds a share of them.
"""

import numpy as np
from scipy import sparse
from sklearn.preprocessing import StandardScaler

from mlrh import MLRHClassifier
from mlrh.data import load
from mlrh.estimators import linear
from mlrh.fitting import Design, Objective

SHARES = (1.01, 0.6, 0.3, 0.15)  # of the bytes of all rows; the sample is halved until it fits


def main():
    for name in ("yeast", "tmc2007-500"):
        data = load(name, part="train")
        order = np.random.RandomState(0).permutation(len(data.Y))
        X, Y = data.X[order], data.Y[order]
        X = X if sparse.issparse(X) else StandardScaler().fit_transform(X)
        fitted = MLRHClassifier().fit(X, Y)
        design = Design(X, np.ones(len(Y)), fit_intercept=True)
        objective = Objective(design, fitted.label_space_, Y, alpha=1.0)
        for share in SHARES:
            linear.MAX_BYTES = share * n_bytes(X, Y)
            model = MLRHClassifier()
            for start in range(0, len(Y), 500):
                part = slice(start, start + 500)
                model.partial_fit(X[part], Y[part], classes=range(Y.shape[1]))
            mean_score = model.intercept_ + design.mean @ model.coef_.T
            value = objective.value(objective.start_from(model.coef_.T, mean_score, np.zeros(0)))
            print(
                f"{name}: {model.n_samples_kept_:,} of {len(Y):,} rows kept, {value / fitted.objective_ - 1:.1%} above"
            )


def n_bytes(X, Y):
    parts = (X.data, X.indices, X.indptr) if sparse.issparse(X) else (X,)
    return sum(part.nbytes for part in (*parts, Y)) + 16 * len(Y)


if __name__ == "__main__":
    main()
