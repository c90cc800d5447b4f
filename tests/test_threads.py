"""Threads, processes and memory: the same numbers however many workers, and no more of them than asked for."""

import os
import subprocess
import sys
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from joblib import Parallel, cpu_count, delayed
from joblib.externals.loky import get_reusable_executor
from numba.core.dispatcher import Dispatcher

import mlrh
from mlrh import KernelMLRHClassifier, MLRHClassifier, _parallel
from mlrh._parallel import effective_threads, kernel, map_blocks
from mlrh.fitting import _products
from mlrh.spaces import CardinalitySpace, ObservedSpace
from mlrh.spaces._kernels import expected_metrics, lanes, plain, ranking, wide_range

RNG = np.random.default_rng(0)
SIZE_BIAS = RNG.normal(size=13)
SCORES = RNG.normal(scale=3, size=(40_000, 12))  # ten blocks of 12 labels, sizes up to 3
CORES = cpu_count()
ANSWERS = ["log_partition", "marginals", "cardinality_pmf", "mode"]
WEIGHTS, BIAS_DIRECTION = RNG.random(len(SCORES)), np.array([1.0, -1.0, 0.5])
QUESTIONS = {
    **{name: lambda space, name=name: (getattr(space.distribution(SCORES), name)(),) for name in ANSWERS},
    "sums over rows": lambda space: space.expectations(SCORES, WEIGHTS)[2:],
    "curvature": lambda space: space.curvature(SCORES, SCORES[::-1].copy(), BIAS_DIRECTION, np.ones(len(SCORES))),
}


def space(n_jobs):
    return CardinalitySpace(12, 1, 3, SIZE_BIAS, n_jobs=n_jobs)


@pytest.mark.parametrize("n_jobs", [2, 3])
@pytest.mark.parametrize("question", QUESTIONS)
def test_answers_are_bitwise_those_of_one_thread(question, n_jobs):
    found, serial = (QUESTIONS[question](space(jobs)) for jobs in (n_jobs, 1))
    for result, expected in zip(found, serial, strict=True):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("n_jobs", [2, 3])
def test_a_fit_is_bitwise_that_of_one_thread(n_jobs):
    X = RNG.normal(size=(30_000, 3))
    Y = (X @ RNG.normal(size=(3, 12)) + RNG.normal(size=(30_000, 12)) > 1).astype(int)
    coefs = [MLRHClassifier(n_jobs=jobs, tol=1e-3).fit(X, Y).coef_ for jobs in (1, n_jobs)]
    np.testing.assert_array_equal(coefs[1], coefs[0])


@pytest.fixture(scope="module", params=["cardinality", "observed"])
def fitted(request):
    X = RNG.normal(size=(12_000, 4))
    Y = np.tile(X + RNG.normal(size=X.shape) > 0.5, 3).astype(int)
    return MLRHClassifier(label_space=request.param, tol=1e-3).fit(X, Y), X


@pytest.mark.parametrize("method", ["predict", "predict_proba"])
def test_a_classifier_predicts_the_same_from_four_threads_at_once(fitted, method):
    clf, X = fitted
    answer, parts = getattr(clf, method), np.array_split(X, 4)
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(answer, parts))
    # Part by part: BLAS may round a row differently among other numbers of rows.
    np.testing.assert_array_equal(np.vstack(together), np.vstack([answer(part) for part in parts]))


def in_two_workers(backend, calls):
    try:
        return Parallel(n_jobs=2, backend=backend)(calls)
    finally:
        get_reusable_executor().shutdown(wait=True)


@pytest.mark.parametrize("backend", [pytest.param("loky", marks=pytest.mark.slow), "threading"])
def test_a_classifier_predicts_the_same_in_joblib_workers(fitted, backend):
    clf, X = fitted
    halves = np.array_split(X, 2)
    found = in_two_workers(backend, [delayed(clf.predict)(half) for half in halves])
    np.testing.assert_array_equal(np.vstack(found), np.vstack([clf.predict(half) for half in halves]))


def test_the_number_of_threads_can_be_changed_after_the_fit():
    X = RNG.normal(size=(40_000, 2))
    clf = MLRHClassifier(tol=1e-3, n_jobs=3).fit(X, np.tile(X > 0, 6).astype(int))
    assert threads_started_by(lambda: clf.predict_proba(X)) > 0
    clf.set_params(n_jobs=1)
    assert threads_started_by(lambda: clf.predict_proba(X)) == 0


@pytest.mark.parametrize(
    ("n_jobs", "n_threads"),
    [(None, CORES), *((-n, max(CORES + 1 - n, 1)) for n in range(1, CORES + 3)), (1, 1), (2, 2), (17, 17)],
)
def test_n_jobs_are_that_many_threads_where_none_means_all_cores_and_negative_ones_count_from_them(n_jobs, n_threads):
    assert effective_threads(n_jobs) == n_threads


def test_n_jobs_of_zero_is_an_error():
    with pytest.raises(ValueError, match="n_jobs must not be 0"):
        effective_threads(0)


def test_three_jobs_work_in_three_threads():
    together = threading.Barrier(3, timeout=10)

    def work(rows):
        together.wait()
        return threading.get_ident()

    assert len(set(map_blocks(work, 3, rows_per_block=1, n_jobs=3))) == 3


def test_threads_are_kept_from_call_to_call():
    def twice():
        for _ in range(2):
            space(2).distribution(SCORES).marginals()

    assert threads_started_by(twice) == 1


def test_one_pool_serves_calls_of_any_number_of_blocks():
    def many():
        for n_blocks in range(2, 9):
            map_blocks(lambda rows: time.sleep(0.001), n_blocks, rows_per_block=1)

    assert threads_started_by(many) <= max(CORES - 1, 1)


def test_blocks_that_have_blocks_of_their_own_do_not_wait_for_each_other():
    def work(rows):
        return sum(map_blocks(lambda inner: inner.start, 4, rows_per_block=1, n_jobs=2))

    assert map_blocks(work, 50, rows_per_block=1, n_jobs=2) == [6] * 50


def test_calls_from_many_threads_share_the_threads_there_are():
    def call(i):
        return sum(map_blocks(lambda rows: rows.start + i, 100, rows_per_block=1, n_jobs=2))

    with ThreadPoolExecutor(8) as callers:
        assert list(callers.map(call, range(40))) == [4950 + 100 * i for i in range(40)]


def test_one_job_starts_no_thread():
    assert threads_started_by(lambda: space(1).distribution(SCORES).marginals()) == 0


def test_three_jobs_start_no_more_than_three_threads():
    assert 1 <= threads_started_by(lambda: space(3).distribution(SCORES).marginals()) <= 3


@pytest.mark.parametrize("backend", [pytest.param("loky", marks=pytest.mark.slow), "threading"])
def test_inside_a_joblib_worker_one_thread_is_used_whatever_n_jobs_and_none_is_started(backend):
    assert in_two_workers(backend, [delayed(report_of_a_worker)()] * 2) == [([1, 1, 1, 1], 0)] * 2


def report_of_a_worker():
    used = [effective_threads(n_jobs) for n_jobs in (None, -1, 1, 4)]
    return used, threads_started_by(lambda: space(None).distribution(SCORES).marginals())


def threads_started_by(call):
    """Number of threads of map_blocks that the call starts: their pool is counted, not those of others."""
    pools = []

    class CountedPool(ThreadPoolExecutor):
        def __init__(self, max_workers, **options):
            super().__init__(max_workers, **options)
            pools.append(self)

    _parallel._pool.cache_clear()
    try:
        with mock.patch("mlrh._parallel.ThreadPoolExecutor", CountedPool):
            call()
    finally:
        _parallel._pool.cache_clear()
    return sum(len(pool._threads) for pool in pools)


FORK_AFTER_FIT = """
import os, sys
import numpy as np
from mlrh import MLRHClassifier
rng = np.random.default_rng(0)
X = rng.normal(size=(8_000, 4))
Y = np.tile(X + rng.normal(size=X.shape) > 0.5, 3).astype(int)
clf = MLRHClassifier(n_jobs=2, tol=1e-3, label_space=sys.argv[1]).fit(X, Y)
expected = clf.predict(X)
child = os.fork()
if child == 0:
    os._exit(0 if np.array_equal(clf.predict(X), expected) else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("label_space", ["cardinality", "observed"])
def test_a_child_forked_after_a_fit_predicts_the_same_and_does_not_hang(label_space):
    assert run_script(FORK_AFTER_FIT, label_space).strip() == "0"


CACHE_REPORT = """
from mlrh.spaces._kernels import lanes
from mlrh.spaces import CardinalitySpace
CardinalitySpace(3, 1, 2).distribution([[0.1, 0.2, 0.3]]).marginals()
stats = lanes.expectations.stats
print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""


@pytest.mark.parametrize("module", [expected_metrics, lanes, ranking, wide_range, _products, plain])
def test_every_compiled_function_is_kept_in_the_cache(module):
    compiled = [value for value in vars(module).values() if isinstance(value, Dispatcher)]
    assert [function.stats.cache_path is not None for function in compiled] == [True] * len(compiled) != []


@pytest.mark.slow
def test_a_second_process_takes_the_compiled_kernels_from_the_cache(tmp_path):
    first, second = (run_script(CACHE_REPORT, NUMBA_CACHE_DIR=str(tmp_path)).split() for _ in range(2))
    assert (first, second) == (["0", "1"], ["1", "0"])


def test_where_no_cache_can_be_written_kernels_are_compiled_without():
    with mock.patch("mlrh._parallel.njit", side_effect=[RuntimeError("no locator available"), "compiled"]) as njit:
        assert kernel(abs) == "compiled"
    assert [call.kwargs.get("cache", False) for call in njit.call_args_list] == [True, False]


def run_script(script, *arguments, **environment):
    """What the script prints, run by another interpreter that finds the same package."""
    found = os.pathsep.join([str(Path(mlrh.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-W", "error", "-c", script, *arguments]
    environment = {**os.environ, "PYTHONPATH": found, **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.parametrize("max_labels", [3, 20])
@pytest.mark.parametrize("answer", ["log_partition", "marginals", "cardinality_pmf", "mode"])
def test_answers_about_many_rows_need_little_memory_beyond_their_result(answer, max_labels):
    scores = np.random.default_rng(0).normal(size=(200_000, 20))
    d = CardinalitySpace(20, 1, max_labels, n_jobs=2).distribution(scores)
    result, peak = peak_memory(getattr(d, answer))
    assert peak < result.nbytes + scores.nbytes / 4


def test_log_probs_of_many_rows_need_little_memory_beyond_sets_and_result():
    scores = np.random.default_rng(0).normal(size=(200_000, 20))
    Y = np.eye(20, dtype=np.int8)[np.arange(200_000) % 20]
    result, peak = peak_memory(lambda: CardinalitySpace(20, 1, 3).distribution(scores).log_prob(Y))
    assert peak < result.nbytes + 3 * Y.nbytes


def test_top_sets_of_many_rows_need_little_memory_beyond_their_result():
    d = CardinalitySpace(20, 1, 3).distribution(np.random.default_rng(0).normal(size=(50_000, 20)))
    (sets, log_probs), peak = peak_memory(lambda: d.top_sets(3))
    assert peak < sets.nbytes + 4 * log_probs.nbytes + 4e6


@pytest.mark.parametrize(("n_rows", "n_draws"), [(1, 300_000), (30_000, 10)])
def test_samples_need_the_memory_of_a_block_of_draws_beyond_their_result(n_rows, n_draws):
    d = CardinalitySpace(20, 1, 3).distribution(np.random.default_rng(0).normal(size=(n_rows, 20)))
    sets, peak = peak_memory(lambda: d.sample(n_draws, random_state=0))
    assert peak < sets.nbytes + 12e6  # the random numbers alone would take 50 MB


def test_kernel_predictions_need_the_memory_of_a_block_of_rows():
    X = RNG.normal(size=(400, 3))
    clf = KernelMLRHClassifier(tol=1e-2).fit(X, (X > 0).astype(int))
    many = RNG.normal(size=(100_000, 3))
    proba, peak = peak_memory(lambda: clf.predict_proba(many))
    assert peak < 120e6 < 100_000 * 400 * 8
    np.testing.assert_allclose(proba[:50], clf.predict_proba(many[:50]), rtol=1e-9)


@pytest.mark.parametrize("answer", ["log_partition", "marginals", "cardinality_pmf", "mode"])
def test_answers_of_the_observed_space_need_the_memory_of_a_block_of_rows(answer):
    sets = np.unique(np.random.default_rng(0).random((500, 20)) < 0.3, axis=0)
    d = ObservedSpace(sets).distribution(np.random.default_rng(0).normal(size=(20_000, 20)))
    result, peak = peak_memory(getattr(d, answer))
    whole_table = 20_000 * len(sets) * 8
    assert peak < result.nbytes + whole_table / 2


def test_checking_scores_copies_nothing():
    scores = np.zeros((200_000, 20))
    _, peak = peak_memory(lambda: CardinalitySpace(20, 1, 3).distribution(scores))
    assert peak < scores.nbytes / 4


def peak_memory(call):
    """The call's result and the most bytes that it held at once."""
    tracemalloc.start()
    try:
        return call(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_after_an_error_no_further_block_is_begun():
    done = []

    def work(rows):
        done.append(rows.start)
        if rows.start == 3:
            raise RuntimeError("block 3")
        time.sleep(0.01)

    with pytest.raises(RuntimeError, match="block 3"):
        map_blocks(work, 200, rows_per_block=1, n_jobs=3)
    assert len(done) < 20
