"""What each decision gains on its own metric over thresholding marginals at 1/2, on scene, emotions and yeast.

Run it with `python docs/decisions/gains.py`, with the data sets at hand; it takes several minutes. Five outer folds
(shuffled, seed 0), standardised features, RBF kernel; C and gamma by 3 inner folds and the log-loss of the set.
"""

import numpy as np
from joblib import Parallel, delayed
from sklearn.model_selection import KFold
from sklearn.preprocessing import StandardScaler

from mlrh import KernelMLRHClassifier, decisions
from mlrh.data import load
from mlrh.estimators.cv import best_index, validation_scores
from mlrh.estimators.kernel import gamma_scale
from mlrh.metrics import evaluate

CS, GAMMAS = (1.0, 10.0, 100.0), (0.3, 1.0)
METRICS = {"exact_match": "exact_match", "f1": "f1_example", "jaccard": "jaccard", "hamming": "hamming_loss"}


def log_prob(model, X, Y):
    return float(np.maximum(model.distribution(X).log_prob(Y), np.log(1e-6)).mean())


def measured(name, label_space, fold):
    """{decision: {metric: value}} on one outer fold."""
    data = load(name)
    train, test = list(KFold(5, shuffle=True, random_state=0).split(data.X))[fold]
    scaler = StandardScaler().fit(data.X[train])
    X, Y = scaler.transform(data.X[train]), data.Y[train]
    model = KernelMLRHClassifier(label_space=label_space, size_bias=label_space == "cardinality", n_jobs=1)
    settings = [{"gamma": gamma * gamma_scale(X)} for gamma in GAMMAS]
    inner = list(KFold(3, shuffle=True, random_state=0).split(X))
    scores = validation_scores(model, X, Y, Cs=CS, settings=settings, splits=inner, scorers=[log_prob])[0]
    setting, C = best_index(scores)
    distribution = model.set_params(C=CS[C], **settings[setting]).fit(X, Y).distribution(scaler.transform(data.X[test]))
    return {decision: evaluate(data.Y[test], decisions.BY_NAME[decision](distribution)) for decision in METRICS}


def main():
    print("| data | label space | metric | marginals above 1/2 | own decision | gain |")
    print("| --- | --- | --- | ---: | ---: | ---: |")
    for name in ("scene", "emotions", "yeast"):
        for label_space in ("cardinality", "observed"):
            folds = Parallel(n_jobs=-1)(delayed(measured)(name, label_space, fold) for fold in range(5))
            for decision in ("exact_match", "f1", "jaccard"):
                metric = METRICS[decision]
                plain, own = (np.array([fold[d][metric] for fold in folds]) for d in ("hamming", decision))
                gain = own - plain
                print(
                    f"| {name} | {label_space} | {metric} | {plain.mean():.3f} | {own.mean():.3f} | "
                    f"{gain.mean():+.3f} ± {gain.std(ddof=1):.3f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
