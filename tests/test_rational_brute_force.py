"""Every answer of a distribution against exact sums over all sets, for random spaces and numbers up to 1e100."""

import numpy as np
import pytest

from tests.fuzz import spaces

SEEDS = range(12)  # the fuzzer, among the slow tests, tries as many as twenty seconds allow


@pytest.mark.parametrize("name", spaces.SPACES)
def test_every_answer_equals_the_exact_sum_over_all_sets(name):
    for seed in SEEDS:
        spaces.check_case(spaces.SPACES[name], np.random.default_rng(seed))
