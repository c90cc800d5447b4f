"""The label spaces of torch against those of NumPy, which are written independently: every answer to 1e-10."""

import numpy as np
import pytest
import torch
from test_torch_spaces import compare_with_numpy

from mlrh.spaces import GroupSpace, HierarchySpace, OpenSpace
from mlrh.torch import MLRHLoss, decide, label_space

RNG = np.random.default_rng(0)
SETS = np.unique((RNG.random((60, 12)) < 0.2).astype(np.int8), axis=0)
SETS = SETS[(SETS.sum(axis=1) >= 1) & (SETS.sum(axis=1) <= 4)]
GROUPS = [([0, 5, 7], 1, 1), ([2, 3, 4, 11], 0, 2), ([1], 1, 1)]
PARENTS = [-1, 0, 0, 1, -1, 4, 4, 6, 6, 6, -1, 2]


def an_open_space(lowest, highest):
    biases = np.linspace(lowest, highest, len(SETS))
    return OpenSpace(12, 1, 4, SETS, np.random.default_rng(1).permutation(biases), RNG.normal(size=13))


SPACES = {
    "open": lambda: an_open_space(-3, 3),
    "open-wide": lambda: an_open_space(-60, 60),
    "open-low": lambda: an_open_space(-60, -50),
    "open-high": lambda: an_open_space(50, 60),
    "groups": lambda: GroupSpace(GROUPS, 13),
    "groups-biased": lambda: GroupSpace(GROUPS, 13, bias=RNG.normal(size=5)),
    "hierarchy": lambda: HierarchySpace(PARENTS),
    "at-least-one-leaf": lambda: HierarchySpace(PARENTS, min_leaves=1),
    "one-to-three-leaves": lambda: HierarchySpace(PARENTS, 1, 3),
}
every_space = pytest.mark.parametrize("name", SPACES)


@every_space
def test_every_answer_equals_that_of_numpy(name):
    compare_with_numpy(SPACES[name]())


@every_space
def test_decisions_are_as_good_as_those_of_numpy(name):
    space = SPACES[name]()
    scores = np.random.default_rng(6).normal(size=(10, space.n_labels)) * 2
    d, expected = label_space(space).distribution(torch.tensor(scores)), space.distribution(scores)
    answers, others = decide(d, "f1").numpy(), expected.best("f1", (0, space.n_labels))
    # Answers may differ where two are equally good.
    np.testing.assert_allclose(expected.expected("f1", answers), expected.expected("f1", others), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in SPACES if "open" in name or "groups" in name])
def test_the_gradient_by_the_biases_equals_that_of_numpy(name):
    space = SPACES[name]()
    scores = np.random.default_rng(7).normal(size=(6, space.n_labels))
    sets = space.distribution(scores).sample(1, random_state=0)[:, 0]
    loss = MLRHLoss(label_space=space, reduction="sum")
    loss(torch.tensor(scores), torch.tensor(sets)).backward()
    expected = space.expectations(scores, np.ones(6))[2] - space.bias_counts(sets, np.ones(6))
    gradients = {name.rpartition(".")[2]: parameter.grad.numpy() for name, parameter in loss.named_parameters()}
    if "size_bias" in gradients:  # the biases of admissible sizes, before those of sets
        gradients["bias"] = np.concatenate([gradients["size_bias"][1:5], gradients["set_bias"]])
    np.testing.assert_allclose(gradients["bias"], expected, rtol=0, atol=1e-10)


def test_a_space_given_by_name_is_refused_until_a_fit_has_resolved_it():
    with pytest.raises(ValueError, match="names its labels"):
        label_space(GroupSpace([(["red", "blue"], 1, 1)]))
