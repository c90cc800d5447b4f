"""Digit scenes with a hierarchy of their own: labels such as "odd" above the digits, learned flat or as a forest.

Run it with `python examples/hierarchy.py`.
"""

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import StandardScaler

from mlrh import MLRHClassifier, decisions
from mlrh.data import load_digit_scenes
from mlrh.metrics import broken_share, hierarchical_f1, with_ancestors
from mlrh.spaces import HierarchySpace

ABOVE = ("odd", "even", "odd prime", "power of two")
PARENTS = {"odd prime": "odd", "power of two": "even"}
PARENTS |= {f"digit {digit}": "odd" for digit in (1, 9)} | {f"digit {digit}": "odd prime" for digit in (3, 5, 7)}
PARENTS |= {f"digit {digit}": "even" for digit in (0, 6)} | {f"digit {digit}": "power of two" for digit in (2, 4, 8)}


def main(n_train=2000, n_test=1000, C=0.1):
    train, test = load_digit_scenes(n_train, part="train"), load_digit_scenes(n_test, part="test")
    names = [*train.label_names, *ABOVE]
    parents = np.array([names.index(PARENTS[name]) if name in PARENTS else -1 for name in names])
    scaler = StandardScaler().fit(train.X)
    X, X_test = scaler.transform(train.X), scaler.transform(test.X)
    Y, Y_test = (with_ancestors(np.pad(part.Y, [(0, 0), (0, len(ABOVE))]), parents) for part in (train, test))
    separate = OneVsRestClassifier(LogisticRegression(C=C, max_iter=1000)).fit(X, Y).predict(X_test)
    answers = {"one LR per label": separate, "one LR per label, ancestors added": with_ancestors(separate, parents)}
    spaces = {"flat MLRH": "cardinality", "MLRH, hierarchy": HierarchySpace(parents)}
    spaces["MLRH, hierarchy, 1 to 3 leaves"] = HierarchySpace(parents, 1, 3)
    for name, space in spaces.items():
        distribution = MLRHClassifier(label_space=space, C=C).fit(X, Y).distribution(X_test)
        answers[f"{name}, for exact match"] = decisions.exact_match(distribution)
        answers[f"{name}, for F1"] = decisions.f1(distribution)
    for_f1 = answers["flat MLRH, for F1"]
    answers["flat MLRH, for F1, ancestors added"] = with_ancestors(for_f1, parents)
    print(f"{n_train} scenes to learn from, {n_test} to test; {len(names)} labels, {len(PARENTS)} with a parent.\n")
    print(f"{'':47}  hierarchical F1  exact match  break the hierarchy")
    for name, sets in answers.items():
        figures = hierarchical_f1(Y_test, sets, parents), (sets == Y_test).all(axis=1).mean()
        print(f"{name:47}  {figures[0]:15.3f}  {figures[1]:11.3f}  {broken_share(sets, parents):19.3f}")


if __name__ == "__main__":
    main()
