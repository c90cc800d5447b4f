"""Approximate kernels: the model is linear in features of scikit-learn's, and says how far these are off."""

import numpy as np
import pytest
import sklearn
from samples import make_multilabel
from scipy import linalg, sparse
from sklearn.base import clone
from sklearn.metrics.pairwise import rbf_kernel

from mlrh import KernelMLRHClassifier, KernelMLRHClassifierCV, MLRHClassifier, _budget
from mlrh.estimators import gamma_scale, kernel
from mlrh.persistence import ModelFileError, load, save

X, Y = make_multilabel(160, n_features=5)
NEW = np.random.RandomState(1).normal(size=(30, 5))
KINDS = ("nystroem", "fourier")
BOTH = pytest.mark.parametrize("kind", KINDS)


def approximate(kind, **options):
    return KernelMLRHClassifier(**{"kernel_approximation": kind, "n_components": 40, "random_state": 0, **options})


def features_of(fitted, X):
    """The features that an approximation stands for, by its fitted attributes alone."""
    if fitted.kernel_map_ is not None:
        inner = X @ fitted.kernel_map_.random_weights_ + fitted.kernel_map_.random_offset_
        return np.sqrt(2 / inner.shape[1]) * np.cos(inner)
    gamma = gamma_scale(globals()["X"])
    values, vectors = linalg.eigh(rbf_kernel(fitted.X_fit_, gamma=gamma))
    return rbf_kernel(X, fitted.X_fit_, gamma=gamma) @ vectors / np.sqrt(values)


@BOTH
def test_the_model_is_the_linear_one_of_the_features(kind):
    fitted = approximate(kind, C=5.0, tol=1e-14).fit(X, Y)
    linear = MLRHClassifier(C=5.0, tol=1e-14).fit(features_of(fitted, X), Y)
    found, expected = fitted.predict_proba(NEW), linear.predict_proba(features_of(fitted, NEW))
    np.testing.assert_allclose(found, expected, atol=1e-6)  # tol leaves 1e-7 in probabilities


@BOTH
def test_the_error_is_that_of_the_products_of_features(kind):
    fitted = approximate(kind).fit(X, Y)
    exact, features = rbf_kernel(X, gamma=gamma_scale(X)), features_of(fitted, X)
    expected = linalg.norm(features @ features.T - exact) / linalg.norm(exact)
    assert fitted.kernel_error_ == pytest.approx(expected, rel=1e-6)  # of all rows: there are fewer than are drawn
    assert KernelMLRHClassifier().fit(X, Y).kernel_error_ == 0


@BOTH
def test_more_components_are_nearer_to_the_exact_kernel(kind):
    exact = KernelMLRHClassifier().fit(X, Y).predict_proba(NEW)
    fits = [approximate(kind, n_components=n).fit(X, Y) for n in (5, 50, 150)]
    errors = [fitted.kernel_error_ for fitted in fits]
    distances = [np.abs(fitted.predict_proba(NEW) - exact).mean() for fitted in fits]
    assert errors[0] > 2 * errors[1] > 2 * errors[2] and distances[0] > 1.5 * distances[2]


@pytest.mark.parametrize("options", [{}, {"kernel": "poly", "degree": 2, "coef0": 1.0}, {"kernel": "linear"}])
def test_nystroem_of_all_rows_is_the_exact_kernel(options):
    exact = KernelMLRHClassifier(tol=1e-12, **options).fit(X, Y)
    fitted = approximate("nystroem", n_components=500, tol=1e-12, **options).fit(X, Y)
    np.testing.assert_allclose(fitted.predict_proba(NEW), exact.predict_proba(NEW), atol=1e-5)
    assert fitted.kernel_error_ < 1e-6 and sorted(fitted.support_) == list(range(len(X)))


def test_nystroem_keeps_the_rows_that_it_drew_and_answers_as_exact_models_do():
    weights = np.arange(len(X)) % 2  # every other row is left out
    fitted = approximate("nystroem").fit(X, Y, weights)
    assert fitted.dual_coef_.shape == (4, 40) and (fitted.support_ % 2 == 1).all()
    np.testing.assert_array_equal(fitted.X_fit_, X[fitted.support_])
    scores = rbf_kernel(NEW, fitted.X_fit_, gamma=fitted._gamma) @ fitted.dual_coef_.T + fitted.intercept_
    np.testing.assert_allclose(fitted.decision_function(NEW), scores, atol=1e-12)


def test_a_row_of_weight_2_is_the_row_twice():
    weights, twice = np.ones(len(X)), np.arange(40)
    weights[twice] = 2
    weighted = approximate("fourier", tol=1e-12).fit(X, Y, weights)
    repeated = approximate("fourier", tol=1e-12).fit(np.concatenate([X, X[twice]]), np.concatenate([Y, Y[twice]]))
    np.testing.assert_allclose(weighted.predict_proba(NEW), repeated.predict_proba(NEW), atol=1e-6)


@BOTH
def test_sparse_rows_give_the_model_of_dense_ones(kind):
    own = X * (X > 0)
    dense, fitted = (approximate(kind, C=3.0, tol=1e-12).fit(form(own), Y) for form in (np.asarray, sparse.csr_array))
    np.testing.assert_allclose(fitted.predict_proba(sparse.csr_array(NEW)), dense.predict_proba(NEW), atol=1e-6)


@BOTH
def test_float32_rows_give_the_model_of_float64_to_their_digits_and_answers_in_float32(kind):
    own = X.astype(np.float32)
    narrow, wide = (approximate(kind, C=3.0, tol=1e-10).fit(rows, Y) for rows in (own, own.astype(np.float64)))
    found = narrow.predict_proba(NEW.astype(np.float32))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wide.predict_proba(NEW), atol=1e-4)  # features in float32


@BOTH
def test_unknown_labels_are_summed_out_as_with_exact_kernels(kind):
    partly = Y.astype(float)
    partly[::3, 1] = np.nan
    fitted = approximate(kind, tol=1e-12).fit(X, partly)
    linear = MLRHClassifier(tol=1e-12).fit(features_of(fitted, X), partly)
    assert fitted.objective_ == pytest.approx(linear.objective_, rel=1e-8)


@BOTH
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_a_warm_start_begins_where_the_last_fit_ended(kind, fit_intercept):
    model = approximate(kind, warm_start=True, fit_intercept=fit_intercept, tol=1e-9).fit(X, Y)
    first, reached = model.n_iter_, model.objective_
    model.fit(X, Y)
    assert model.n_iter_ <= 1 < first and model.objective_ == pytest.approx(reached, rel=1e-8)
    exact = model.set_params(kernel_approximation=None).fit(X, Y)  # from one kind to the other
    alone = KernelMLRHClassifier(fit_intercept=fit_intercept, tol=1e-9).fit(X, Y)
    assert exact.objective_ == pytest.approx(alone.objective_, rel=1e-7) and exact.kernel_map_ is None


@BOTH
def test_the_same_seed_gives_the_same_model_and_another_another(kind):
    first, again, other = (approximate(kind, random_state=seed).fit(X, Y).predict_proba(NEW) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3


@BOTH
def test_a_file_gives_the_same_answers(kind, tmp_path):
    chosen = KernelMLRHClassifierCV(Cs=[0.1, 1.0], cv=2, kernel_approximation=kind, n_components=20, random_state=0)
    for model in (approximate(kind), chosen):
        model.fit(X, Y)
        save(model, tmp_path / "model.mlrh")
        loaded = load(tmp_path / "model.mlrh")
        np.testing.assert_array_equal(loaded.predict_proba(NEW), model.predict_proba(NEW))
        assert loaded.kernel_error_ == model.kernel_error_ > 0


def test_a_file_whose_map_is_of_other_features_is_refused(tmp_path):
    model, other = approximate("fourier").fit(X, Y), approximate("fourier").fit(X[:, :4], Y)
    for wrong in (other.kernel_map_, clone(model.kernel_map_)):  # the second is not fitted
        model.kernel_map_ = wrong
        with pytest.raises(ModelFileError):
            save(model, tmp_path / "model.mlrh")


@BOTH
def test_scores_of_folds_are_those_of_fits_by_hand(kind):
    folds = [(np.arange(80, 160), np.arange(80)), (np.arange(80), np.arange(80, 160))]
    options = {"kernel_approximation": kind, "n_components": 30, "random_state": 3}
    chosen = KernelMLRHClassifierCV(Cs=[0.1, 10.0], cv=folds, **options).fit(X, Y)
    by_hand = [
        [KernelMLRHClassifier(C=C, **options).fit(X[train], Y[train]).score(X[held], Y[held]) for C in (0.1, 10.0)]
        for train, held in folds
    ]
    np.testing.assert_allclose(chosen.scores_[:, 0], by_hand, atol=1.5 / 80)  # a row at the border may fall over it


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kernel_approximation": "fourier", "kernel": "poly"}, "is for kernel='rbf' only; got 'poly'"),
        ({"kernel_approximation": "nystroem", "kernel": "precomputed"}, "needs a kernel that has a name"),
        ({"kernel_approximation": "nystroem", "kernel": lambda a, b: a @ b.T}, "needs a kernel that has a name"),
    ],
)
def test_a_kernel_that_cant_be_approximated_is_refused(options, words):
    rows = X @ X.T if options["kernel"] == "precomputed" else X
    for model in (KernelMLRHClassifier(**options), KernelMLRHClassifierCV(Cs=[1.0], cv=2, **options)):
        with pytest.raises(ValueError, match=words):
            model.fit(rows, Y)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_nystroem_refuses_a_kernel_that_the_exact_fit_refuses(form):
    options = {"kernel": "sigmoid", "gamma": 1.0, "coef0": -1.0}
    for model in (KernelMLRHClassifier(**options), approximate("nystroem", **options)):
        with pytest.raises(ValueError, match="must be positive semidefinite; its smallest eigenvalue is -"):
            model.fit(form(X), Y)


def test_rows_on_a_device_are_refused_by_fits_and_by_cosines_and_answered_by_drawn_rows(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")  # which scikit-learn asks for
    drawn, cosines = (approximate(kind).fit(X, Y) for kind in KINDS)
    with sklearn.config_context(array_api_dispatch=True):
        with pytest.raises(ValueError, match="is for X on the CPU"):
            approximate("nystroem").fit(torch.tensor(X), torch.tensor(Y))
        with pytest.raises(ValueError, match="is for X on the CPU"):
            cosines.predict_proba(torch.tensor(NEW))
        np.testing.assert_allclose(drawn.predict_proba(torch.tensor(NEW)), drawn.predict_proba(NEW), atol=1e-10)


def test_an_exact_fit_beyond_the_memory_is_refused_before_it_is_begun(monkeypatch):
    monkeypatch.setattr(_budget, "available", lambda: 33 * 150**2)
    with pytest.raises(MemoryError, match=r"160 rows takes about 0\.0 GB") as error:
        KernelMLRHClassifier().fit(X, Y)
    assert "Use kernel_approximation='nystroem'" in str(error.value)
    KernelMLRHClassifier().fit(X[:150], Y[:150])
    approximate("nystroem").fit(X, Y)
    monkeypatch.setattr(_budget, "available", lambda: None)  # nothing says how much there is
    KernelMLRHClassifier().fit(X, Y)


def test_verbose_tells_the_error_and_the_memory_of_many_rows(monkeypatch, capsys):
    fitted = approximate("fourier", verbose=1).fit(X, Y)
    said = capsys.readouterr().out.splitlines()[0]
    assert said == (
        "[KernelMLRHClassifier] kernel_approximation='fourier', 40 components: relative error of the kernel "
        f"{fitted.kernel_error_:.2g}"
    )
    monkeypatch.setattr(kernel, "MANY_ROWS", 100)
    KernelMLRHClassifier(verbose=1).fit(X, Y)
    assert capsys.readouterr().out.startswith("[KernelMLRHClassifier] exact kernel of 160 rows: about 0.0 GB of memory")
