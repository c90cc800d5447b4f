"""Answer only where it is safe: calibrated confidence in whole label sets, on scenes of one to three overlaid digits.

Run it with `python examples/confidence.py`.
"""

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mlrh import KernelMLRHClassifier
from mlrh.data import load_digit_scenes
from mlrh.estimators.calibration import CalibratedSets
from mlrh.metrics import expected_calibration_error, reliability, risk_coverage

# C and gamma as in examples/digits.py: chosen there by cross validation on training scenes.
CLASSIFIERS = {
    "one-vs-rest LR": OneVsRestClassifier(LogisticRegression(C=100, max_iter=5000)),
    "MLRH kernel (RBF)": KernelMLRHClassifier(C=100, gamma=1 / 64, size_bias=True),
}

LEGEND = """
error  expected calibration error on test scenes over 15 bins: mean distance of confidence from the share of right sets
area   under the risk-coverage curve: mean share of wrong sets if only the most confident are answered, lower is better
"""


def main(n_train=1500, n_test=2000, *, risk=0.3):
    train, test = load_digit_scenes(n_train, part="train"), load_digit_scenes(n_test, part="test")
    print(f"{n_train} scenes to fit and calibrate, {n_test} to test\n")
    print(f"{'':<18}  exact match  calibration   error  error in cross validation  area")
    models = [model for name in CLASSIFIERS for model in fit_and_report(name, train, test)]
    best = min(models[-2:], key=lambda model: model.calibration_error_)
    print(LEGEND)
    print(f"The kernel model, calibrated by method={best.method!r} for its lower error in cross validation:")
    confidence, right = best.confidence(test.X), is_right(best, test)
    show_reliability(confidence, right)
    show_risk_coverage(confidence, right)
    answer(best, test, risk)


def fit_and_report(name, train, test):
    """The classifier calibrated by both methods, after lines of the table about it."""
    models = [
        CalibratedSets(make_pipeline(StandardScaler(), CLASSIFIERS[name]), method=method).fit(train.X, train.Y)
        for method in ("temperature", "isotonic")
    ]
    by_temperature, right = models[0], is_right(models[0], test)
    raw = by_temperature.distribution(test.X).temper(1 / by_temperature.temperature_).prob(models[1].predict(test.X))
    report(name, right, "none", np.minimum(raw, 1.0), by_temperature.raw_calibration_error_)
    for model in models:
        report(name, right, model.method, model.confidence(test.X), model.calibration_error_)
    return models


def report(name, right, method, confidence, in_cross_validation):
    error, area = expected_calibration_error(confidence, right), risk_coverage(confidence, right).area
    print(f"{name:<18}  {right.mean():>11.3f}  {method:<11}  {error:>6.3f}  {in_cross_validation:>25.3f}  {area:.3f}")


def is_right(model, data):
    return (model.predict(data.X) == data.Y).all(axis=1)


def show_reliability(confidence, right):
    bins = reliability(confidence, right, n_bins=8)
    print("\nconfidence  right  scenes   (test scenes in bins of nearly equal numbers)")
    for mean, share, count in zip(bins.confidence, bins.share_correct, bins.count, strict=True):
        print(f"{mean:>10.3f}  {share:>5.3f}  {count:>6}   {'#' * round(40 * share)}")


def show_risk_coverage(confidence, right):
    curve = risk_coverage(confidence, right)
    print("\nanswered  wrong   from confidence")
    for share in (0.1, 0.25, 0.5, 0.75, 1.0):
        place = int(np.searchsorted(curve.coverage, share))
        print(f"{curve.coverage[place]:>8.2f}  {curve.risk[place]:>5.3f}   {curve.threshold[place]:.3f}")


def answer(model, test, risk):
    """Answer the scenes above a confidence that was chosen on training scenes, and say how many answers are wrong."""
    print(f"\nNo more than {risk:.0%} of answers wrong, by thresholds from training scenes alone:")
    for assurance in (None, 0.9):
        threshold = model.threshold_for_risk(risk, assurance=assurance)
        selected = model.select(test.X, threshold)
        wrong = (selected.sets != test.Y[selected.rows]).any(axis=1)
        of_them = f"{wrong.mean():.3f} of them wrong" if len(wrong) else "no answer is safe enough"
        how = "as seen in cross validation" if assurance is None else f"assured with {assurance:.0%}"
        print(f"    {how:<28} from {threshold:.3f} on: {len(selected.rows)} answered, {of_them}")


if __name__ == "__main__":
    main()
