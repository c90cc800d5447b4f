"""How long do 1 and 10,000 rows take in an exported model, by onnxruntime, beside our own predict and predict_proba?

Run it with `python -m benchmarks.export [--quick]`. Both use one thread, and the time is that of the processor, which
other work on the machine hardly changes: the median of some turns. The exported model gives label, probabilities, the
probability of the set and sizes at once; ours is asked for the same by `distribution`, `predict`'s decision and `prob`.
Features are standard normal, 72 of them and 6 labels as in emotions, or 100 and 50.
"""

import argparse
import statistics
import time

import numpy as np
import onnxruntime

from benchmarks.timing import quietly
from mlrh import KernelMLRHClassifier, MLRHClassifier, decisions
from mlrh.export import to_onnx

TURNS = 3
SHAPES = ((72, 6), (100, 50))
MODELS = {
    "linear, cardinality": MLRHClassifier(n_jobs=1),
    "linear, cardinality, F1": MLRHClassifier(n_jobs=1, decision="f1"),
    "linear, observed": MLRHClassifier(label_space="observed", n_jobs=1),
    "linear, open": MLRHClassifier(label_space="open", n_jobs=1),
    "RBF of 500 rows, open": KernelMLRHClassifier(label_space="open", n_jobs=1),
}


def main(arguments=None):
    parser = argparse.ArgumentParser("benchmarks.export", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small cases; no figures to cite")
    options = parser.parse_args(arguments)
    print("| scores and label space | labels | rows | ours, ms | onnxruntime, ms | file, kB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for n_features, n_labels in SHAPES[: 1 if options.quick else None]:
        X, Y = problem(n_features, n_labels, n_rows=100 if options.quick else 10_000)
        for name, classifier in MODELS.items():
            model = quietly(classifier.set_params(max_iter=20).fit, X[:500], Y[:500])
            for line in lines(model, X):
                print(f"| {name} | {n_labels} | {line}", flush=True)


def problem(n_features, n_labels, n_rows):
    """Features and sets of one to three labels that follow from them."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, n_features))
    order = np.argsort(-(X @ rng.normal(size=(n_features, n_labels))), axis=1)
    Y = np.zeros((n_rows, n_labels), int)
    np.put_along_axis(Y, order[:, :3], np.arange(3) < rng.integers(1, 4, (n_rows, 1)), axis=1)
    return X, Y


def lines(model, X):
    """Yields the cells of a line for one row and for all rows, where both answer the same."""
    exported = to_onnx(model).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(exported, options)

    def ours(rows):
        distribution = model.distribution(rows)
        sets = decisions.resolve(model.decision)(distribution)
        return sets, distribution.marginals(), distribution.prob(sets), distribution.cardinality_pmf()

    names = ["label", "probabilities", "set_probability", "sizes"]
    for rows in (X[:1], X):
        for own, other in zip(ours(rows), session.run(names, {"X": rows}), strict=True):
            np.testing.assert_allclose(own, other, rtol=0, atol=1e-10)
        own = seconds(lambda rows=rows: ours(rows), len(rows))
        other = seconds(lambda rows=rows: session.run(names, {"X": rows}), len(rows))
        yield f"{len(rows):,} | {1000 * own:.2f} | {1000 * other:.2f} | {len(exported) / 1000:.0f} |"


def seconds(function, n_rows):
    """Seconds of the processor for one call: the median of TURNS, each of 20 calls where there is one row only."""
    calls, turns = 20 if n_rows == 1 else 1, []
    for _ in range(TURNS):
        begin = time.process_time()
        for _ in range(calls):
            function()
        turns.append((time.process_time() - begin) / calls)
    return statistics.median(turns)


if __name__ == "__main__":
    main()
