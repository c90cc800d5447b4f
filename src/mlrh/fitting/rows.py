"""The training rows of an objective: sums over rows of loss, gradient and curvature, at any parameters.

An objective is a sum over rows plus penalties. It asks its rows for these sums only; here the rows lie in memory. The
loss is

    sum_i weight_i [log Z(x_i) - sum_k y_ik s_k(x_i) - b(y_i)]

Where labels of a row are unknown, log Z(x_i | known) is subtracted from log Z instead: the logarithm of the sum over
the sets that agree with the row.
"""

import numpy as np

from mlrh._indicators import UNKNOWN


class RowsInMemory:
    """Features and label sets of the rows, (n_samples, ...).

    Parameters
    ----------
    design : Design
    space : LabelSpace
    Y : array of shape (n_samples, n_labels), int8
        Of 1, 0 and UNKNOWN; every row agrees with a set of the space.
    """

    def __init__(self, design, space, Y):
        self.design, self._space = design, space
        weights = design.weights
        self.label_totals, self.known_totals = weights @ (Y == 1), weights @ (Y != UNKNOWN)
        is_complete = (Y != UNKNOWN).all(axis=1)
        self._partly_known = np.flatnonzero(~is_complete)
        self._given = space.given(Y[self._partly_known]) if len(self._partly_known) else None
        # Complete rows as they are, zeros in the others: `_loss_and_gradient` corrects these.
        self.Y = Y if self._given is None else np.where(is_complete[:, None], Y, 0).astype(Y.dtype)
        self.bias_counts = space.bias_counts(Y[is_complete], weights[is_complete])
        # None where all weights are 1, which spares multiplying by them.
        self._weights = weights if np.ptp(weights) > 0 or weights[0] != 1 else None
        self._targets = self._pull_back(self.Y.astype(design.X.dtype))

    @property
    def are_complete(self):
        """Whether every label of every row is known."""
        return self._given is None

    def loss_and_gradient(self, space, coef, intercept):
        """The loss of all rows, and its gradients in coef, intercept and the biases of the space.

        The gradient in scores is marginals - Y. In partly known rows, Y is replaced by the marginals given what is
        known.
        """
        scores, expectations = self._expectations(space, coef, intercept)
        if self._given is None:
            scores = None  # frees memory as large as the marginals
        return self._loss_and_gradient(space, coef, intercept, scores, expectations)

    def score_of_truth(self, coef, intercept):
        """sum_i weight_i sum_k y_ik s_k(x_i) over complete rows, from X'Y, which is computed only once."""
        target_coef, target_intercept = self._targets
        return float(coef.ravel() @ target_coef.ravel() + intercept @ target_intercept)

    def with_curvatures(self, space, coef, intercept):
        """`loss_and_gradient`, and (curvatures of scores, misfit, curvatures of biases).

        The curvatures of scores (n_samples, n_labels) are the labels' variances times the weights, as if nothing were
        known of a row. Misfit (n_samples, n_labels) is how much the secant curvature of `_secants` exceeds them: much,
        where a label is a surprise. The curvatures of biases (n_biases,) are their means, which bound the variances.
        """
        scores, expectations = self._expectations(space, coef, intercept)
        _, marginals, bias_mean = expectations
        variances = marginals * (1 - marginals)
        result = self._loss_and_gradient(space, coef, intercept, scores, expectations)  # marginals are now residuals
        misfit = np.maximum(_secants(scores, marginals) - variances, 0)
        return result, (self._weighted(variances), self._weighted(misfit), bias_mean)

    def curvatures(self, space, coef, intercept):
        """Sum of the variances and the misfit of `with_curvatures`, (n_samples, n_labels), without the loss."""
        scores, (_, marginals, _) = self._expectations(space, coef, intercept)
        variances = marginals * (1 - marginals)
        marginals -= self.Y
        return self._weighted(np.maximum(variances, _secants(scores, marginals), out=variances))

    def coupled_metric(self, space, coef, intercept, **options):
        """The `coupled_metric` of the space at the parameters, as if every label were known."""
        return space.coupled_metric(self.design.scores(coef, intercept), self.design.weights, **options)

    def hessian(self, space, coef, intercept):
        """The function (d_coef, d_intercept, d_bias) -> the Hessian times these, in the same three parts."""
        scores, weights, rows = self.design.scores(coef, intercept), self.design.weights, self._partly_known
        given = self._given_in(space)
        curvature = space.curvature_at(scores, weights)
        of_known = None if given is None else given.curvature_at(scores[rows], weights[rows])

        def product(d_coef, d_intercept, d_bias):
            d_scores = self.design.scores(d_coef, d_intercept)
            d_marginals, d_bias_mean = curvature(d_scores, d_bias)
            if of_known is not None:
                # The gradient is marginals - marginals given what is known: so is its derivative.
                d_expected, d_known = of_known(d_scores[rows], d_bias)
                d_marginals[rows] -= d_expected
                d_bias_mean = d_bias_mean - d_known
            return *self._pull_back(d_marginals), d_bias_mean

        return product

    def _expectations(self, space, coef, intercept):
        """Scores (n_samples, n_labels), and the `expectations` of the space at them."""
        scores = self.design.scores(coef, intercept)
        return scores, space.expectations(scores, self.design.weights)

    def _loss_and_gradient(self, space, coef, intercept, scores, expectations):
        """`loss_and_gradient`; changes the marginals among the expectations into residuals, in place."""
        log_partition, marginals, bias_mean = expectations
        weights = self.design.weights
        loss = weights @ log_partition.astype(np.float64) - self.score_of_truth(coef, intercept)
        loss -= space.bias @ self.bias_counts
        marginals -= self.Y
        bias_mean = bias_mean - self.bias_counts
        if self._given is not None:
            rows = self._partly_known
            log_known, expected, known_bias_mean = self._given_in(space).expectations(scores[rows], weights[rows])
            loss -= weights[rows] @ log_known.astype(np.float64)
            marginals[rows] -= expected
            bias_mean = bias_mean - known_bias_mean
        return float(loss), *self._pull_back(marginals), bias_mean

    def _given_in(self, space):
        """The space given what is known of the partly known rows; None if there are none."""
        if self._given is None or space is self._space:
            return self._given
        return self._given.rebiased(space.bias)

    def _pull_back(self, residuals):
        """Gradients in coef and intercept, from the gradients in the scores per unit of weight."""
        return self.design.pull_back(self._weighted(residuals))

    def _weighted(self, values):
        return values if self._weights is None else values * self._weights[:, None].astype(values.dtype)


def _secants(scores, residuals):
    """|residual| / (|score| + 2): the curvature of the parabola whose minimum lies a step of |score| + 2 away.

    A wrong label has a residual near 1 and a variance near 0, and its score must cross 0: by the variance alone, the
    step would be far too long. The residuals are changed.
    """
    distances = np.abs(scores)
    distances += 2
    return np.divide(np.abs(residuals, out=residuals), distances, out=distances)
