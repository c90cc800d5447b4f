"""Label spaces from files of less than a megabyte: judged in seconds, however they are made up."""

import time

import numpy as np
import pytest

from mlrh import decisions
from mlrh.spaces import CardinalitySpace, GroupSpace, HierarchySpace

SECONDS = 5  # of processor time; half of what a file may take
HIERARCHY = {"names": None, "is_open": False, "min_leaves": None, "max_leaves": None, "complete": False}
GROUPS = {"names": None, "is_open": False, "bias": None}


def from_dict(space, values):
    """The space of these values, in time."""
    start = time.process_time()
    try:
        return space.from_dict(values)
    finally:
        assert time.process_time() - start < SECONDS


def test_a_cycle_of_all_labels_is_named_in_time():
    parents = np.roll(np.arange(110_000), 1)
    with pytest.raises(ValueError, match=r"got the cycle 0 -> 109999 -> 109998 .* \.\.\.\."):
        from_dict(HierarchySpace, {"parents": parents, **HIERARCHY})


def test_many_empty_groups_beside_many_labels_are_refused_in_time():
    group_of, limits = np.zeros(300_000, np.int16), np.zeros((150_000, 2), np.int8)
    with pytest.raises(ValueError, match="The labels of group 1 must be label indices or label names"):
        from_dict(GroupSpace, {"group_of": group_of, "limits": limits, **GROUPS})


def test_limits_on_the_leaves_whose_tables_would_fill_the_memory_are_refused():
    with pytest.raises(ValueError, match="at most 33554432; got 60000 labels and 2000 leaves"):
        from_dict(HierarchySpace, {"parents": np.full(60_000, -1), **HIERARCHY, "max_leaves": 2000})


@pytest.mark.parametrize("decision", ["f1", "jaccard", "hamming", "exact_match"])
def test_a_decision_is_judged_in_time_however_many_labels_there_are(decision):
    start = time.process_time()
    decisions.check(decision, None, CardinalitySpace(3000, 0, 3000))
    assert time.process_time() - start < SECONDS


def test_groups_come_back_with_their_labels_whatever_the_order_of_the_groups():
    space = GroupSpace([([4, 1], 0, 1), ([0, 5, 3], 1, 2)], 7, bias=[0.1, 0.2, 0.3, 0.4])
    again = from_dict(GroupSpace, space.to_dict())
    assert again.groups == [([1, 4], 0, 1), ([0, 3, 5], 1, 2)]
    assert again.n_labels == 7 and again.bias.tolist() == [0.1, 0.2, 0.3, 0.4]
