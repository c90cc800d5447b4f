"""Networks with `decide` behind them, exported by torch itself and to ONNX; what a loss learns in safetensors."""

import re

import numpy as np
import onnxruntime
import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

from mlrh.torch import (  # noqa: E402
    CardinalitySpace,
    GroupSpace,
    HierarchySpace,
    MLRHLoss,
    ObservedSpace,
    OpenSpace,
    decide,
)

N_FEATURES, N_LABELS = 3, 4
DECISIONS = ("exact_match", "hamming", "f1", "jaccard", ("top", 2), lambda tp, fp, fn: -(fp + 5 * fn))
SETS = [[1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]


class Tagger(torch.nn.Module):
    """A network whose answers are sets, one for each decision."""

    def __init__(self, loss, decisions):
        super().__init__()
        self.network, self.loss, self.decisions = torch.nn.Linear(N_FEATURES, N_LABELS), loss, decisions

    def forward(self, x):
        distribution = self.loss.distribution(self.network(x))
        return tuple(decide(distribution, decision) for decision in self.decisions)


def biased_loss():
    return MLRHLoss(max_labels=3, size_bias=torch.nn.Parameter(torch.tensor([0.0, 0.5, -1.0, 2.0])))


def tagger_and_rows(loss, decisions=DECISIONS):
    torch.manual_seed(0)
    rows = torch.randn(40, N_FEATURES)
    rows[:4] *= 1e5  # scores that a sum of exponentials would not bear
    rows[4:6] = 0.0
    return Tagger(loss, decisions).eval(), rows


def assert_same(found, expected):
    for number, (own, other) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_array_equal(np.asarray(own), np.asarray(other), str(number))


@pytest.mark.parametrize("loss", [biased_loss(), MLRHLoss(4, min_labels=0)], ids=["biased", "all sizes"])
def test_an_exported_network_decides_as_the_original_at_another_batch_size(loss):
    tagger, rows = tagger_and_rows(loss)
    program = torch.export.export(tagger, (rows[:7],), dynamic_shapes=({0: torch.export.Dim("rows", min=2)},))
    assert_same(program.module()(rows), tagger(rows))


# torch's own deepcopy of its exported program warns of its own class
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
@pytest.mark.parametrize(
    "decisions",
    [("exact_match", ("top", 2)), pytest.param(("hamming", "f1"), marks=pytest.mark.slow)],  # the latter takes 15 s
    ids=str,
)
def test_a_network_in_onnx_decides_as_the_original_at_another_batch_size(decisions, tmp_path):
    pytest.importorskip("onnxscript")
    tagger, rows = tagger_and_rows(biased_loss(), decisions)
    path = tmp_path / "tagger.onnx"
    options = {"dynamo": True, "dynamic_shapes": ({0: "rows"},), "verbose": False}
    torch.onnx.export(tagger, (rows[:7],), path, input_names=["x"], **options)
    session = onnxruntime.InferenceSession(path)
    assert_same(session.run(None, {"x": rows.numpy()}), tagger(rows))


@pytest.mark.parametrize(
    "space",
    [ObservedSpace(SETS), GroupSpace([([0, 1], 1, 1)], 4), HierarchySpace([-1, 0, 0, -1])],
    ids=lambda space: type(space).__name__,
)
def test_other_spaces_export_the_most_probable_set(space):
    tagger, rows = tagger_and_rows(MLRHLoss(label_space=space), ("exact_match",))
    program = torch.export.export(tagger, (rows[:7],), dynamic_shapes=({0: torch.export.Dim("rows", min=2)},))
    assert_same(program.module()(rows), tagger(rows))


OTHERS = [
    ObservedSpace(SETS),
    OpenSpace(4, 1, 3, SETS),
    GroupSpace([([0, 1], 1, 1)], 4),
    HierarchySpace([-1, 0, 0, -1]),
]


@pytest.mark.parametrize("decision", ["hamming", ("top", 2), "f1"], ids=str)
@pytest.mark.parametrize("space", OTHERS, ids=lambda space: type(space).__name__)
def test_decisions_that_are_not_exported_are_refused_with_what_to_do(space, decision):
    tagger, rows = tagger_and_rows(MLRHLoss(label_space=space), (decision,))
    refusal = f"decide for {decision!r} is exported for a cardinality space only; got {space!r}. Export the logits"
    with pytest.raises(ValueError, match=re.escape(refusal)):
        torch.export.export(tagger, (rows[:7],))
    (decided,) = tagger(rows)  # outside of an export it is there
    assert decided.shape == (len(rows), N_LABELS)


@pytest.mark.parametrize("space", OTHERS, ids=lambda space: type(space).__name__)
def test_the_jaccard_index_of_other_spaces_is_refused_in_an_export_with_what_works_after_it(space):
    tagger, rows = tagger_and_rows(MLRHLoss(label_space=space), ("jaccard",))
    with pytest.raises(ValueError, match=r"only; got .*Export the logits, and decide after") as raised:
        torch.export.export(tagger, (rows[:7],))
    advised = re.findall(r"'(\w+)'", str(raised.value).partition("after them by ")[2])
    assert advised == ["f1", "exact_match", "hamming", "top"]
    distribution = MLRHLoss(label_space=space).distribution(torch.randn(3, N_LABELS))
    for decision in (*advised[:3], ("top", 2)):
        assert decide(distribution, decision).shape == (3, N_LABELS)


def test_the_search_of_an_open_space_is_not_exported_but_named():
    tagger, rows = tagger_and_rows(MLRHLoss(label_space=OpenSpace(4, 1, 3, SETS)), ("exact_match",))
    with pytest.raises(ValueError, match=r"found by a search, which can't be exported\. Export the logits"):
        torch.export.export(tagger, (rows[:7],))


def losses():
    """Pairs of a loss that has learned and one like it that has not."""
    learned = torch.nn.Parameter(torch.randn(3))
    of_sizes = torch.nn.Parameter(torch.randn(5))
    yield biased_loss(), MLRHLoss(max_labels=3, size_bias=True)
    yield from (
        (MLRHLoss(label_space=own), MLRHLoss(label_space=new))
        for own, new in (
            (CardinalitySpace(4, 1, 3, of_sizes), CardinalitySpace(4, 1, 3, True)),
            (ObservedSpace(SETS, learned), ObservedSpace(SETS, True)),
            (OpenSpace(4, 1, 3, SETS, learned, of_sizes), OpenSpace(4, 1, 3, SETS, True, True)),
        )
    )


@pytest.mark.parametrize("number", range(4))
def test_what_a_loss_has_learned_goes_through_safetensors(number, tmp_path):
    loss, fresh = list(losses())[number]
    safetensors.save_file(loss.state_dict(), tmp_path / "loss.safetensors")
    fresh.load_state_dict(safetensors.load_file(tmp_path / "loss.safetensors"))
    logits, targets = torch.randn(2, N_LABELS), torch.tensor(SETS[:2], dtype=torch.float32)
    assert sum(parameter.numel() for parameter in loss.parameters()) > 0
    assert torch.equal(fresh(logits, targets), loss(logits, targets))
