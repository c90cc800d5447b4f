"""Fits on a cluster of two real worker processes equal the local ones, also where workers die or partitions fail."""

import os
import pickle
import signal
import time

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster
from processes import wait_until
from samples import make_multilabel, one_sentence
from scipy import sparse
from sklearn.base import clone

import mlrh.dask
from mlrh import MLRHClassifier, persistence
from mlrh.dask import DaskMLRHClassifier
from mlrh.spaces import GroupSpace

pytestmark = pytest.mark.slow  # a cluster takes seconds to start, and more where its workers are killed
MEMORY = 1_500_000_000  # bytes of a worker; Python with all imports and compiled code takes up to half of it
TIGHT = {"tol": 1e-12}


@pytest.fixture(scope="module")
def client():
    # A task is given up after the second worker that dies of it, not the fourth: the same, in less time. Where many
    # tests run at a time, a worker may take long to start again.
    settings = {"distributed.scheduler.allowed-failures": 1, "distributed.comm.timeouts.connect": "120s"}
    with (
        dask.config.set(settings),
        LocalCluster(n_workers=2, threads_per_worker=1, memory_limit=MEMORY, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def assert_same_optimum(fitted, local):
    """The objective to 1e-8, coefficients to 1e-5, as is promised."""
    assert fitted.objective_ == pytest.approx(local.objective_, rel=1e-8)
    np.testing.assert_allclose(fitted.coef_, local.coef_, atol=1e-5 * np.abs(local.coef_).max())
    np.testing.assert_allclose(fitted.intercept_, local.intercept_, atol=1e-5 * np.abs(local.coef_).max())


SPACES = {
    "cardinality": {},
    "a bias per size": {"size_bias": True},
    "observed": {"label_space": "observed"},
    "open, tuned on held-out rows": {"label_space": "open"},
    "groups": {"label_space": GroupSpace([([0, 1], 0, 2), ([2, 3], 0, 2)])},
    "L1": {"l1_ratio": 0.5, "C": 0.1},
    "newton-cg": {"solver": "newton-cg"},
}


@pytest.mark.parametrize("space", SPACES)
def test_a_fit_to_partitions_of_any_size_equals_the_local_one(client, space):
    X, Y = make_multilabel(300)
    if space == "observed":  # no set has both of the first two labels, so that not all 14 of one to three labels occur
        Y[Y[:, 0] == 1, 1] = 0
    local = MLRHClassifier(**SPACES[space], **TIGHT).fit(X, Y)
    chunks = (100, 1, 0, 199)
    fitted = DaskMLRHClassifier(client=client, **SPACES[space], **TIGHT).fit(
        da.from_array(X, chunks=(chunks, 6)), da.from_array(Y, chunks=(chunks, 4))
    )
    assert_same_optimum(fitted, local)
    assert fitted.n_iter_ <= max(1.3 * local.n_iter_, local.n_iter_ + 2)
    if space == "observed":
        assert len(fitted.label_space_.sets) == len(np.unique(Y, axis=0)) < 14


def test_sparse_blocks_with_weights_and_unknown_labels_equal_the_local_fit(client):
    X, Y = make_multilabel(300)
    X, Y = np.where(np.abs(X) > 1, X, 0.0), Y.astype(float)
    Y[::7, 1] = np.nan
    weights = np.random.default_rng(0).integers(0, 3, 300).astype(float)
    local = MLRHClassifier(**TIGHT).fit(sparse.csr_array(X), Y, weights)
    blocks = da.from_array(X, chunks=(64, 3)).rechunk((64, 6)).map_blocks(sparse.csr_array)
    arrays = (da.from_array(values, chunks=(64, *values.shape[1:])) for values in (Y, weights))
    assert_same_optimum(DaskMLRHClassifier(client=client, **TIGHT).fit(blocks, *arrays), local)


def test_data_frames_keep_their_names_and_are_answered_by_data_frames(client):
    X, Y = make_multilabel(120)
    X, Y = pd.DataFrame(X, columns=list("uvwxyz")), pd.DataFrame(Y, columns=list("abcd"))
    local = MLRHClassifier(**TIGHT).fit(X, Y)
    frames = [dd.from_pandas(frame, npartitions=3) for frame in (X, Y)]
    fitted = DaskMLRHClassifier(client=client, **TIGHT).fit(*frames)
    assert_same_optimum(fitted, local)
    assert fitted.feature_names_in_.tolist() == list("uvwxyz") and fitted.classes_.tolist() == list("abcd")
    with client.as_current():
        pd.testing.assert_frame_equal(fitted.predict(frames[0]).compute(), local.predict(X))
        np.testing.assert_allclose(fitted.predict_proba(frames[0]).compute(), local.predict_proba(X), atol=1e-6)
    # A Dask array has arrays as its blocks, whatever y was.
    blocks = fitted.predict(da.from_array(X.to_numpy(), chunks=(60, 6))).to_delayed().ravel().tolist()
    answers = client.gather(client.compute(blocks))
    assert all(type(answer) is np.ndarray for answer in answers)
    np.testing.assert_array_equal(np.concatenate(answers), local.predict(X).to_numpy())


def part(seed, *, fails=None):
    """A chunk with weights, made by a task; `fails` is raised instead."""
    if fails is not None:
        raise fails
    X, Y = make_multilabel(150, seed=seed)
    return X, Y, np.full(150, 0.5)


def delayed_parts(n=4, **failing):
    """n delayed chunks; failing says which one raises what."""
    return [dask.delayed(part)(seed, fails=failing.get(f"part_{seed}")) for seed in range(n)]


@pytest.fixture(scope="module")
def local_fit():
    """The local fit to the delayed parts."""
    parts = [part(seed) for seed in range(4)]
    return MLRHClassifier(**TIGHT).fit(*map(np.concatenate, zip(*parts, strict=True)))


def test_delayed_chunks_and_futures_are_fitted_with_their_weights(client, local_fit):
    for chunks in (delayed_parts(), client.compute(delayed_parts())):
        assert_same_optimum(DaskMLRHClassifier(client=client, **TIGHT).fit(chunks), local_fit)


@pytest.mark.parametrize("names", [["no", "yes"], ["calm", "happy", "sad"]])
def test_one_class_per_row_is_fitted_and_answered_as_locally(client, names):
    X, Y = make_multilabel(200, max_labels=1)
    y = np.array(names)[np.minimum(Y.argmax(axis=1), len(names) - 1)]
    local = MLRHClassifier(**TIGHT).fit(X, y)
    rows, classes = da.from_array(X, chunks=(80, 6)), da.from_array(y, chunks=80)
    fitted = DaskMLRHClassifier(client=client, **TIGHT).fit(rows, classes, classes=[*names, "never seen"])
    assert_same_optimum(fitted, local)
    with client.as_current():
        assert fitted.predict(rows).compute().tolist() == local.predict(X).tolist()
        np.testing.assert_allclose(fitted.predict_proba(rows).compute(), local.predict_proba(X), atol=1e-6)
        np.testing.assert_allclose(fitted.decision_function(rows).compute(), local.decision_function(X), atol=1e-4)


def test_answers_are_lazy_by_partition_and_those_of_the_local_model(client):
    X, Y = make_multilabel(200)
    rows, labels = da.from_array(X, chunks=(90, 6)), da.from_array(Y, chunks=(90, 4))
    fitted = DaskMLRHClassifier(client=client).fit(rows, labels)
    local = fitted.to_local()
    assert type(local) is MLRHClassifier and local.coef_ is fitted.coef_ and not hasattr(local, "client")
    for method in ("predict", "predict_proba", "predict_log_proba", "decision_function"):
        lazy, wanted = getattr(fitted, method)(rows), getattr(local, method)(X)
        assert isinstance(lazy, da.Array) and lazy.chunks[0] == (90, 90, 20)
        assert lazy.shape == wanted.shape and lazy.dtype == wanted.dtype
        assert np.array_equal(client.compute(lazy).result(), wanted)
    distributions = client.gather(client.compute(fitted.distribution(rows)))
    assert [own.marginals().shape[0] for own in distributions] == [90, 90, 20]
    assert np.array_equal(np.concatenate([own.marginals() for own in distributions]), local.predict_proba(X))
    assert fitted.score(rows, labels) == pytest.approx(local.score(X, Y), rel=1e-12)


def test_label_sets_in_delayed_chunks_are_answered_by_sets(client):
    X, Y = make_multilabel(100)
    sets = [{"abcd"[k] for k in np.flatnonzero(row)} for row in Y]
    local = MLRHClassifier(**TIGHT).fit(X, sets)
    chunks = [dask.delayed((X[rows], sets[rows]), traverse=False) for rows in (slice(0, 60), slice(60, 100))]
    fitted = DaskMLRHClassifier(client=client, **TIGHT).fit(chunks, classes=list("abcde"))
    assert_same_optimum(fitted, local)
    rows = da.from_array(X, chunks=(50, 6))
    assert client.compute(fitted.predict(rows)).result().tolist() == local.predict(X)


def test_a_warm_start_goes_on_from_the_last_fit(client):
    fitted = DaskMLRHClassifier(client=client, warm_start=True, **TIGHT).fit(delayed_parts())
    assert fitted.fit(delayed_parts()).n_iter_ <= 1


# What goes wrong


def test_a_fit_goes_on_where_workers_are_killed_twice_within_evaluations(client, monkeypatch, local_fit):
    waits, killed = [], []
    awaited = mlrh.dask._HeldRows._awaited

    def kill_and_wait(self, future):
        waits.append(future)
        if len(waits) in (4, 8):  # the graph of an evaluation is with the workers
            client.wait_for_workers(2, timeout=120)  # one of them must be left
            killed.append(sorted(client.run(os.getpid).values())[0])
            os.kill(killed[-1], signal.SIGKILL)
        return awaited(self, future)

    monkeypatch.setattr(mlrh.dask._HeldRows, "_awaited", kill_and_wait)
    fitted = DaskMLRHClassifier(client=client, **TIGHT).fit(delayed_parts())
    assert_same_optimum(fitted, local_fit)
    assert len(killed) == 2 and len(waits) > 10
    client.wait_for_workers(2, timeout=120)


@pytest.mark.parametrize("failure", [FileNotFoundError("rows-2.parquet"), KeyError("Y"), ValueError("not a number.")])
def test_a_partition_that_cannot_be_read_is_named(client, failure):
    with pytest.raises(ValueError, match="Partition 2") as error:
        DaskMLRHClassifier(client=client).fit(delayed_parts(part_2=failure))
    assert str(failure) in str(error.value)


def greedy_part():
    """Takes more and more memory, at most twice a worker's."""
    taken = []
    for _ in range(40):
        taken.append(np.ones(MEMORY // 20 // 8))
        time.sleep(0.02)
    return part(1)


def test_a_partition_that_workers_die_of_is_named_and_the_cluster_goes_on(client, local_fit):
    chunks = delayed_parts()
    with pytest.raises(ChildProcessError, match="Partition 1 was given up after 2 workers died") as error:
        DaskMLRHClassifier(client=client).fit([chunks[0], dask.delayed(greedy_part)(), *chunks[2:]])
    assert one_sentence(error)
    client.wait_for_workers(2, timeout=120)
    assert_same_optimum(DaskMLRHClassifier(client=client, **TIGHT).fit(chunks), local_fit)


def fill_memory(dask_worker):
    """Fill this worker to nine tenths: it is paused, but not yet killed."""
    import psutil

    if not hasattr(dask_worker, "filling"):
        dask_worker.filling = []
    missing = int(0.88 * MEMORY) - psutil.Process().memory_info().rss
    if missing > 0:
        dask_worker.filling.append(np.ones(missing // 8))


def free_memory(dask_worker):
    dask_worker.filling = []


def fill_until_paused(client):
    """Fill the workers again and again: what a worker held before may be freed meanwhile, and it then goes on."""

    def both_paused():
        client.run(fill_memory)
        return len(client.run_on_scheduler(mlrh.dask._paused_workers)) == 2

    client.wait_for_workers(2, timeout=120)
    wait_until(both_paused)


def test_workers_that_stay_paused_for_lack_of_memory_end_the_fit_with_a_sentence(client, monkeypatch):
    monkeypatch.setattr(mlrh.dask, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(mlrh.dask, "PAUSED_SECONDS", 1.0)
    try:
        fill_until_paused(client)
        with pytest.raises(MemoryError, match="has been full for 1 s"):
            DaskMLRHClassifier(client=client).fit(delayed_parts())
    finally:
        client.run(free_memory)
    wait_until(lambda: not client.run_on_scheduler(mlrh.dask._paused_workers))


def test_partitions_that_do_not_belong_together_are_refused(client):
    X, Y = (da.from_array(values, chunks=(50, -1)) for values in make_multilabel(100))
    clf = DaskMLRHClassifier(client=client)
    with pytest.raises(ValueError, match=r"same partitions; got 2 of X, 4 of y\."):
        clf.fit(X, Y.rechunk((25, 4)))
    with pytest.raises(ValueError, match=r"Partition [01]: X and y .* same number of rows; got 50 and [46]0\."):
        clf.fit(X, Y.rechunk(((60, 40), 4)))
    with pytest.raises(ValueError, match="partitions 0 and 1 have 6 and 5"):
        clf.fit([dask.delayed((np.ones((3, n)), np.eye(3, dtype=int))) for n in (6, 5)])
    with pytest.raises(ValueError, match="labels, in the same form; those of partitions 0 and 1 differ"):
        clf.fit([dask.delayed((np.ones((3, 2)), np.eye(3, n, dtype=int))) for n in (3, 2)])
    with pytest.raises(ValueError, match="all partitions are empty"):
        clf.fit([dask.delayed((np.ones((0, 2)), np.ones((0, 2))))])
    with pytest.raises(ValueError, match="Row 1 of partition 1 of y has 2 labels"):
        DaskMLRHClassifier(client=client, max_labels=1, min_labels=1).fit(
            [dask.delayed((np.ones((2, 2)), labels)) for labels in (np.eye(2, dtype=int), np.array([[0, 1], [1, 1]]))]
        )


def test_what_is_no_dask_collection_is_refused_with_what_to_do(client):
    X, Y = make_multilabel(20)
    clf = DaskMLRHClassifier(client=client)
    with pytest.raises(TypeError, match="X must be a Dask array or DataFrame; got a ndarray"):
        clf.fit(X, Y)
    with pytest.raises(ValueError, match="y must be given with X"):
        clf.fit(da.from_array(X))
    with pytest.raises(ValueError, match="A list must hold delayed chunks, at least one; got ndarray objects"):
        clf.fit([X])
    with pytest.raises(ValueError, match="leave out y"):
        clf.fit(delayed_parts(), da.from_array(Y))
    with pytest.raises(ValueError, match=r"Partition 0: a chunk must be a tuple \(X, Y\)"):
        clf.fit([dask.delayed(X)])
    with pytest.raises(ValueError, match="Partition 0: classes must be given"):
        clf.fit(da.from_array(X), da.from_array(Y.argmax(axis=1)))
    for method in ("partial_fit", "fit_chunks"):
        assert not hasattr(clf, method)


def test_without_a_client_the_error_says_how_to_start_one(client):
    with pytest.raises(ValueError, match=r"start one, for example with distributed\.Client\(\)"):
        DaskMLRHClassifier().fit(delayed_parts())
    with client.as_current():
        assert DaskMLRHClassifier(max_iter=0, tol=1e3).fit(delayed_parts()).n_iter_ == 0


def test_a_model_file_takes_the_local_model_and_says_so(tmp_path):
    with pytest.raises(persistence.ModelFileError, match=r"needs a cluster; save what its to_local\(\) gives") as error:
        persistence.save(DaskMLRHClassifier(), tmp_path / "model.mlrh")
    assert one_sentence(error)


def test_clones_share_the_client_and_files_leave_it_out(client):
    clf = DaskMLRHClassifier(client=client, C=3.0)
    assert clone(clf).client is client and clone(clf).C == 3.0
    loaded = pickle.loads(pickle.dumps(clf))
    assert loaded.client is None and loaded.C == 3.0


# What travels


def sent_bytes(dask_worker):
    return dask_worker.transfer_outgoing_bytes_total


def test_coefficients_and_one_sum_of_their_size_travel_per_worker_and_evaluation(client):
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((400, 500)), np.eye(20, dtype=int)[rng.integers(0, 20, 400)]
    rows, labels = da.from_array(X, chunks=(25, 500)), da.from_array(Y, chunks=(25, 20))
    before = sum(client.run(sent_bytes).values())
    fitted = DaskMLRHClassifier(client=client, max_iter=20, tol=0, solver=counted).fit(rows, labels)
    assert fitted.n_iter_ == 20
    # A sum of each of the two workers, to this process. With 16 partitions, their own would be 16. Before the first
    # evaluation: X'Y, the Gram matrix, 500 x 500, and what the look at the rows tells.
    an_evaluation, before_it = 2 * 8 * 500 * 20, 8 * 3 * 500 * (500 + 20)
    sent = sum(client.run(sent_bytes).values()) - before
    assert sent < 1.1 * (counted.n_evaluations * an_evaluation + before_it)


def counted(objective, start, *, tol, max_iter, report):
    """Steps against the gradient: one evaluation each, counted."""
    from mlrh.fitting.solvers import Solution

    parameters, counted.n_evaluations = start, 0
    for iteration in range(max_iter):
        value, gradient = objective.value_and_gradient(parameters)
        counted.n_evaluations = iteration + 1
        parameters = parameters - 1e-4 * gradient
    norm = float(np.linalg.norm(gradient))
    return Solution(
        parameters=parameters, value=value, gradient_norm=norm, n_iter=max_iter, converged=True, history=[value]
    )


def test_a_worker_gets_a_question_once_as_a_copy_in_its_task_or_as_a_task_of_its_own():
    question = mlrh.dask._Question("expected_sums", np.zeros(0), (np.zeros((500, 20)), np.zeros(20)))
    assert mlrh.dask._in_graph(question, n_tasks=[1, 1]) is question
    # Several tasks of a worker would have a copy each, and 1,000 workers 80 MB of them.
    for n_tasks in ([1, 2], [1] * 1000):
        assert isinstance(mlrh.dask._in_graph(question, n_tasks), mlrh.dask.Delayed)


@pytest.mark.parametrize("n_workers", [1, 8, 9, 100])
def test_sums_of_many_workers_are_added_up_by_a_tree_of_which_this_process_is_the_root(n_workers):
    joined = mlrh.dask._tree(sum, [dask.delayed(i) for i in range(n_workers)], mlrh.dask.FAN_IN)
    assert len(joined) <= mlrh.dask.FAN_IN
    assert sum(dask.compute(*joined)) == n_workers * (n_workers - 1) / 2
    assert len(joined) == n_workers or max(len(own.dask) for own in joined) > mlrh.dask.FAN_IN


def test_partitions_are_asked_for_their_places_once_a_second_and_anew_after_that(client, monkeypatch):
    asked, who_has = [], client.who_has
    monkeypatch.setattr(client, "who_has", lambda *arguments: asked.append(1) or who_has(*arguments))
    monkeypatch.setattr(mlrh.dask, "PLACES_SECONDS", 1e9)
    passes = DaskMLRHClassifier(client=client, max_iter=20, tol=0, solver=counted)
    passes.fit(delayed_parts())
    assert len(asked) == 1
    monkeypatch.setattr(mlrh.dask, "PLACES_SECONDS", 0.0)
    passes.fit(delayed_parts())
    assert len(asked) >= 1 + 20
