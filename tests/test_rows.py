"""Rows in chunks answer as the same rows in memory do; all sums of an objective are compared."""

import numpy as np
import pytest
from reference import sets_of_sizes
from scipy import sparse

from mlrh._indicators import UNKNOWN
from mlrh.fitting import _products, rows
from mlrh.fitting.design import Design, FeatureSums, PartOfDesign
from mlrh.fitting.objective import Objective
from mlrh.fitting.rows import RowsInChunks
from mlrh.fitting.solvers._coordinate_descent import columns_of, descend, descend_by_sums
from mlrh.spaces import CardinalitySpace, HierarchySpace, ObservedSpace, OpenSpace

SPACES = {
    "cardinality": CardinalitySpace(4, 0, 3, learn_bias=True),
    "observed": ObservedSpace(sets_of_sizes(4, 0, 3).astype(np.int8)),
    "open": OpenSpace(4, 0, 3, [[1, 0, 0, 0], [0, 1, 1, 0]]),
    "hierarchy": HierarchySpace([-1, 0, 0, -1]),
}


def make_rows(space, form=np.asarray, *, hidden_share=0.0, offset=1.0):
    rng = np.random.RandomState(0)
    X = rng.normal(size=(60, 5)) + offset
    X[rng.uniform(size=X.shape) < 0.4] = 0
    Y = space.sample(rng.normal(size=(60, 4)), 1, rng)[:, 0]
    Y[rng.uniform(size=Y.shape) < hidden_share] = UNKNOWN
    return form(X), Y, rng.uniform(0.5, 2.0, size=60)


def sums_of(X, weights, bounds, fit_intercept):
    parts = [FeatureSums.of(Design(X[a:b], weights[a:b], fit_intercept=fit_intercept)) for a, b in bounds]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.plus(part)
    return whole


def both_objectives(X, Y, weights, space, *, fit_intercept=True, with_gram=False, bounds=((0, 7), (7, 40), (40, 60))):
    """The objective of rows in memory, and that of the same rows in chunks."""
    inside = Objective(Design(X, weights, fit_intercept=fit_intercept), space, Y, alpha=0.5, l1=0.2)
    whole = sums_of(X, weights, bounds, fit_intercept)
    chunks = [(X[a:b], Y[a:b], weights[a:b]) for a, b in bounds]
    outside = RowsInChunks(chunks, whole, space, fit_intercept=fit_intercept, with_gram=with_gram)
    return inside, Objective.over(outside, space, alpha=0.5, l1=0.2)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(rows, "BLOCK_SCORES", 40)  # ten rows: chunks are cut into blocks


def close(answer, expected):
    np.testing.assert_allclose(answer, expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max(initial=1.0))


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("hidden_share", [0.0, 0.3])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_sums_over_chunks_are_the_sums_over_all_rows(name, form, hidden_share, fit_intercept):
    space = SPACES[name]
    inside, outside = both_objectives(
        *make_rows(space, form, hidden_share=hidden_share), space, fit_intercept=fit_intercept
    )
    rng = np.random.RandomState(1)
    parameters, direction = (inside.determined(rng.normal(size=len(inside.start()))) for _ in range(2))
    close(outside.start(), inside.start())
    for answer, expected in zip(
        outside.value_and_gradient(parameters), inside.value_and_gradient(parameters), strict=True
    ):
        close(answer, expected)
    # Central differences, where a space has no curvature of its own, are right to about 1e-9.
    np.testing.assert_allclose(
        outside.hessian(parameters)(direction), inside.hessian(parameters)(direction), rtol=1e-7, atol=1e-7
    )
    close(outside.metric()(direction), inside.metric()(direction))
    close(outside.design.gram(), inside.design.gram())
    assert outside.rounding_error(parameters, 1.0) == pytest.approx(inside.rounding_error(parameters, 1.0))


@pytest.mark.parametrize("offset", [0.0, 1e5])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_features_far_from_zero_keep_their_digits_in_chunks(offset, form):
    X, Y, weights = make_rows(SPACES["cardinality"])
    X = np.asarray(X) + offset  # a mean of 1e5 would cost five digits, and its square ten
    inside, _ = both_objectives(X, Y, weights, SPACES["cardinality"])
    _, outside = both_objectives(form(X), Y, weights, SPACES["cardinality"])
    parameters = np.random.RandomState(1).normal(size=len(inside.start()))
    close(outside.value_and_gradient(parameters)[1], inside.value_and_gradient(parameters)[1])
    close(outside.design.gram(), inside.design.gram())
    close(outside.design.squared_norms(), inside.design.squared_norms())


def test_diagonals_renewed_over_chunks_of_sparse_rows_are_those_in_memory():
    space = SPACES["cardinality"]
    inside, outside = both_objectives(*make_rows(space, sparse.csr_array), space)
    parameters = np.random.RandomState(1).normal(size=len(inside.start()))
    close(outside.metric(at=parameters)(parameters), inside.metric(at=parameters)(parameters))


def test_stand_ins_have_the_mean_and_the_second_moments_of_the_rows():
    space = SPACES["cardinality"]
    X, Y, weights = make_rows(space)
    X = np.column_stack([X, X[:, 0] + X[:, 1]])  # of lower rank than columns
    inside, outside = both_objectives(X, Y, weights, space)
    stand_ins = outside.design.X
    close(stand_ins.mean(axis=0), np.zeros(6))
    close(stand_ins.T @ stand_ins / len(stand_ins), inside.design.gram() / inside.design.total_weight)
    parameters = np.random.RandomState(1).normal(size=len(inside.start()))
    _, _, variances, misfit, of_biases = outside.with_curvatures(parameters)
    _, _, each_variance, each_misfit, inside_biases = inside.with_curvatures(parameters)
    close(variances.sum(axis=0), each_variance.sum(axis=0))
    close(misfit.sum(axis=0), each_misfit.sum(axis=0))
    close(of_biases, inside_biases)


def test_stand_ins_of_many_features_match_the_squares_alone(monkeypatch):
    monkeypatch.setattr("mlrh.fitting.design.MAX_STAND_INS", 3)
    space = SPACES["cardinality"]
    inside, outside = both_objectives(*make_rows(space), space)
    stand_ins = outside.design.X.toarray()
    expected = np.diag(inside.design.squared_norms() / inside.design.total_weight)
    close(stand_ins.T @ stand_ins / len(stand_ins), expected)


@pytest.mark.parametrize("offset", [0.0, 1e3])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_the_labels_own_models_are_sums_over_all_rows(form, offset):
    space = SPACES["cardinality"]
    X, Y, weights = make_rows(space)
    X = X + offset
    inside, outside = both_objectives(form(X), Y, weights, space)
    parameters = np.random.RandomState(1).normal(size=len(inside.start())) / (1 + offset)
    members = [np.array(own, np.int64) for own in ([0, 2, 4], [], [1], [0, 1, 2, 3, 4])]
    models = outside.own_models(parameters, members, (1.5, 0.25))
    _, _, variances, misfit, _ = inside.with_curvatures(parameters)
    centred = X - np.average(X, axis=0, weights=weights)
    for k, own in enumerate(members):
        rows_of_label = np.column_stack([np.ones(60), centred[:, own]])
        expected = rows_of_label.T @ ((1.5 * variances + 0.25 * misfit)[:, k, None] * rows_of_label)
        np.testing.assert_allclose(models[k], expected, rtol=1e-8, atol=1e-8)
    assert inside.own_models(parameters, members, (1.5, 0.25)) is None


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_models_that_come_with_an_evaluation_are_those_of_a_pass_of_their_own(form):
    space = SPACES["cardinality"]
    X, Y, weights = make_rows(space)
    inside, outside = both_objectives(form(X), Y, weights, space)
    parameters = np.random.RandomState(1).normal(size=len(inside.start()))
    members = [np.array(own, np.int64) for own in ([0, 2, 4], [], [1], [0, 1, 2, 3, 4])]
    evaluated, models = outside.with_models(parameters, members)
    for found, expected in zip(evaluated, outside.with_curvatures(parameters), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    alone = outside.own_models(parameters, members, (1.5, 0.25))
    for (by_curvature, by_misfit), expected in zip(models, alone, strict=True):
        np.testing.assert_allclose(1.5 * by_curvature + 0.25 * by_misfit, expected, rtol=1e-9, atol=1e-9)
    assert inside.with_models(parameters, members)[1] is None


@pytest.mark.parametrize("ridge", [0.1, np.inf])
def test_coordinate_descent_by_sums_ends_where_that_over_rows_does(ridge):
    rng = np.random.RandomState(0)
    X, weights, gradient = rng.normal(size=(40, 6)), rng.uniform(size=40), 5 * rng.normal(size=6)
    over_rows = np.array([0.5, 0, -2, 0, 1, 0])
    by_sums, members = over_rows[[0, 2, 3, 5]].copy(), np.array([0, 2, 3, 5])
    options = (3.0, ridge), (2.0, 0.2), (10_000, 0.0)
    expected = descend(columns_of(X), members, weights, over_rows, gradient, *options)
    rows_of_model = np.column_stack([np.ones(40), X[:, members]])
    sums = rows_of_model.T @ (weights[:, None] * rows_of_model)
    np.testing.assert_allclose(descend_by_sums(sums, by_sums, gradient[members], *options), expected, rtol=1e-9)
    np.testing.assert_allclose(by_sums, over_rows[members], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_a_transposed_sparse_product_is_that_of_dense_matrices(n_jobs, monkeypatch):
    monkeypatch.setattr(_products, "TARGET_OPERATIONS", 200)
    rng = np.random.RandomState(0)
    X = sparse.random_array((3000, 7), density=0.3, format="csr", random_state=rng)
    factor = rng.normal(size=(3000, 5))
    product = _products.multiply_sparse_transposed(X, factor, n_jobs=n_jobs)
    np.testing.assert_allclose(product, X.toarray().T @ factor, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(product, _products.multiply_sparse_transposed(X, factor, n_jobs=1))
    empty = _products.multiply_sparse_transposed(X[:0], factor[:0], n_jobs=n_jobs)
    np.testing.assert_array_equal(empty, np.zeros((7, 5)))


def test_an_error_in_the_thread_that_reads_ahead_is_raised_where_the_rows_are_asked():
    def chunks():
        yield 1
        raise OSError("the disk is gone")

    read = rows.ahead(chunks())
    assert next(read) == 1
    with pytest.raises(OSError, match="the disk is gone"):
        next(read)


def test_parts_in_float32_are_summed_in_float64():
    space = SPACES["cardinality"]
    X, Y, weights = make_rows(space)
    inside, outside = both_objectives(X.astype(np.float32), Y, weights, space)
    parameters = np.random.RandomState(1).normal(size=len(inside.start()))
    gradient = outside.value_and_gradient(parameters)[1]
    assert gradient.dtype == np.float64 and outside.design.dtype == np.float32
    np.testing.assert_allclose(gradient, inside.value_and_gradient(parameters)[1], rtol=1e-4, atol=1e-3)


def test_a_part_without_far_columns_is_not_copied():
    X, _, weights = make_rows(SPACES["cardinality"])
    whole = FeatureSums.of(Design(X, weights, fit_intercept=True))
    assert len(whole.far) == 0
    assert np.shares_memory(PartOfDesign(X, weights, whole, fit_intercept=True).X, X)
