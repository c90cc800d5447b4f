"""Logarithms of sums over label sets where some terms may be 0, with derivatives that are never NaN.

The logarithm of 0 is -inf, and a difference of two of them NaN. So within a computation it is a number that is low
beyond all scores: its exponential is 0, and so are the derivatives through it.
"""

import torch

from mlrh.torch._eager.dispatch import working_dtype

# Far below all scores of the type, and a sum of thousands of them is still in its range (3e38 and 1e308).
LOG_ZERO = {torch.float32: -1e34, torch.float64: -1e200}


def log_zero(values):
    """What stands for the logarithm of 0 in the type of these values."""
    return LOG_ZERO[values.dtype]


def finite(scores):
    """Scores in float32 at least, those of impossible labels, -inf, as the low number."""
    scores = scores.to(working_dtype(scores))
    return scores.masked_fill(scores == -torch.inf, log_zero(scores))


def with_minus_inf(log_sums):
    """Logarithms of sums, -inf where a sum is 0."""
    return log_sums.masked_fill(log_sums < log_zero(log_sums) / 2, -torch.inf)


def first_max(terms, dim):
    """The largest along a dimension; of equal ones the derivative is that of the first."""
    return terms.gather(dim, terms.argmax(dim, keepdim=True)).squeeze(dim)


def log_add(first, second):
    """log(exp(first) + exp(second)); torch.logaddexp has second derivatives of NaN where one of them is low."""
    return torch.stack((first, second)).logsumexp(0)
