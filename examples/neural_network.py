"""Train the same small network with BCEWithLogitsLoss and with MLRHLoss, on digit scenes and on scene.

Run it with `MLRH_DATA=FOLDER python examples/neural_network.py`; without the variable the second data set is left out.
Both losses get the same network, initial weights, batches and number of epochs. The learning rate is chosen for each
figure of the table, seed by seed, from the same grid: the best by the same decision and metric on a fifth of the
training rows after training on the others; of equals, the one with the smaller log-loss there. Then the network is
trained on all of them. (One rate for all metrics would be unfair: the best by exact match overfits the log-loss.)
"""

import os
from functools import cache

import torch

from mlrh.data import load, load_digit_scenes
from mlrh.torch import CardinalitySpace, MLRHLoss, decide

LEARNING_RATES = (3e-4, 1e-3, 3e-3, 1e-2)
BCE, JOINT = "BCE", "MLRHLoss"
# loss, whether sizes are kept to 1..M, decision
ROWS = {
    "BCE, above 1/2": (BCE, False, "hamming"),
    "BCE, likeliest of 1..M labels": (BCE, True, "exact_match"),
    "BCE kept to 1..M, for F1": (BCE, True, "f1"),
    "MLRHLoss, likeliest set": (JOINT, True, "exact_match"),
    "MLRHLoss, for Hamming": (JOINT, True, "hamming"),
    "MLRHLoss, for F1": (JOINT, True, "f1"),
}
METRICS = ("exact match", "Hamming loss", "F1", "empty", "log-loss")
SIGNS = torch.tensor([1.0, -1.0, 1.0, -1.0, -1.0])  # what is better by a metric has the higher product
CHOSEN_BY = (0, 1, 2, 0, 4)  # the metric on which a figure's learning rate is chosen: that of "empty" by exact match

LEGEND = """
Mean and standard deviation over the seeds.
exact match   share of rows whose set is found exactly
Hamming loss  share of wrong labels
F1            mean over rows of 2 tp / (2 tp + fp + fn)
empty         share of predictions without any label, at the learning rate for exact match
log-loss      mean of -log P(true set); above 1/2, BCE takes labels as independent; kept to 1..M labels, its logits
              are the scores of the joint model
"""


def main(n_train=2000, n_test=1196, *, n_seeds=10, n_epochs=40):
    """Print a table for each data set; scene has 1211 rows to train and 1196 to test."""
    torch.set_num_threads(1)
    train, test = load_digit_scenes(n_train, part="train"), load_digit_scenes(n_test, part="test")
    compare("digits", as_tensors(train, test, n_train, n_test), n_seeds, n_epochs)
    if os.environ.get("MLRH_DATA"):
        train, test = load("scene", part="train"), load("scene", part="test")
        compare("scene", as_tensors(train, test, n_train, n_test), n_seeds, n_epochs)
    else:
        print("The variable MLRH_DATA names no folder with the public data sets: scene is left out.\n")
    print(LEGEND)


def compare(name, tensors, n_seeds, n_epochs):
    """Print the table of one data set."""
    X, Y, X_test, _ = tensors
    max_labels = int(Y.sum(1).max())
    print(
        f"{name}: {len(X)} rows to train, {len(X_test)} to test, {Y.shape[1]} labels, sets of 1 to {max_labels} labels"
    )
    results: dict = {row: [] for row in ROWS}
    for seed in range(n_seeds):
        for row, values in of_seed(tensors, max_labels, n_epochs, seed).items():
            results[row].append(values)
    print(f"{'':<30}" + "".join(f"  {metric:>15}" for metric in METRICS))
    for row, values in results.items():
        deviation, mean = torch.std_mean(torch.tensor(values), dim=0)
        cells = [f"{m:.3f} ± {d:.3f}" for m, d in zip(mean.tolist(), deviation.tolist(), strict=True)]
        print(f"{row:<30}" + "".join(f"  {cell:>15}" for cell in cells))
    print()


def of_seed(tensors, max_labels, n_epochs, seed):
    """The figures of every row of the table, in the order of METRICS."""
    X, Y, X_test, Y_test = tensors
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed))
    held_out, rest = order[: len(X) // 5], order[len(X) // 5 :]

    @cache
    def tried(loss, rate):
        return trained(loss, X[rest], Y[rest], max_labels, n_epochs, seed, rate)(X[held_out]).detach()

    @cache
    def final(loss, rate):
        return trained(loss, X, Y, max_labels, n_epochs, seed, rate)(X_test).detach()

    def figures(loss, is_joint, decision):
        def values(logits, Y):
            return scores_of(distribution(logits, max_labels, is_joint), decision, Y)

        rates = best_rates([values(tried(loss, rate), Y[held_out]) for rate in LEARNING_RATES])
        return [values(final(loss, rate), Y_test)[metric] for metric, rate in enumerate(rates)]

    return {row: figures(*options) for row, options in ROWS.items()}


def best_rates(tried):
    """The learning rate for each of METRICS, from the metrics of each of LEARNING_RATES on held-out rows."""
    qualities = (torch.tensor(tried) * SIGNS).tolist()

    def best(metric):
        return max(range(len(LEARNING_RATES)), key=lambda i: (qualities[i][metric], qualities[i][-1]))

    return [LEARNING_RATES[best(metric)] for metric in CHOSEN_BY]


def as_tensors(train, test, n_train, n_test):
    """Standardised features and sets of the first rows of both parts, by means and deviations of the training rows."""
    parts = ((train, n_train), (test, n_test))
    X, X_test = (torch.tensor(part.X[:n], dtype=torch.float32) for part, n in parts)
    Y, Y_test = (torch.tensor(part.Y[:n], dtype=torch.float32) for part, n in parts)
    deviation, mean = torch.std_mean(X, dim=0)
    deviation = deviation.clamp(min=1e-6)
    return (X - mean) / deviation, Y, (X_test - mean) / deviation, Y_test


def trained(loss, X, Y, max_labels, n_epochs, seed, rate):
    """The network after n_epochs of Adam in batches of 64."""
    torch.manual_seed(seed)
    network = torch.nn.Sequential(torch.nn.Linear(X.shape[1], 128), torch.nn.ReLU(), torch.nn.Linear(128, Y.shape[1]))
    criterion = MLRHLoss(max_labels) if loss == JOINT else torch.nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(network.parameters(), lr=rate)
    for _ in range(n_epochs):
        for rows in torch.randperm(len(X)).split(64):
            optimizer.zero_grad()
            criterion(network(X[rows]), Y[rows]).backward()
            optimizer.step()
    return network


def distribution(logits, max_labels, is_joint):
    n_labels = logits.shape[1]
    sizes = (1, max_labels) if is_joint else (0, n_labels)
    return CardinalitySpace(n_labels, *sizes).distribution(logits)


def scores_of(d, decision, Y):
    """The metrics of the decision, in the order of METRICS."""
    predicted = decide(d, decision).to(Y.dtype)
    tp, wrong = (predicted * Y).sum(1), (predicted != Y).sum(1)
    f1 = torch.where(tp + wrong == 0, 1.0, 2 * tp / (2 * tp + wrong).clamp(min=1))
    empty = predicted.sum(1) == 0
    values = ((wrong == 0).float(), wrong / Y.shape[1], f1, empty.float(), -d.log_prob(Y))
    return [value.mean().item() for value in values]


if __name__ == "__main__":
    main()
