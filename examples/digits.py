"""Find the digits in scenes of one to three overlaid digits: MLRH against one logistic regression per label.

Run it with `python examples/digits.py`.
"""

import time

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, hamming_loss
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mlrh import KernelMLRHClassifier, MLRHClassifier
from mlrh.data import load_digit_scenes

REFERENCE, FILLED = "one-vs-rest LR", "one-vs-rest LR, never empty"
LINEAR, HAMMING = "MLRH linear", "MLRH linear, for Hamming"
KERNEL, OBSERVED = "MLRH kernel (RBF)", "MLRH kernel, observed sets"

# C and gamma have the best mean exact match (of equals, the smaller log-loss) in 4-fold cross validation, KFold(4,
# shuffle=True, random_state=0), on load_digit_scenes(2000, part="train"); no test scene had a say. The grids: C in 0.1,
# 1, 10, 100 for the reference; in 0.003, 0.01, 0.03, 0.1, 0.3, 1 for the linear model; in 10, 30, 100, 300 for the
# kernel, with 64 gamma in 0.25, 0.5, 1; in 10, 30, 100 for observed sets, with 64 gamma in 0.5, 1, 1.5.
CLASSIFIERS = {
    REFERENCE: OneVsRestClassifier(LogisticRegression(C=100, max_iter=5000)),
    FILLED: OneVsRestClassifier(LogisticRegression(C=100, max_iter=5000)),
    LINEAR: MLRHClassifier(C=0.1, size_bias=True),
    HAMMING: MLRHClassifier(C=0.1, size_bias=True, decision="hamming"),
    KERNEL: KernelMLRHClassifier(C=100, gamma=1 / 64, size_bias=True),
    OBSERVED: KernelMLRHClassifier(C=100, gamma=0.5 / 64, label_space="observed"),
}

LEGEND = """
exact match   share of scenes whose set is found exactly; what MLRH predicts for by default
Hamming loss  share of wrong labels; what one-vs-rest and decision="hamming" predict for
empty         share of predictions without any label
log-loss      mean of -log P(true set); inf where a test scene shows a set that training never did,
              which the observed label space takes to be impossible
"""


def main(n_train=2000, n_test=1000, *, scene=7):
    train = load_digit_scenes(n_train, part="train")
    test = load_digit_scenes(n_test, part="test")
    print(f"{n_train} scenes to fit, {n_test} to test, from different source images of the digits\n")
    compile_numerics(train)
    print(f"{'':<27}  exact match  Hamming loss  empty  log-loss  fit seconds")
    models = {name: fit_and_report(name, train, test) for name in CLASSIFIERS}
    print(LEGEND)
    # Scene 7 was picked by hand because its likely sets differ in size; by the table, about every second goes wrong.
    show_scene(models[KERNEL], test, scene)


def compile_numerics(data):
    """The first fit ever compiles the numerics and keeps them; this keeps that out of the seconds reported."""
    MLRHClassifier(size_bias=True, tol=1.0).fit(data.X[:100], data.Y[:100])


def fit_and_report(name, train, test):
    """The fitted pipeline, after a line of the table about it."""
    model = make_pipeline(StandardScaler(), CLASSIFIERS[name])
    start = time.perf_counter()
    model.fit(train.X, train.Y)
    seconds = time.perf_counter() - start
    predicted = predict(name, model, test.X)
    exact_match, hamming = accuracy_score(test.Y, predicted), hamming_loss(test.Y, predicted)
    empty, log_loss = (predicted.sum(axis=1) == 0).mean(), -log_prob(model, test).mean()
    print(f"{name:<27}  {exact_match:>11.3f}  {hamming:>12.3f}  {empty:>5.3f}  {log_loss:>8.3f}  {seconds:>11.2f}")
    return model


def predict(name, model, X):
    """What the model predicts; FILLED takes the most probable label where one-vs-rest answers with none."""
    predicted = model.predict(X)
    if name == FILLED:
        empty = ~predicted.any(axis=1)
        predicted[empty, model.predict_proba(X)[empty].argmax(axis=1)] = 1
    return predicted


def log_prob(model, data):
    """Log-probability of each true set (n_samples,); one-vs-rest takes the labels as independent."""
    classifier, X = model[-1], model[:-1].transform(data.X)
    if isinstance(classifier, OneVsRestClassifier):
        return -np.logaddexp(0, (1 - 2 * data.Y) * classifier.decision_function(X)).sum(axis=1)
    return classifier.distribution(X).log_prob(data.Y)


def show_scene(model, data, row):
    """The scene as text, its digits, the three sets the model finds most probable, and the marginals."""
    X = model[:-1].transform(data.X[row : row + 1])
    distribution = model[-1].distribution(X)
    sets, log_probs = distribution.top_sets(3)
    print(f"Test scene {row} with the digits {as_text(data.Y[row])}, seen by {KERNEL}:\n")
    for line in data.X[row].reshape(8, 8):
        print("    " + "".join(" .:-=+*#%@"[round(9 * pixel / 16)] * 2 for pixel in line))
    print("\nmost probable sets")
    for labels, log_probability in zip(sets[0], log_probs[0], strict=True):
        print(f"    {as_text(labels):<10} {np.exp(log_probability):.3f}")
    print(f"the true set has {np.exp(distribution.log_prob(data.Y[row : row + 1])[0]):.3f}")
    print("\nprobability that a digit is present")
    for digit, marginal in enumerate(distribution.marginals()[0]):
        print(f"    {digit}  {marginal:.3f}  {'#' * round(40 * marginal)}")


def as_text(labels):
    return "{" + ", ".join(map(str, np.flatnonzero(labels))) + "}"


if __name__ == "__main__":
    main()
