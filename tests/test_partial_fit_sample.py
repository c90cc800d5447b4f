"""partial_fit where more rows come than are kept: a sample, exact gradients, minibatches and their average."""

import pickle
import tracemalloc

import numpy as np
import pytest
from reference import central_difference
from samples import make_multilabel
from scipy import sparse
from stream_samples import objective, shown, sparse_rows

from mlrh import MLRHClassifier, streaming
from mlrh.knowledge import UNKNOWN
from mlrh.label_space import CardinalitySpace
from mlrh.persistence import load, save
from mlrh.row_sample import RowSample, row_hashes
from mlrh.stream_objective import loss_and_gradient, split, zeros
from mlrh.stream_sums import Steps, Tally


@pytest.mark.parametrize("make", [make_multilabel, sparse_rows])
@pytest.mark.parametrize("share, passes", [(0.5, 4), (0.2, 8)])
def test_passes_over_more_rows_than_are_kept_come_within_one_percent_of_fit(make, share, passes, monkeypatch):
    X, Y = make(2000, 6) if make is make_multilabel else make()
    fitted = MLRHClassifier(size_bias=True).fit(X, Y)
    whole = RowSample().add(X, Y.astype(np.int8), np.ones(len(Y)), row_hashes(X, Y), max_bytes=np.inf)
    monkeypatch.setattr(streaming, "MAX_BYTES", share * whole._n_bytes())
    model = shown(MLRHClassifier(size_bias=True), X, Y, classes=range(4), passes=passes)
    assert 0 < len(model._stream["sample"]["weights"]) < share * len(Y) and model.n_passes_ == passes
    assert objective(model, X, Y) <= 1.01 * fitted.objective_


def test_fewer_rows_kept_than_features_never_lead_uphill_for_long(monkeypatch):
    rng = np.random.RandomState(0)
    factors = rng.normal(size=(1000, 20))
    X = factors @ rng.normal(size=(20, 80)) + 0.1 * rng.normal(size=(1000, 80))  # features that are much alike
    Y = CardinalitySpace(4, 1, 3).sample(factors[:, :4] * 2, 1, rng)[:, 0].astype(np.int64)
    monkeypatch.setattr(streaming, "MAX_BYTES", 40_000)
    model, values = MLRHClassifier(), []
    for _ in range(8):
        values.append(objective(shown(model, X, Y, classes=range(4), chunk=100), X, Y))
    assert len(model._stream["sample"]["weights"]) < 80
    assert np.isfinite(values).all() and min(values[4:]) < values[0] and values[-1] < 2 * min(values)


CHANGES = {
    "C": ({"C": 1.0}, {"C": 1e-3}),
    "size bias": ({"size_bias": True}, {"size_bias": False}),
    "intercept": ({}, {"fit_intercept": False}),
    "sizes": ({}, {"min_labels": 0}),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("max_bytes", [2**25, 20_000])
@pytest.mark.parametrize("n_more", [0, 400])
@pytest.mark.parametrize("passes", [2, 3])  # the next one goes in steps, or measures
def test_another_setting_leads_where_fit_leads_with_it(change, max_bytes, n_more, passes, monkeypatch):
    X, Y = make_multilabel(1000, max_labels=4)
    first, then = CHANGES[change]
    monkeypatch.setattr(streaming, "MAX_BYTES", max_bytes)
    model = shown(MLRHClassifier(**first), X, Y, classes=range(4), chunk=200, passes=passes)
    shown(model, X[:n_more], Y[:n_more], classes=None, chunk=200)
    shown(model.set_params(**then), X[n_more:], Y[n_more:], classes=None, chunk=200)
    shown(model, X, Y, classes=None, chunk=200, passes=6)
    assert model.n_passes_ == passes + 7
    assert model._stream["damping"] <= 16  # no step back at every pass
    assert objective(model, X, Y) <= 1.005 * MLRHClassifier(**then).fit(X, Y).objective_
    assert change != "size bias" or not np.any(model.size_bias_)


def test_the_objective_that_passes_compare_is_that_of_fit(monkeypatch):
    X, Y = make_multilabel(1000)
    monkeypatch.setattr(streaming, "MAX_BYTES", 20_000)
    model = shown(MLRHClassifier(size_bias=True), X, Y, classes=range(4), chunk=200, passes=1)
    before = objective(model, X, Y)
    shown(model, X, Y, classes=None, chunk=200)
    assert np.square(model.size_bias_).sum() > 1e-4
    assert model._stream["best"]["objective"] == pytest.approx(before, rel=1e-9)


def test_further_passes_end_within_calls_where_rows_are_left_out(monkeypatch):
    X, Y = make_multilabel(1000)
    monkeypatch.setattr(streaming, "MAX_BYTES", 20_000)
    model = shown(MLRHClassifier(), X, Y, classes=range(4), chunk=250)
    shown(model, np.vstack([X] * 6), np.vstack([Y] * 6), classes=None, chunk=700)
    assert (model.n_passes_, model._stream["counted"]["n_rows"]) == (7, 1000)
    assert objective(model, X, Y) <= 1.01 * MLRHClassifier().fit(X, Y).objective_


@pytest.mark.parametrize("kind", ["dense", "integers", "CSR"])
def test_a_memory_map_is_never_loaded_as_a_whole(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "MAX_BYTES", 2**20)
    monkeypatch.setattr(streaming, "BLOCK_BYTES", 2**18)
    rng = np.random.RandomState(0)
    values = (rng.uniform(size=(120_000, 50)) < 0.5).astype(np.int64 if kind == "integers" else np.float64)

    def mapped(array, name):
        array.tofile(tmp_path / name)
        return np.memmap(tmp_path / name, dtype=array.dtype, mode="r", shape=array.shape)

    if kind == "CSR":
        plain = sparse.csr_array(values)
        arrays = (mapped(plain.data, "data"), mapped(plain.indices, "indices"), mapped(plain.indptr, "indptr"))
        X, n_bytes = sparse.csr_array(arrays, shape=plain.shape), plain.data.nbytes
    else:
        X, n_bytes = mapped(values, "X"), values.nbytes
    y = (values[:, 0] + values[:, 1] + rng.uniform(size=len(values)) > 1.5).astype(int)
    model = MLRHClassifier(n_jobs=1).partial_fit(X[:500], y[:500], classes=[0, 1])
    tracemalloc.start()
    model.partial_fit(X, y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.5 * n_bytes and n_bytes > 2e7
    fitted = MLRHClassifier().fit(values, y)
    assert np.abs(model.predict_proba(values) - fitted.predict_proba(values)).mean() < 0.01


@pytest.mark.parametrize("stored", [np.asarray, sparse.csr_array])
def test_the_gradient_of_rows_agrees_with_finite_differences_of_their_loss(stored):
    rng = np.random.RandomState(0)
    X, Y = make_multilabel(30, 3, min_labels=1, max_labels=3)
    Y = np.where(rng.uniform(size=Y.shape) < 0.2, UNKNOWN, Y).astype(np.int8)
    flat, direction = rng.normal(size=(2, len(zeros(3, 4))))
    weights = rng.uniform(size=30)

    def loss(t):
        at = flat + t * direction
        space = CardinalitySpace(4, 1, 3, split(at, 4)[2])
        return loss_and_gradient(space, at, stored(X), Y, weights)

    assert loss(0.0)[1] @ direction == pytest.approx(central_difference(lambda t: loss(t)[0]), rel=1e-7)
    distribution = CardinalitySpace(4, 1, 3, split(flat, 4)[2]).distribution(X @ split(flat, 4)[0] + split(flat, 4)[1])
    known = np.where(Y == UNKNOWN, np.nan, Y)
    assert loss(0.0)[0] == pytest.approx(-weights @ distribution.log_prob_of_known(known))


@pytest.fixture
def walked(monkeypatch):
    """A model that has seen 1,000 rows twice and kept a few, with the rows: the next pass goes in steps."""
    X, Y = make_multilabel(1000)
    monkeypatch.setattr(streaming, "MAX_BYTES", 20_000)
    return shown(MLRHClassifier(size_bias=True), X, Y, classes=range(4), chunk=250, passes=2), X, Y


def test_a_pass_in_steps_ends_at_the_mean_of_what_later_rows_confirm(walked):
    model, X, Y = walked
    stepped_to = []
    for start in range(0, 1000, 250):
        stepped_to.append(model._stream["parameters"])
        model.partial_fit(X[start : start + 250], Y[start : start + 250])
    assert len({tuple(at) for at in stepped_to}) == 4 and model._stream["damping"] == 1
    mean = np.average(stepped_to, axis=0, weights=[1, 2, 3, 4])
    np.testing.assert_allclose(split(mean, 4)[0].T, model.coef_, rtol=1e-12)
    np.testing.assert_allclose(split(mean, 4)[1], model.intercept_, rtol=1e-12)


def test_the_model_in_between_is_the_mean_of_the_steps_confirmed_so_far(walked):
    model, X, Y = walked
    first = model._stream["parameters"]
    model.partial_fit(X[:250], Y[:250])
    np.testing.assert_array_equal(model.coef_, split(first, 4)[0].T)
    assert not np.array_equal(model._stream["parameters"], first)


@pytest.mark.parametrize("order", ["same", "shuffled"])
def test_steps_come_nearer_to_fit_than_the_pass_before(walked, order):
    model, X, Y = walked
    fitted = MLRHClassifier(size_bias=True).fit(X, Y).objective_
    before = objective(model, X, Y) / fitted - 1
    rows = np.arange(1000) if order == "same" else np.random.RandomState(1).permutation(1000)
    assert objective(shown(model, X[rows], Y[rows], classes=None, chunk=70), X, Y) / fitted - 1 < 0.5 * before
    assert model.n_passes_ == 3


@pytest.mark.parametrize("factor", [30.0, 1e150])
def test_a_step_astray_is_taken_back_and_the_next_ones_are_shorter(walked, factor):
    model, X, Y = walked
    best = model._stream["best"]["objective"]
    model._stream["parameters"] = factor * model._stream["parameters"]
    shown(model, X, Y, classes=None, chunk=250)
    assert model._stream["damping"] == 4
    assert objective(model, X, Y) < best


def test_where_no_step_is_confirmed_the_best_parameters_stay(walked):
    model, X, Y = walked
    model._stream["parameters"] = 30 * model._stream["parameters"]
    model.partial_fit(X[:250], Y[:250])
    np.testing.assert_array_equal(model.coef_, split(model._stream["best"]["parameters"], 4)[0].T)


def test_new_rows_within_a_pass_in_steps_count(walked):
    model, X, Y = walked
    X_new, Y_new = make_multilabel(1500)
    X_new, Y_new = X_new[1000:], Y_new[1000:]
    shown(model, X[:400], Y[:400], classes=None, chunk=100)
    assert model._stream["steps"]["n_taken"] == 1
    shown(model, X_new, Y_new, classes=None, chunk=100)
    X, Y = np.vstack([X, X[:400], X_new]), np.vstack([Y, Y[:400], Y_new])
    assert model._stream["counted"]["n_rows"] == len(Y) and not model._stream["steps"]["is_on"]
    shown(model, X, Y, classes=None, chunk=100, passes=4)
    assert model.n_passes_ == 6
    assert objective(model, X, Y) <= 1.005 * MLRHClassifier(size_bias=True).fit(X, Y).objective_


def test_models_saved_within_a_pass_in_steps_go_on_as_the_original_would(walked, tmp_path):
    model, X, Y = walked
    shown(model, X[:400], Y[:400], classes=None, chunk=100)
    save(model, tmp_path / "model.mlrh")
    copies = [load(tmp_path / "model.mlrh"), pickle.loads(pickle.dumps(model))]
    shown(model, X[400:], Y[400:], classes=None, chunk=100)
    for other in copies:
        shown(other, X[400:], Y[400:], classes=None, chunk=100)
        np.testing.assert_array_equal(other.coef_, model.coef_)


def test_a_minibatch_of_all_rows_knows_the_rise_of_the_loss_and_the_gradient(walked):
    _, X, Y = walked
    rng, weights, Y = np.random.RandomState(0), np.ones(len(Y)), Y.astype(np.int8)
    best, moved = rng.normal(size=(2, len(zeros(6, 4))))

    def at(parameters, rows=slice(None)):
        space = CardinalitySpace(4, 1, 3, split(parameters, 4)[2])
        return loss_and_gradient(space, parameters, X[rows], Y[rows], weights[rows])

    steps = Steps(is_on=True)
    for rows in (slice(0, 300), slice(300, 1000)):
        loss, gradient = at(best, rows)
        sums = Tally(n_rows=rows.stop - rows.start, weight=weights[rows].sum(), loss=loss, gradient=gradient)
        steps = steps.with_rows(sums, *at(best + moved, rows), moved)
    (before, slope), (after, gradient) = at(best), at(best + moved)
    assert steps.excess + slope @ moved == pytest.approx(after - before, rel=1e-12)
    np.testing.assert_allclose(slope + steps.change, gradient, rtol=1e-9)


def silent(X, Y, n):
    """The n rows with the largest hashes, which a sample drops first, so that they don't tell if they were there."""
    return np.argsort(row_hashes(X, Y))[::-1][:n]


@pytest.mark.parametrize("n_first, n_last", [(0, 8), (8, 0), (4, 4), (1, 7)])
@pytest.mark.parametrize("chunk", [1, 3, 996])
def test_passes_are_recognised_where_calls_begin_or_end_them_with_rows_that_tell_nothing(
    n_first, n_last, chunk, monkeypatch
):
    X, Y = make_multilabel(1000)
    rows = silent(X, Y, 8)
    others = np.setdiff1d(np.arange(1000), rows)
    order = np.concatenate([rows[:n_first], others, rows[n_first:]])
    monkeypatch.setattr(streaming, "MAX_BYTES", 20_000)
    model = shown(MLRHClassifier(), X[order], Y[order], classes=range(4), chunk=chunk, passes=3)
    assert not np.isin(row_hashes(X[rows], Y[rows]), model._stream["sample"]["hashes"]).any()
    assert (model.n_passes_, model._stream["counted"]["n_rows"]) == (3, 1000)
    assert objective(model, X, Y) <= 1.01 * MLRHClassifier().fit(X, Y).objective_


@pytest.mark.parametrize("passes", [2, 3])  # the next one goes in steps, or measures
def test_new_rows_that_tell_nothing_count_once_a_pass_has_ended(passes, monkeypatch):
    X, Y = make_multilabel(1000)
    rows = silent(X, Y, 30)
    order = np.concatenate([np.setdiff1d(np.arange(1000), rows), rows])
    X, Y = X[order], Y[order]
    monkeypatch.setattr(streaming, "MAX_BYTES", 20_000)
    model = shown(MLRHClassifier(), X[:970], Y[:970], classes=range(4), chunk=97, passes=passes)
    shown(model, X[970:], Y[970:], classes=None, chunk=10)
    assert model._stream["counted"]["n_rows"] == 970
    shown(model, X, Y, classes=None, chunk=100, passes=4)
    assert (model.n_passes_, model._stream["counted"]["n_rows"]) == (passes + 4, 1000)
    assert objective(model, X, Y) <= 1.01 * MLRHClassifier().fit(X, Y).objective_


def test_after_many_shuffled_passes_new_rows_are_learned(monkeypatch):
    X, Y = make_multilabel(400)
    monkeypatch.setattr(streaming, "MAX_BYTES", 10_000)
    model, rng = MLRHClassifier(), np.random.RandomState(0)
    for _ in range(40):
        order = rng.permutation(400)
        shown(model, X[order], Y[order], classes=range(4), chunk=100)
    assert model.n_passes_ == 40 and model._stream["damping"] <= 4  # rounding is no reason to go back
    X_new, Y_new = make_multilabel(400, seed=5)
    X, Y = np.vstack([X, X_new]), np.vstack([Y, Y_new])
    shown(model, X_new, Y_new, classes=None, chunk=100)
    shown(model, X, Y, classes=None, chunk=100, passes=4)
    assert objective(model, X, Y) <= 1.005 * MLRHClassifier().fit(X, Y).objective_


def test_a_model_file_from_before_there_were_steps_goes_on(monkeypatch):
    X, Y = make_multilabel(1000)
    monkeypatch.setattr(streaming, "MAX_BYTES", 20_000)
    model = shown(MLRHClassifier(), X, Y, classes=range(4), chunk=250)
    del model._stream["steps"], model._stream["unclear"]
    shown(model, X, Y, classes=None, chunk=250, passes=3)
    assert objective(model, X, Y) <= 1.01 * MLRHClassifier().fit(X, Y).objective_


def test_the_gradient_of_a_pass_in_which_a_setting_changed_is_nearly_that_of_the_new_one(monkeypatch):
    X, Y = make_multilabel(1000)
    monkeypatch.setattr(streaming, "MAX_BYTES", 20_000)
    model = shown(MLRHClassifier(), X, Y, classes=range(4), chunk=100, passes=1)
    shown(model, X[:900], Y[:900], classes=None, chunk=100)
    shown(model.set_params(fit_intercept=False), X[900:], Y[900:], classes=None, chunk=100)
    best = model._stream["best"]
    space = CardinalitySpace(4, 1, 3, split(best["parameters"], 4)[2])
    _, gradient = loss_and_gradient(space, best["parameters"], X, Y.astype(np.int8), np.ones(1000))
    assert np.linalg.norm(best["gradient"] - gradient) < 0.4 * np.linalg.norm(gradient)


def test_a_row_that_is_not_kept_may_come_again_and_again(monkeypatch):
    X, Y = make_multilabel(1000)
    monkeypatch.setattr(streaming, "MAX_BYTES", 20_000)
    monkeypatch.setattr(streaming, "MAX_UNCLEAR", 5)
    model = shown(MLRHClassifier(), X, Y, classes=range(4), chunk=250)
    row = silent(X, Y, 1)
    for _ in range(12):
        model.partial_fit(X[row], Y[row])
    assert len(model._stream["unclear"]) == 5 and model.n_samples_seen_ == 1012
