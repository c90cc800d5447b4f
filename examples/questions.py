"""Ask a fitted model about its label sets, and watch the other digits move as one of them is confirmed.

Run it with `python examples/questions.py`.
"""

import numpy as np
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mlrh import MLRHClassifier
from mlrh.data import load_digit_scenes


def main(n_train=2000, n_test=500):
    train = load_digit_scenes(n_train, part="train")
    test = load_digit_scenes(n_test, part="test")
    model = make_pipeline(StandardScaler(), MLRHClassifier(C=0.1, size_bias=True)).fit(train.X, train.Y)
    distribution = model[-1].distribution(model[:-1].transform(test.X))
    row = ask(distribution, test.Y)
    confirm(distribution, test.Y, row)


def ask(distribution, Y):
    """Print answers about the scene whose set is most uncertain; returns its row."""
    entropy = distribution.entropy()
    row = int(np.argmax(entropy))
    predicted = distribution.mode()
    print(f"The most uncertain of {len(Y)} scenes is number {row}, with an entropy of {entropy[row]:.2f} nats.")
    print(f"true digits               {as_text(Y[row])}")
    print(f"most probable set         {as_text(predicted[row])}")
    print(f"  is exactly right        {distribution.prob(predicted)[row]:.3f}")
    print(f"  its expected F1         {distribution.expected('f1', predicted)[row]:.3f}")
    print(f"two digits or more        {distribution.size_tail(2)[row]:.3f}")
    print(f"at least one of 0, 6, 8   {distribution.any_of([0, 6, 8])[row]:.3f}")
    print(f"both 3 and 5              {distribution.joint_marginals()[row, 3, 5]:.3f}")
    return row


def confirm(distribution, Y, row):
    """Print the marginals of a scene before and after its first true digit is confirmed, and what all scenes gain."""
    first = np.argmax(Y, axis=1)
    known = np.full(Y.shape, np.nan)
    known[np.arange(len(Y)), first] = 1
    given = distribution.condition(known)
    print(f"\nA person confirms the {first[row]}:\n\ndigit  before  after")
    for digit, (before, after) in enumerate(zip(distribution.marginals()[row], given.marginals()[row], strict=True)):
        print(f"{digit:>5}  {before:>6.3f}  {after:>5.3f}")
    right = [(d.mode() == Y).all(axis=1).mean() for d in (distribution, given)]
    entropy = [d.entropy().mean() for d in (distribution, given)]
    print(f"\nAll scenes, one true digit confirmed: exact match {right[0]:.3f} -> {right[1]:.3f}, ", end="")
    print(f"mean entropy {entropy[0]:.2f} -> {entropy[1]:.2f} nats")


def as_text(labels):
    return "{" + ", ".join(map(str, np.flatnonzero(labels))) + "}"


if __name__ == "__main__":
    main()
