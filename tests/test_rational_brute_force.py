"""Every answer of a distribution against exact sums over all sets, for random spaces and numbers up to 1e100."""

import pytest

from tests.fuzz import spaces


@pytest.mark.parametrize("name", spaces.SPACES)
def test_every_answer_equals_the_exact_sum_over_all_sets(name, monkeypatch):
    monkeypatch.setattr(spaces, "SPACES", {name: spaces.SPACES[name]})
    assert spaces.run(seconds=2, seed=2) > 0
