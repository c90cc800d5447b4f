"""Compiled entropies of a few outcomes, exact also where one of them is nearly certain; knows nothing of labels."""

import math

import numpy as np

from mlrh._parallel import kernel


@kernel
def entropy_of_pmf(pmf):
    """Entropy in nats of probabilities; the likeliest enters by the sum of the others, which keeps it exact."""
    likeliest = np.argmax(pmf)
    result, others = 0.0, 0.0
    for j in range(pmf.shape[0]):
        if j != likeliest and pmf[j] > 0:
            result -= pmf[j] * math.log(pmf[j])
            others += pmf[j]
    return result - pmf[likeliest] * math.log1p(-others)


@kernel
def entropy_of_choice(less_likely):
    """Entropy in nats of two outcomes, by the probability of the less likely one."""
    if less_likely == 0.0:
        return 0.0
    return -less_likely * math.log(less_likely) - (1.0 - less_likely) * math.log1p(-less_likely)
