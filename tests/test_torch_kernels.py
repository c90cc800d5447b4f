"""The Triton kernels in Triton's interpreter, against the NumPy side.

The interpreter must be chosen before Triton is imported, so this file also is a script: it computes all cases in a
process of its own, once, and the tests look at what came out.
"""

import os
import subprocess
import sys

import numpy as np
import pytest

from mlrh.spaces import CardinalitySpace

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from mlrh.torch import _triton

MODEL_EXAMPLE = [[1e5, 500.0, 500.3, 499.0, -1e5]]


def make_cases():
    """Inputs of `forward` by name; chunk is the number of labels that one program reads."""
    rng = np.random.default_rng(0)

    def normal(n_rows, n_labels, scale=1.0, shift=0.0):
        return scale * rng.standard_normal((n_rows, n_labels)) + shift

    spike = normal(6, 30)
    spike[:, 3] = 200
    rising = np.r_[0, np.arange(6) * 2.5 + [0, 1, -1, 0.5, 0, 2]]
    cases = {
        "normal scores": case(normal(5, 50), 1, 4),
        "few likely labels": case(normal(9, 50, 2, -5), 1, 4),
        "many labels in a set": case(normal(2, 60, 3), 1, 9),
        "float64": case(normal(4, 40, 3), 1, 4, dtype=torch.float64),
        "bfloat16": case(normal(4, 40, 3), 1, 4, dtype=torch.bfloat16),
        "float16": case(normal(4, 40, 3), 1, 4, dtype=torch.float16),
        "scores of +-1e4": case(1e4 * np.sign(normal(9, 40)), 1, 4),
        "the example of two scales": case(np.array(MODEL_EXAMPLE), 1, 3),
        "equal scores": case(np.full((3, 20), 5.0), 1, 3),
        "one label dominates": case(spike, 1, 4),
        "one label dominates, three wanted": case(spike - 300, 3, 4),
        "all sizes": case(normal(7, 6), 0, 6),
        "one size": case(normal(7, 9), 3, 3),
        "all labels": case(normal(7, 4), 4, 4),
        "one label": case(normal(7, 1), 0, 1),
        "softmax": case(normal(7, 33, 3), 1, 1),
        "size bias": case(normal(6, 30, 2, -2), 1, 6, size_bias=rising),
        "chunks": case(normal(4, 100), 1, 4, chunk=32),
        "chunks, few likely labels": case(normal(3, 90, 3, -5), 1, 4, chunk=32),
        "chunks, +-1e4": case(1e4 * np.sign(normal(5, 90)), 1, 4, chunk=32),
        "chunks, all below": case(normal(2, 100, 9, -50), 3, 4, chunk=32),
        "chunks, last one of four": case(normal(1, 100, 30, -40), 5, 5, chunk=32),
    }
    cases |= make_partial_cases(normal)
    listed = {f"{name}, listed": as_listed(cases[name]) for name in ("normal scores", "chunks", "one label dominates")}
    alone = {f"{name}, no targets": cases[name] | {"targets": None} for name in ("few likely labels", "chunks")}
    kinds = {f"{dtype} targets": dtype for dtype in (torch.bool, torch.int64, torch.uint8)}
    typed = {name: cases["chunks"] | {"targets": cases["chunks"]["targets"].to(dtype)} for name, dtype in kinds.items()}
    return cases | listed | alone | typed


def make_partial_cases(normal):
    """Rows with none, some and all labels unknown, of which some have more labels than a set, or too few left."""
    bias = np.arange(5) * 2.5 + [0, 1, -1, 0.5, 0]
    return {
        "unknown": partly(case(normal(7, 30), 1, 4)),
        "unknown, float64": partly(case(normal(7, 30, 3), 1, 4, dtype=torch.float64)),
        "unknown, bfloat16": partly(case(normal(7, 30, 3), 1, 4, dtype=torch.bfloat16), torch.bfloat16),
        "unknown, many likely labels": partly(case(normal(7, 30, 3, 4), 1, 4)),
        "unknown, no heavy label": partly(case(normal(7, 200, 0.5), 1, 4)),
        "unknown, one size": partly(case(normal(7, 20, 3), 3, 3)),
        "unknown, +-1e4": partly(case(1e4 * np.sign(normal(7, 30)), 1, 4)),
        "unknown, two scales": partly(case(1e4 * normal(7, 30), 1, 4)),
        "unknown, all sizes": partly(case(normal(7, 6), 0, 6)),
        "unknown, softmax": partly(case(normal(7, 33, 3), 1, 1)),
        "unknown, many labels in a set": partly(case(normal(7, 20, 3), 1, 7)),
        "unknown, size bias": partly(case(normal(7, 30, 2, -2), 1, 4, size_bias=bias)),
        "unknown, chunks": partly(case(normal(7, 70, 2, -2), 1, 4, chunk=32)),
        "unknown, chunks, +-1e4": partly(case(1e4 * np.sign(normal(7, 60)), 1, 4, chunk=32)),
        "unknown, chunks, one size": partly(case(normal(7, 70, 9, -50), 3, 3, chunk=32)),
    }


def partly(one, dtype=torch.float32):
    """The case with unknown labels: none, a third, all, all but a full set, more labels than a set, too few, few."""
    known, max_labels = one["targets"].clone(), len(one["log_weights"]) - 1
    n_labels = known.shape[1]
    known[1][np.random.default_rng(2).random(n_labels) < 0.3] = np.nan
    known[2] = np.nan
    known[3], known[3, :max_labels] = np.nan, 1
    known[4], known[4, : max_labels + 1], known[4, -1] = 0, 1, np.nan
    known[5], known[5, 0] = 0, np.nan
    known[6], known[6, [0, -1]] = 0, np.nan
    return one | {"targets": known.to(dtype)}


def case(scores, min_labels, max_labels, *, size_bias=None, dtype=torch.float32, chunk=4096):
    log_weights = np.zeros(max_labels + 1) if size_bias is None else np.array(size_bias)
    log_weights[:min_labels] = -np.inf
    return {
        "scores": torch.tensor(scores).to(dtype),
        "targets": torch.tensor(draw_sets(*scores.shape, min_labels, max_labels)),
        "log_weights": torch.tensor(log_weights),
        "min_labels": min_labels,
        "chunk": chunk,
        "grad": torch.linspace(0.5, 2, len(scores)),
    }


def draw_sets(n_rows, n_labels, min_labels, max_labels):
    rng = np.random.default_rng(1)
    sizes = rng.integers(min_labels, max_labels + 1, n_rows)
    return np.array([rng.permutation(np.arange(n_labels) < size) for size in sizes], np.float32)


def as_listed(one):
    width = int(one["targets"].sum(1).max()) + 1
    rows = [row.nonzero()[:, 0].tolist() for row in one["targets"]]
    return one | {"targets": torch.tensor([[*row, *[-1] * (width - len(row))] for row in rows])}


CASES = make_cases()


def compute(cases):
    """Loss, gradient and size probabilities by the kernels, for each case."""
    from mlrh.torch._triton import plan

    results = {}
    for name, one in cases.items():
        plan.CHUNK = one["chunk"]
        inputs = [one[key] for key in ("scores", "targets", "log_weights", "min_labels")]
        before = [value.clone() for value in inputs[:3] if value is not None]
        launches = plan.plan(*inputs)
        loss, saved = launches.forward(*inputs[:3])
        gradient = launches.backward(*inputs[:2], saved, one["grad"].to(loss.dtype))
        after = [value for value in inputs[:3] if value is not None]
        unchanged = all(torch.equal(a.nan_to_num(9), b.nan_to_num(9)) for a, b in zip(before, after, strict=True))
        _, alone = plan.plan(one["scores"], None, *inputs[2:]).forward(one["scores"], None, one["log_weights"])
        pmf = plan.cardinality_pmf(alone, one["scores"], one["log_weights"])
        results[name] = {"loss": loss, "gradient": gradient, "pmf": pmf, "unchanged": unchanged}
    return results


def compute_outside():
    """Losses and gradients of sets that no size allows, and of a target that isn't known though all were said to be."""
    from mlrh.torch._triton import plan

    log_weights = torch.tensor([-torch.inf, 0.0, 0.0])
    dense = torch.zeros(4, 8)
    dense[1, :3], dense[2, 5], dense[3, 1] = 1, 1, torch.nan
    listed = torch.tensor([[-1, -1, -1], [0, 1, 2], [5, -1, -1], [0, -1, -1]])
    found = {}
    for name, targets in {"dense": dense, "listed": listed}.items():
        inputs = outside_scores(), targets, log_weights
        launches = plan.plan(*inputs, 1, partial=False)
        loss, saved = launches.forward(*inputs)
        gradient = launches.backward(*inputs[:2], saved, torch.ones(()).expand(4))
        found[name] = {"loss": loss, "gradient": gradient}
    return found


def compute_wrong():
    """Losses of targets that are no sets, dense and listed, each after a row that is one."""
    from mlrh.torch._triton import plan

    dense = torch.zeros(4, 8)
    dense[0, 2], dense[1, 2], dense[2, 2], dense[3, :2] = 1, 0.9, -1, torch.tensor([1.0, 0.5])
    partly = dense.clone()
    partly[:, 7] = torch.nan
    listed = torch.tensor([[5, -1], [8, -1], [0, 9], [100, 1]])
    log_weights = torch.tensor([-torch.inf, 0.0, 0.0])
    targets = {"dense": dense, "partly": partly, "listed": listed}
    inputs = {name: (outside_scores(), one, log_weights) for name, one in targets.items()}
    return {name: plan.plan(*given, 1).forward(*given)[0] for name, given in inputs.items()}


def outside_scores():
    return torch.linspace(-2, 2, 32).reshape(4, 8)


PUBLIC = ("one size", "chunks, listed", "float64", "bfloat16", "unknown")


def compute_public():
    """The loss that users call, all reductions, with gradients by logits and by size_bias."""
    from mlrh.torch import mlrh_loss

    one = CASES["one size"]
    logits, size_bias = one["scores"].clone().requires_grad_(), torch.linspace(-1, 2, 4).requires_grad_()
    loss = mlrh_loss(logits, one["targets"], max_labels=3, size_bias=size_bias)
    loss.backward()
    found = {"loss": loss.detach(), "logits": logits.grad, "size_bias": size_bias.grad}
    for name in PUBLIC:
        for reduction in ("none", "sum", "mean"):
            found |= loss_and_gradients(f"{name}, {reduction}", CASES[name], reduction)
    return found


def loss_and_gradients(name, one, reduction):
    """Loss, gradient and its gradient along a direction."""
    from mlrh.torch import mlrh_loss

    logits = one["scores"].clone().requires_grad_()
    padding_index = None if one["targets"].shape == logits.shape else -1
    sizes = {"min_labels": one["min_labels"], "max_labels": len(one["log_weights"]) - 1}
    loss = mlrh_loss(logits, one["targets"], **sizes, padding_index=padding_index, reduction=reduction)
    value = (one["grad"].to(loss.dtype) * loss).sum() if reduction == "none" else 2.5 * loss
    (gradient,) = torch.autograd.grad(value, logits, retain_graph=True)
    (again,) = torch.autograd.grad(value, logits, create_graph=True)
    (second,) = torch.autograd.grad((again * torch.linspace(-1, 1, logits.shape[1])).sum(), logits)
    results = {"loss": loss.detach(), "gradient": gradient, "again": again.detach(), "second": second}
    return {f"{name}: {key}": value for key, value in results.items()}


def compute_shortcuts():
    """The same by shortcuts, as on a GPU: there numbers are not looked at. The second call finds those of the first."""
    from mlrh.torch._eager import checks, operators

    checks.can_look = lambda targets: False
    compute_public()
    return compute_public(), len(operators._CALLS)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return interpreted(__file__, tmp_path_factory.mktemp("kernels"))


def interpreted(script, folder):
    """What a script saves that is run with the path of a file, in a process where Triton interprets."""
    path, environment = folder / "results.pt", os.environ | {"TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-W", "error::RuntimeWarning", script, str(path)], env=environment, check=True)
    return torch.load(path)


def exact(one, rows=slice(None)):
    """The distributions of the NumPy side."""
    log_weights, scores = one["log_weights"].numpy(), one["scores"].double().numpy()[rows]
    size_bias = np.zeros(scores.shape[1] + 1)
    size_bias[: len(log_weights)] = np.where(np.isfinite(log_weights), log_weights, 0)
    return CardinalitySpace(scores.shape[1], one["min_labels"], len(log_weights) - 1, size_bias).distribution(scores)


def exact_gradient(one):
    """Marginals less targets; less marginals of the sets that agree, if any does, where targets are unknown."""
    distribution, known = exact(one), dense_targets(one)
    agreeing = np.nan_to_num(known)
    if one["targets"] is not None:
        possible = np.isfinite(distribution.log_prob_of_known(known))
        agreeing[possible] = exact(one, possible).condition(known[possible]).marginals()
    return distribution.marginals() - agreeing


def dense_targets(one):
    """Targets as (B, K) of 0 and 1; zeros where there are none."""
    scores, targets = one["scores"], one["targets"]
    if targets is None or targets.shape == scores.shape:
        return np.zeros(scores.shape) if targets is None else targets.double().numpy()
    return np.array([np.isin(np.arange(scores.shape[1]), row) for row in targets.numpy()], float)


def tolerance(one):
    return 1e-10 if one["scores"].dtype == torch.float64 else 5e-7


@pytest.mark.parametrize("name", CASES)
def test_losses_equal_those_of_the_numpy_side(results, name):
    one = CASES[name]
    expected = exact(one).log_partition()
    if one["targets"] is not None:
        expected = -exact(one).log_prob_of_known(dense_targets(one))
    np.testing.assert_allclose(results[name]["loss"], expected, rtol=tolerance(one), atol=2 * tolerance(one))


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_marginals_less_targets_of_the_numpy_side(results, name):
    one = CASES[name]
    expected = one["grad"].double().numpy()[:, None] * exact_gradient(one)
    found, dtype = results[name]["gradient"], one["scores"].dtype
    assert found.dtype == dtype
    unit = torch.finfo(dtype).eps if dtype.itemsize == 2 else 0
    np.testing.assert_allclose(found.double(), expected, rtol=unit, atol=tolerance(one))


@pytest.mark.parametrize("name", CASES)
def test_size_probabilities_equal_those_of_the_numpy_side(results, name):
    one = CASES[name]
    expected = exact(one).cardinality_pmf()[:, : len(one["log_weights"])]
    np.testing.assert_allclose(results[name]["pmf"], expected, atol=tolerance(one))


@pytest.mark.parametrize("name", CASES)
def test_inputs_stay_as_they_are(results, name):
    assert results[name]["unchanged"]


@pytest.mark.parametrize("kind", ["dense", "listed"])
def test_a_set_of_no_admissible_size_has_infinite_loss_and_a_finite_gradient(results, kind):
    found = results["outside"][kind]
    assert found["loss"].isinf().tolist() == [True, True, False, False]
    marginals = CardinalitySpace(8, 1, 2).distribution(outside_scores().numpy()).marginals()
    expected = marginals[:3] - np.array([[0] * 8, [1, 1, 1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 0, 0]])
    np.testing.assert_allclose(found["gradient"][:3], expected, atol=1e-6)


def test_an_unknown_target_shows_as_nan_where_none_was_to_be_expected(results):
    assert results["outside"]["dense"]["loss"].isnan().tolist() == [False, False, False, True]


@pytest.mark.parametrize("kind", ["dense", "partly", "listed"])
def test_a_target_that_is_no_set_shows_as_nan(results, kind):
    assert results["wrong"][kind].isnan().tolist() == [False, True, True, True]


def test_the_public_loss_is_the_same_with_and_without_the_kernels(results):
    assert_public_equal(results["public"])


def test_shortcuts_change_no_loss_and_no_derivative(results):
    found, n_shortcuts = results["shortcuts"]
    assert n_shortcuts == len(PUBLIC) * 3
    assert_public_equal(found)


def assert_public_equal(found):
    for name, expected in compute_public().items():
        unit = 1e-2 if name.startswith("bfloat16") else 2e-6
        assert found[name].dtype == expected.dtype
        np.testing.assert_allclose(found[name].double(), expected.double(), rtol=unit, atol=unit, err_msg=name)


def test_biases_far_from_a_line_are_left_to_the_recurrence():
    from mlrh.torch._triton import plan

    line = torch.tensor([-torch.inf, 0.0, 50.0, 100.0])
    assert plan.are_near_a_line(line, 1)
    assert not plan.are_near_a_line(line + torch.tensor([0.0, 0.0, 5.0, 0.0]), 1)


def test_what_the_kernels_cannot_hold_is_left_to_the_recurrence():
    assert _triton.fit(torch.zeros(2, 50), torch.zeros(33))
    assert not _triton.fit(torch.zeros(2, 50), torch.zeros(34))
    assert not _triton.fit(torch.zeros(0, 50), torch.zeros(5))
    assert not _triton.fit(torch.zeros(1, 50).expand((1 << 28) + 1, 50), torch.zeros(5))
    assert not _triton.fit(torch.zeros(2, 50, dtype=torch.int64), torch.zeros(5))


def test_without_biases_the_choice_reads_no_values():
    assert _triton.fit(torch.zeros(2, 50, device="meta"), torch.zeros(5, device="meta"))


if __name__ == "__main__":
    found = {"outside": compute_outside(), "wrong": compute_wrong(), "public": compute_public()}
    found |= compute(CASES) | {"shortcuts": compute_shortcuts()}
    torch.save(found, sys.argv[1])
