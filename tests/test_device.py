"""Fits and answers where X lies: tensors on the CPU stand for those on a GPU, by scikit-learn's array_api_dispatch."""

import sys
from types import ModuleType

import numpy as np
import pytest
import sklearn

pytest.importorskip("torch")

import torch
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import ClassifierChain

from benchmarks import fit_gpu, problems
from mlrh import (
    CalibratedSets,
    KernelMLRHClassifier,
    KernelMLRHClassifierCV,
    MLRHAuto,
    MLRHBoostingClassifier,
    MLRHClassifier,
    MLRHClassifierCV,
    PooledSets,
    TunedThresholds,
)
from mlrh.baselines import (
    IBLR,
    CCnet,
    CorrLog,
    LabelPowerset,
    MLkNN,
    OrConstant,
    ProbabilisticChain,
    chain_set_log_proba,
)
from mlrh.estimators import _device
from mlrh.fitting.device import DeviceMemory
from mlrh.fitting.solvers.lbfgs import Memory
from mlrh.persistence import load, save
from mlrh.spaces import CardinalitySpace, GroupSpace, HierarchySpace

N_ROWS, N_FEATURES, N_LABELS = 120, 7, 5


@pytest.fixture(autouse=True)
def dispatch(monkeypatch):
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")  # which scikit-learn asks for
    with sklearn.config_context(array_api_dispatch=True):
        yield


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N_ROWS, N_FEATURES)) * 3 + 1
    Y = (X[:, :N_LABELS] + rng.logistic(size=(N_ROWS, N_LABELS)) > 4).astype(int)
    Y[np.arange(N_ROWS), rng.integers(0, N_LABELS, N_ROWS)] = 1
    return X, Y, rng.random(N_ROWS) + 0.5


def tensors(*arrays, dtype=torch.float64):
    return [torch.tensor(array, dtype=dtype if array.dtype.kind == "f" else None) for array in arrays]


def assert_same_model(ours, theirs, X, *, atol=1e-6):
    """The same optimum: objectives equal to what tol=1e-14 leaves, probabilities to its square root and some."""
    assert ours.objective_ == pytest.approx(theirs.objective_, rel=1e-10)
    found = ours.predict_proba(torch.tensor(X))
    assert isinstance(found, torch.Tensor) and found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), theirs.predict_proba(X), atol=atol)


SETTINGS = {
    "cardinality": {},
    "size bias": {"size_bias": True},
    "observed": {"label_space": "observed"},
    "open": {"label_space": "open", "set_bias_strength": 1.0},
    "open, strength chosen": {"label_space": "open"},
    "without intercept": {"fit_intercept": False},
    "any size": {"min_labels": 0, "max_labels": N_LABELS},
}


@pytest.mark.parametrize("kind", [MLRHClassifier, KernelMLRHClassifier])
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_model_of_a_device_is_that_of_the_cpu(kind, setting, rows):
    X, Y, weights = rows
    model = kind(C=0.3, tol=1e-14, **SETTINGS[setting])
    ours = sklearn.clone(model).fit(*tensors(X, Y, weights))
    assert_same_model(ours, sklearn.clone(model).fit(X, Y, weights), X)


def test_unknown_labels_are_fitted_as_on_the_cpu(rows):
    X, Y, _ = rows
    Y = Y.astype(float)
    Y[np.random.default_rng(1).random(Y.shape) < 0.1] = np.nan
    model = MLRHClassifier(tol=1e-14)
    assert_same_model(sklearn.clone(model).fit(*tensors(X, Y)), sklearn.clone(model).fit(X, Y), X)


@pytest.mark.parametrize("kind", ["groups", "hierarchy", "own"])
def test_structured_spaces_and_ones_own_are_fitted_as_on_the_cpu(kind, rows):
    X, Y, _ = rows
    Y = Y.copy()
    if kind == "hierarchy":
        Y[:, 0] |= Y[:, 1]
        space = HierarchySpace([-1, 0, -1, -1, -1])
    elif kind == "groups":
        space = GroupSpace([([0, 1], 0, 2)], N_LABELS)
    else:
        space = OwnSpace(N_LABELS, 1, N_LABELS)
    model = MLRHClassifier(label_space=space, tol=1e-14)
    assert_same_model(sklearn.clone(model).fit(*tensors(X, Y)), sklearn.clone(model).fit(X, Y), X)


class OwnSpace(CardinalitySpace):
    """A space that torch knows nothing of."""


def test_iterations_are_counted_through_and_reported_with_arrays(rows, capsys):
    X, Y, _ = rows
    model = MLRHClassifier(C=100.0, verbose=1).fit(*tensors(X, Y))
    told = [line.split("iteration ")[1].split(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert told == [str(number + 1) for number in range(model.n_iter_)]
    assert len(model.history_) == model.n_iter_ + 1 and (np.diff(model.history_) < 1e-5 * model.history_[0]).all()


def test_a_kernel_matrix_that_is_not_symmetric_is_refused(rows):
    X, Y, _ = rows
    gram = X @ X.T
    gram[0, 1] += 1.0
    with pytest.raises(ValueError, match="must be symmetric"):
        KernelMLRHClassifier(kernel="precomputed").fit(*tensors(gram, Y))


def test_blocks_of_rows_change_nothing(rows, monkeypatch):
    from mlrh.fitting import device

    X, Y, weights = rows
    whole = MLRHClassifier(tol=1e-14).fit(*tensors(X, Y, weights))
    monkeypatch.setattr(device, "BLOCK_SCORES", 7 * N_LABELS)
    np.testing.assert_allclose(MLRHClassifier(tol=1e-14).fit(*tensors(X, Y, weights)).coef_, whole.coef_, atol=1e-6)


def test_features_that_depend_on_each_other_have_the_coefficients_of_least_norm(rows):
    X, Y, _ = rows
    X = np.c_[X, X[:, 0], np.zeros(len(X))]
    model = MLRHClassifier(tol=1e-14)
    assert_same_model(sklearn.clone(model).fit(*tensors(X, Y)), sklearn.clone(model).fit(X, Y), X)


def test_a_kernel_matrix_of_low_rank_is_factorised(rows):
    X, Y, _ = rows
    model = KernelMLRHClassifier(kernel="linear", tol=1e-14)  # of rank 7, for 120 rows
    assert_same_model(sklearn.clone(model).fit(*tensors(X, Y)), sklearn.clone(model).fit(X, Y), X)


@pytest.mark.parametrize("kernel", ["poly", "precomputed"])
def test_other_kernels_are_those_of_the_cpu(kernel, rows):
    X, Y, _ = rows
    X = X @ X.T / 100 if kernel == "precomputed" else X / 10
    model = KernelMLRHClassifier(kernel=kernel, gamma=0.05, coef0=0.5, degree=2, tol=1e-14)
    assert_same_model(sklearn.clone(model).fit(*tensors(X, Y)), sklearn.clone(model).fit(X, Y), X)


def test_rows_that_share_memory_with_those_of_the_fit_are_compared_one_by_one(rows):
    X, Y, _ = rows
    model = KernelMLRHClassifier().fit(X, Y)
    found = model.decision_function(torch.from_numpy(model.X_fit_)[::2])
    np.testing.assert_allclose(found.numpy(), model.decision_function(X[::2]), atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_row_is_not_apart_from_itself(dtype, rows):
    # Of such different magnitudes that sums of squares and products differ by rounding, also those of float32.
    X = torch.tensor(rows[0] * np.logspace(-3, 3, N_FEATURES), dtype=dtype)
    matrix = _device.kernel_matrix("rbf", X, X, gamma=1e9, degree=3, coef0=0.0)
    np.testing.assert_array_equal(np.diag(matrix.numpy()), 1.0)


def test_a_kernel_that_is_not_positive_semidefinite_is_refused(rows):
    X, Y, _ = rows
    with pytest.raises(ValueError, match="smallest eigenvalue"):
        KernelMLRHClassifier(kernel="sigmoid", gamma=1.0).fit(*tensors(X, Y))


def test_features_in_float32_are_answered_in_float32(rows):
    X, Y, _ = rows
    ours = MLRHClassifier(tol=1e-9).fit(*tensors(X, Y, dtype=torch.float32))
    found = ours.predict_proba(torch.tensor(X, dtype=torch.float32))
    assert found.dtype == torch.float32 and ours.coef_.dtype == np.float32
    # A gap of 1e-9 leaves about its root in probabilities.
    np.testing.assert_allclose(found.numpy(), MLRHClassifier(tol=1e-9).fit(X, Y).predict_proba(X), atol=1e-3)


def test_the_classes_that_choose_choose_the_same(rows):
    X, Y, weights = rows
    for model in (
        MLRHClassifierCV(Cs=[0.001, 0.1, 10.0], cv=3, scoring="log_prob", tol=1e-9),
        KernelMLRHClassifierCV(Cs=[0.1, 10.0], gammas=["scale", 0.5], cv=3, scoring="log_prob", tol=1e-9),
    ):
        ours = sklearn.clone(model).fit(*tensors(X, Y, weights))
        theirs = sklearn.clone(model).fit(X, Y, weights)
        assert ours.C_ == theirs.C_
        np.testing.assert_allclose(ours.scores_, theirs.scores_, atol=1e-4)


@pytest.mark.parametrize("decision", ["exact_match", "hamming", "f1", "jaccard", ("top", 2)])
def test_decisions_are_those_of_the_cpu_as_tensors(decision, rows):
    X, Y, _ = rows
    theirs = MLRHClassifier(decision=decision).fit(X, Y)
    found = theirs.predict(torch.tensor(X))  # a model of the CPU answers tensors, too
    assert isinstance(found, torch.Tensor) and found.dtype == torch.int64
    np.testing.assert_array_equal(found.numpy(), theirs.predict(X))
    assert theirs.score(*tensors(X, Y)) == theirs.score(X, Y)


def test_scores_distributions_and_logarithms_are_tensors(rows):
    X, Y, _ = rows
    model = MLRHClassifier().fit(X, Y)
    rows_there = torch.tensor(X)
    np.testing.assert_allclose(model.decision_function(rows_there).numpy(), model.decision_function(X), atol=1e-12)
    np.testing.assert_allclose(model.predict_log_proba(rows_there).numpy(), model.predict_log_proba(X), atol=1e-10)
    found = model.distribution(rows_there).log_prob(torch.tensor(Y))
    np.testing.assert_allclose(found.numpy(), model.distribution(X).log_prob(Y), atol=1e-10)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_one_class_per_row_is_answered_by_a_tensor_of_classes(n_classes, rows):
    X, _, _ = rows
    y = (X[:, 0] * n_classes).astype(int) % n_classes + 10
    ours, theirs = MLRHClassifier(tol=1e-14).fit(*tensors(X, y)), MLRHClassifier(tol=1e-14).fit(X, y)
    found = ours.predict(torch.tensor(X))
    assert isinstance(found, torch.Tensor)
    np.testing.assert_array_equal(found.numpy(), theirs.predict(X))
    np.testing.assert_allclose(ours.predict_proba(torch.tensor(X)).numpy(), theirs.predict_proba(X), atol=1e-6)


def test_label_sets_are_answered_by_sets(rows):
    X, Y, _ = rows
    sets = [{"abcde"[k] for k in np.flatnonzero(row)} for row in Y]
    assert MLRHClassifier().fit(torch.tensor(X), sets).predict(torch.tensor(X)) == MLRHClassifier().fit(
        X, sets
    ).predict(X)


def test_attributes_are_arrays_so_that_the_model_is_saved_and_used_anywhere(rows, tmp_path):
    X, Y, _ = rows
    for model in (MLRHClassifier(), KernelMLRHClassifier()):
        ours = model.fit(*tensors(X, Y))
        save(ours, tmp_path / "model.mlrh")
        again = load(tmp_path / "model.mlrh")
        np.testing.assert_array_equal(again.predict(X), ours.predict(torch.tensor(X)).numpy())


def test_a_warm_start_goes_on_from_the_last_fit(rows):
    X, Y, _ = rows
    model = MLRHClassifier(warm_start=True, tol=1e-9).fit(*tensors(X, Y))
    assert model.n_iter_ > 3
    assert model.fit(*tensors(X, Y)).n_iter_ <= 2


def test_without_dispatch_tensors_on_the_cpu_are_arrays(rows):
    X, Y, _ = rows
    with sklearn.config_context(array_api_dispatch=False):
        model = MLRHClassifier().fit(*tensors(X, Y))
        assert isinstance(model.predict_proba(torch.tensor(X)), np.ndarray)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"l1_ratio": 0.5}, "L1"),
        ({"solver": "mm"}, "'auto' or 'lbfgs'"),
        ({"answer_sizes": (1, 2)}, "without answer_sizes"),
        ({"decision": lambda distribution: distribution.mode()}, "without a function of your own"),
    ],
)
def test_what_cannot_run_on_a_device_says_so(options, words, rows):
    X, Y, _ = rows
    with pytest.raises(ValueError, match=words):
        MLRHClassifier(**options).fit(*tensors(X, Y))


def test_the_best_set_by_jaccard_is_found_on_a_device_in_the_cardinality_space_alone(rows):
    X, Y, _ = rows
    model = MLRHClassifier(label_space="observed", decision="jaccard").fit(*tensors(X, Y))
    with pytest.raises(ValueError, match=r"the Jaccard index .* for a cardinality space only"):
        model.predict(torch.tensor(X))


@pytest.mark.parametrize("options", [{"l1_ratio": 0.5}, {"solver": "mm"}])
def test_a_model_of_the_cpu_answers_rows_on_a_device_whatever_its_fit_needed(options, rows):
    X, Y, _ = rows
    model = MLRHClassifier(**options).fit(X, Y)
    np.testing.assert_array_equal(model.predict(torch.tensor(X)).numpy(), model.predict(X))
    model.set_params(answer_sizes=(1, 2))
    with pytest.raises(ValueError, match="without answer_sizes"):
        model.predict(torch.tensor(X))


def test_classes_are_answered_on_a_device_whatever_the_decision_on_sets(rows):
    X, Y, _ = rows
    model = MLRHClassifier(decision=lambda distribution: distribution.mode()).fit(X, Y[:, 0])
    np.testing.assert_array_equal(model.predict(torch.tensor(X)).numpy(), model.predict(X))


def needing(estimator):
    """Calls of an estimator with X on a device, by name: its fit, and its answers once it is fitted to an array."""
    ways = {"fit": lambda X, Y: sklearn.clone(estimator).fit(*tensors(X, Y))}
    for name in (name for name in ("predict", "predict_proba", "distribution") if hasattr(estimator, name)):
        ways[name] = lambda X, Y, name=name: getattr(sklearn.clone(estimator).fit(X, Y), name)(torch.tensor(X))
    return {f"{type(estimator).__name__}.{name}": way for name, way in ways.items()}


ON_THE_CPU_ONLY = {
    "partial_fit": lambda X, Y: MLRHClassifier().partial_fit(*tensors(X, Y), classes=range(N_LABELS)),
    "fit_chunks, tuples": lambda X, Y: MLRHClassifier().fit_chunks([tuple(tensors(X, Y))]),
    "fit_chunks, arrays": lambda X, Y: MLRHClassifier().fit_chunks(tuple(tensors(X, Y))),
    **needing(CalibratedSets(MLRHClassifier(), cv=2)),
    **needing(TunedThresholds(MLRHClassifier(), cv=2)),
    **needing(PooledSets([("linear", MLRHClassifier())], weights="equal")),
    **needing(LabelPowerset(MLRHClassifier())),
    **needing(CorrLog()),
    **needing(MLkNN()),
    **needing(IBLR()),
    **needing(ProbabilisticChain(LogisticRegression())),
    **needing(CCnet(Cs=(1.0,), l1_ratios=(0.5,), cv=2)),
    "chain_set_log_proba": lambda X, Y: chain_set_log_proba(
        ClassifierChain(LogisticRegression()).fit(X, Y), torch.tensor(X), Y
    ),
    "OrConstant.fit": lambda X, Y: OrConstant(MLRHClassifier()).fit(*tensors(X, Y[:, 0])),
    "MLRHBoostingClassifier.fit": lambda X, Y: MLRHBoostingClassifier().fit(*tensors(X, Y)),
    "MLRHAuto.fit": lambda X, Y: MLRHAuto().fit(*tensors(X, Y)),
}


@pytest.mark.parametrize("call", ON_THE_CPU_ONLY)
def test_what_works_on_the_cpu_only_says_so_in_a_sentence(call, rows):
    X, Y, _ = rows
    name = call.partition(".")[0].partition(",")[0]
    expected = rf"{name} needs X as an array of NumPy; got a Tensor on a device\. Use X\.cpu\(\)\.numpy\(\)\."
    with pytest.raises(ValueError, match=expected):
        ON_THE_CPU_ONLY[call](X, Y)


def test_a_scoring_of_scikit_learn_is_refused_before_anything_is_fitted_and_a_function_is_given_the_device_rows(rows):
    X, Y, _ = rows
    for name, model in (("accuracy", MLRHClassifierCV), ("f1_samples", KernelMLRHClassifierCV)):
        with pytest.raises(ValueError, match=f"scoring='{name}' of scikit-learn needs X as an array of NumPy"):
            model(cv=2, scoring=name).fit(*tensors(X, Y))
    model = MLRHClassifierCV(Cs=[0.001, 0.1], cv=2, scoring=lambda fitted, X, y: fitted.score(X, y))
    by_exact_match = sklearn.clone(model).set_params(scoring=None).fit(*tensors(X, Y))
    np.testing.assert_allclose(model.fit(*tensors(X, Y)).scores_, by_exact_match.scores_)


def test_bad_features_are_refused_in_a_sentence(rows):
    X, Y, _ = rows
    model = MLRHClassifier().fit(X, Y)
    wrong = X.copy()
    wrong[3, 1] = np.nan
    for bad, words in (
        (torch.tensor(wrong), "finite"),
        (torch.tensor(X)[:, :3], "is expecting 7 features"),
        (torch.tensor(X)[0], "at least one row"),
        (torch.tensor(X).to_sparse(), "must be dense"),
    ):
        with pytest.raises(ValueError, match=words):
            model.predict(bad)
    with pytest.raises(ValueError, match="'linear', 'poly', 'rbf'"):
        KernelMLRHClassifier(kernel="laplacian").fit(*tensors(X, Y))


class CupyArray:
    """What of an array of CuPy the classifiers use, around one of NumPy."""

    def __init__(self, values):
        self.values = np.array(values)
        self.shape, self.ndim, self.dtype = self.values.shape, self.values.ndim, self.values.dtype

    def __len__(self):
        return len(self.values)

    def __getitem__(self, place):
        return CupyArray(self.values[place])

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()

    def get(self):
        return self.values


CupyArray.__module__ = "cupy"


@pytest.fixture
def cupy(monkeypatch):
    """A module in the place of CuPy, which needs a GPU."""
    module = ModuleType("cupy")
    module.ndarray = module.asarray = CupyArray
    module.from_dlpack = lambda tensor: CupyArray(np.from_dlpack(tensor))
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


@pytest.mark.parametrize("kind", [MLRHClassifier, KernelMLRHClassifier])
def test_arrays_of_cupy_are_fitted_as_on_the_cpu_and_answered_in_kind(kind, rows, cupy):
    X, Y, weights = rows
    ours = kind(tol=1e-14).fit(*map(cupy.asarray, (X, Y, weights)))
    theirs = kind(tol=1e-14).fit(X, Y, weights)
    there = cupy.asarray(X)
    for name in ("predict", "predict_proba", "predict_log_proba", "decision_function"):
        found = getattr(ours, name)(there)
        assert isinstance(found, CupyArray)
        np.testing.assert_allclose(found.get(), getattr(theirs, name)(X), atol=1e-5)
    assert isinstance(ours.intercept_, np.ndarray)
    assert ours.score(there, cupy.asarray(Y)) == theirs.score(X, Y)


def test_a_sparse_array_of_cupy_is_refused_with_what_to_do(cupy):
    kind = type("csr_matrix", (), {"__module__": "cupyx.scipy.sparse._csr", "shape": (2, 2)})
    with pytest.raises(ValueError, match=r"must be dense; got a sparse csr_matrix. Use X.toarray\(\)"):
        MLRHClassifier().fit(kind(), [[0, 1], [1, 0]])


def test_classes_of_numbers_are_answered_by_an_array_of_cupy(rows, cupy):
    X, _, _ = rows
    y = (X[:, 0] * 3).astype(int) % 3 + 10
    found = MLRHClassifier(tol=1e-14).fit(cupy.asarray(X), cupy.asarray(y)).predict(cupy.asarray(X))
    assert isinstance(found, CupyArray)
    np.testing.assert_array_equal(found.get(), MLRHClassifier(tol=1e-14).fit(X, y).predict(X))


@pytest.mark.parametrize("scoring", [None, "log_prob"])
def test_c_is_chosen_alike_for_arrays_of_cupy(scoring, rows, cupy):
    X, Y, _ = rows
    model = MLRHClassifierCV(Cs=[0.001, 0.1], cv=2, scoring=scoring, tol=1e-12)
    ours = sklearn.clone(model).fit(cupy.asarray(X), cupy.asarray(Y))
    theirs = sklearn.clone(model).fit(X, Y)
    assert ours.C_ == theirs.C_
    np.testing.assert_allclose(ours.scores_, theirs.scores_, atol=1e-4)
    assert isinstance(ours.predict(cupy.asarray(X)), CupyArray)


def test_the_data_of_the_benchmark_is_exported_and_read_again(tmp_path, monkeypatch):
    problem = problems.synthetic(30, 20, 4, density=0.2)
    monkeypatch.setattr(problems, "public", lambda name: problem)
    fit_gpu.main(["--export", str(tmp_path)])
    for name in fit_gpu.SETS:
        X, Y = fit_gpu.read(tmp_path / f"{name}.npz")
        np.testing.assert_allclose(X.toarray(), problem.X.toarray(), rtol=1e-7)
        np.testing.assert_array_equal(Y, problem.Y)


@pytest.mark.filterwarnings("ignore:The training rows don't determine the model")
@pytest.mark.parametrize("seed", [6, 9])
def test_the_check_of_the_benchmark_holds_groups_and_hierarchies_with_unknown_labels(seed):
    _, parameters, _, Y, _ = fit_gpu.random_problem(seed)
    assert isinstance(parameters["label_space"], GroupSpace | HierarchySpace) and np.isnan(Y).any()
    assert fit_gpu.check(seed, "cpu") < 1e-6


def test_the_memory_on_a_device_tells_blocks_apart_as_that_of_numpy_does():
    rng = np.random.default_rng(0)
    gradient, direction, factors = rng.normal(size=12), rng.normal(size=12), np.array([1.0, 0.5, 0.02])
    there, here = DeviceMemory(12, size=2, n_blocks=3, device="cpu"), Memory(12, size=2, n_blocks=3)
    slopes = there.slopes(torch.tensor(gradient), torch.tensor(direction))
    np.testing.assert_allclose(slopes, here.slopes(gradient, direction), rtol=1e-12)
    np.testing.assert_array_equal(there.scaled(torch.tensor(gradient), factors).numpy(), here.scaled(gradient, factors))
