"""Features and weights that can't be used are refused with a sentence, by every class and method that takes them."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from mlrh import KernelMLRHClassifier, KernelMLRHClassifierCV, MLRHClassifier, MLRHClassifierCV
from mlrh.baselines import IBLR, CCnet, CorrLog, LabelPowerset, MLkNN, OrConstant, ProbabilisticChain
from mlrh.estimators import CalibratedSets, TunedThresholds

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
Y = (X + RNG.normal(size=(60, 3)) > 0).astype(int)
LINEAR = MLRHClassifier(tol=1e-3)
ESTIMATORS = {
    "linear": LINEAR,
    "kernel": KernelMLRHClassifier(tol=1e-3),
    "linear CV": MLRHClassifierCV(Cs=[1.0], cv=2, tol=1e-3),
    "kernel CV": KernelMLRHClassifierCV(Cs=[1.0], cv=2, tol=1e-3),
    "calibrated": CalibratedSets(LINEAR, cv=2),
    "thresholds": TunedThresholds(LINEAR, cv=2),
    "powerset": LabelPowerset(LogisticRegression()),
    "neighbours": MLkNN(n_neighbors=3),
    "shares of neighbours": IBLR(n_neighbors=3),
    "pairs of labels": CorrLog(tol=1e-3),
    "searched chain": ProbabilisticChain(),
    "nets in a chain": CCnet([1.0], l1_ratios=[0.5], cv=2),
    "constant": OrConstant(LogisticRegression()),
}
MASKED = np.ma.masked_array(X, np.arange(180).reshape(60, 3) == 7)


def broken(form):
    """A sparse matrix with a column index beyond its columns, as only a fault elsewhere can make it."""
    matrix = sparse.csr_array(X).asformat(form)
    indices = matrix.col if form == "coo" else matrix.indices
    indices[5] = 2**20
    return matrix


def targets(name):
    return Y[:, 0] if name == "constant" else Y


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr"])
def test_a_sparse_matrix_with_an_index_out_of_range_is_refused(name, form):
    with pytest.raises(ValueError, match=r"X must be a valid sparse matrix; got one where .* must "):
        ESTIMATORS[name].fit(broken(form), targets(name))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_predict_refuses_a_broken_sparse_matrix_and_masked_entries(name):
    fitted = ESTIMATORS[name].fit(X, targets(name))
    with pytest.raises(ValueError, match="X must be a valid sparse matrix"):
        fitted.predict(broken("csr"))
    with pytest.raises(ValueError, match="X must have a value in every place; got 1 masked entries"):
        fitted.predict(MASKED)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_masked_entries_of_X_are_refused_and_an_empty_mask_is_not(name):
    with pytest.raises(ValueError, match="X must have a value in every place; got 1 masked entries"):
        ESTIMATORS[name].fit(MASKED, targets(name))
    ESTIMATORS[name].fit(np.ma.masked_array(X), targets(name))


@pytest.mark.parametrize("indptr", [[0, 2, 1, 3], [1, 2, 3, 3], [0, 1, 2, 9], [0, 3]])
def test_a_sparse_matrix_with_row_ends_that_contradict_its_entries_is_refused(indptr):
    matrix = sparse.csr_array(np.eye(3))
    matrix.indptr = np.array(indptr, np.int32)
    with pytest.raises(ValueError, match=r"X must be a valid sparse matrix; got one where indptr"):
        MLRHClassifier().fit(matrix, Y[:3])


def test_partial_fit_refuses_what_fit_refuses():
    for bad, message in ((MASKED, "1 masked"), (broken("csr"), "valid sparse"), (X.astype("f4") * 1e37, "in float32")):
        with pytest.raises(ValueError, match=message):
            MLRHClassifier().partial_fit(bad, Y, classes=range(3))


@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array])
def test_float32_features_are_fitted_up_to_the_bound_and_refused_beyond(convert):
    few = MLRHClassifier().fit(X, Y)
    large = MLRHClassifier(tol=1e-9).fit(convert((X * 1e14).astype(np.float32)), Y)
    # At 1e14 the penalty no longer counts, so the probabilities are those of a fit without one.
    free = MLRHClassifier(C=np.inf, tol=1e-9).fit(X, Y)
    np.testing.assert_allclose(large.predict_proba((X * 1e14).astype(np.float32)), free.predict_proba(X), atol=1e-3)
    assert np.abs(few.predict_proba(X) - free.predict_proba(X)).max() > 2e-3
    with pytest.raises(ValueError, match=r"Features in float32 must be at most 1e\+30 in magnitude; got .*e\+37"):
        MLRHClassifier().fit(convert((X * 1e37).astype(np.float32)), Y)


@pytest.mark.parametrize("weight", [1e300, 1e-300, 1.01e100, 0.99e-100])
@pytest.mark.parametrize("name", ["linear", "kernel", "linear CV"])
def test_weights_beyond_the_bounds_are_refused(name, weight):
    with pytest.raises(ValueError, match=r"a sample_weight must be 0 or lie from 1e-100 to 1e\+100; got "):
        ESTIMATORS[name].fit(X, Y, sample_weight=np.full(60, weight))


@pytest.mark.parametrize(
    ("dtype", "weight"), [(np.float64, 1e100), (np.float64, 1e-100), (np.float32, 1e15), (np.float32, 1e-15)]
)
def test_weights_at_the_bounds_and_C_at_the_other_end_are_a_fit_without_weights(dtype, weight):
    # Only the product of C and weight counts.
    expected = MLRHClassifier(tol=1e-7).fit(X.astype(dtype), Y)
    weighted = MLRHClassifier(C=1 / weight, tol=1e-7).fit(X.astype(dtype), Y, sample_weight=np.full(60, weight))
    tolerance = 1e-5 if dtype == np.float64 else 2e-3  # tol of the solver; digits of float32
    np.testing.assert_allclose(weighted.coef_, expected.coef_, rtol=0, atol=tolerance)
    with pytest.raises(ValueError, match=f"With X in {np.dtype(dtype)}, a sample_weight must be 0 or lie from"):
        MLRHClassifier().fit(X.astype(dtype), Y, sample_weight=np.full(60, weight * (1.1 if weight > 1 else 0.9)))


def test_weights_that_take_sums_of_float32_features_out_of_range_get_a_sentence():
    with pytest.raises(ValueError, match=r"at most 1e\+37; got \S+e\+25 and 6e\+1\d"):
        MLRHClassifier().fit((X * 1e25).astype(np.float32), Y, np.full(len(X), 1e15))
