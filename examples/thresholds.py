"""Thresholds for the metric you care about, around a classifier of scikit-learn: digits in scenes of overlaid digits.

Run it with `python examples/thresholds.py`.
"""

from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mlrh.data import load_digit_scenes
from mlrh.estimators.thresholds import TunedThresholds
from mlrh.metrics import evaluate

METRICS = ("f1_macro", "f1_micro", "f1_example", "jaccard", "exact_match")

LEGEND = """
at 1/2     every label more likely than not, on the test scenes
common     the best threshold for all labels, on the test scenes
per label  one threshold for each label, on the test scenes
promised   what the thresholds per label reach in cross validation when each fold's come from the other folds
spread     standard deviation of that over the folds
"""


def main(n_train=400, n_test=600):
    train = load_digit_scenes(n_train, part="train")
    test = load_digit_scenes(n_test, part="test")
    plain = make_pipeline(StandardScaler(), OneVsRestClassifier(LogisticRegression(C=0.1)))
    default = evaluate(test.Y, plain.fit(train.X, train.Y).predict(test.X))
    print(f"one-vs-rest logistic regression, {n_train} scenes to fit, {n_test} to test\n")
    print(f"{'':<12}  at 1/2  common  per label  promised  spread")
    for metric in METRICS:
        common, own = (
            TunedThresholds(plain, metric=metric, per_label=per_label).fit(train.X, train.Y)
            for per_label in (False, True)
        )
        on_test = [evaluate(test.Y, model.predict(test.X))[metric] for model in (common, own)]
        promised = f"{own.honest_score_:>8.3f}  {own.score_spread_:>6.3f}"
        print(f"{metric:<12}  {default[metric]:>6.3f}  {on_test[0]:>6.3f}  {on_test[1]:>9.3f}  {promised}")
    print(LEGEND)
    print(f"thresholds for {metric}: {common.common_threshold_:.2f} for all, or per digit")
    for digit, threshold in enumerate(own.thresholds_):
        print(f"    {digit}  {threshold:.2f}")


if __name__ == "__main__":
    main()
