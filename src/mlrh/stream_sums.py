"""What a stream remembers of rows that it has not kept: sums over them, the best parameters, and steps of a pass.

Plain records; knows nothing of models and of when rows come.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Tally:
    """Sums over rows; the checksum is the same for the same rows and weights in any order.

    squares are those of the features (n_features,). loss and gradient are those of the rows, kept only where rows are
    left out of the sample: a further pass has both at the same parameters for all its rows, rows that count have the
    gradient at those of the stream, but losses that date from when each row was shown, which nothing reads.
    """

    n_rows: int = 0
    weight: float = 0.0
    checksum: int = 0
    squares: Any = 0.0
    loss: float = 0.0
    gradient: Any = 0.0

    def plus(self, other):
        """Both together."""
        sums = {name: value + getattr(other, name) for name, value in vars(self).items()}
        return Tally(**{**sums, "checksum": sums["checksum"] % 2**64})

    def minus(self, other):
        """These without others that are among them."""
        sums = {name: value - getattr(other, name) for name, value in vars(self).items()}
        return Tally(**{**sums, "checksum": sums["checksum"] % 2**64})


@dataclass(frozen=True)
class Best:
    """The parameters with the lowest objective that a whole pass has found, and the gradient of the loss there."""

    objective: float = np.inf
    parameters: Any = None
    gradient: Any = None


@dataclass(frozen=True)
class Steps:
    """A pass in steps: the mean of the parameters stepped to, and a minibatch, the rows shown since the last step.

    Of the minibatch it holds the weight, the loss at the best parameters, by how much the loss where the last step led
    exceeds its tangent at the best ones, and the change of the gradient between the two.
    """

    is_on: bool = False
    n_taken: int = 0
    mean: Any = None
    weight: float = 0.0
    loss: float = 0.0
    excess: float = 0.0
    change: Any = 0.0

    def with_rows(self, best: Tally, loss, gradient, moved):
        """The steps after rows with these sums at the best parameters, this loss and gradient where they have moved."""
        return replace(
            self,
            weight=self.weight + best.weight,
            loss=self.loss + best.loss,
            excess=self.excess + loss - best.loss - float(best.gradient @ moved),
            change=self.change + gradient - best.gradient,
        )

    def begun_again(self):
        """The steps before any row of the next minibatch."""
        return Steps(self.is_on, self.n_taken, self.mean)

    def with_step(self, parameters):
        """The steps with one more in the mean: the n-th counts n times as much as the first."""
        n = self.n_taken + 1
        mean = parameters if n == 1 else self.mean + (parameters - self.mean) * (2 / (n + 1))
        return replace(self, n_taken=n, mean=mean)

    def without_step(self, parameters):
        """The steps whose mean is at least these parameters, until one is taken."""
        return replace(self, mean=parameters if self.n_taken == 0 else self.mean)
