"""BLAS has one thread while small products are repeated, and as many as before behind that."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Thread

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from mlrh import KernelMLRHClassifier, MLRHClassifier, MLRHClassifierCV
from mlrh._parallel import MIN_OPERATIONS, blas_suited_to
from mlrh.fitting import metric


@pytest.fixture(autouse=True)
def three_threads():
    """Set in a thread that ends: threadpoolctl lets no other thread change what a living one has set."""
    before = n_threads()
    in_a_thread(lambda: threadpool_limits(3, user_api="blas"))
    yield
    in_a_thread(lambda: threadpool_limits(min(before), user_api="blas"))


def in_a_thread(call):
    thread = Thread(target=call)
    thread.start()
    thread.join()


def n_threads():
    """Threads of every BLAS in the process."""
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


@pytest.mark.parametrize(("n_operations", "expected"), [(MIN_OPERATIONS - 1, 1), (MIN_OPERATIONS, 3)])
def test_small_products_have_one_thread_and_large_ones_those_that_were_there(n_operations, expected):
    with blas_suited_to(n_operations):
        assert n_threads() == {expected}
    assert n_threads() == {3}


def test_an_error_restores_the_threads():
    with pytest.raises(RuntimeError), blas_suited_to(0):
        raise RuntimeError
    assert n_threads() == {3}


def test_blocks_that_overlap_in_several_threads_restore_what_was_there_before_all_of_them():
    first_is_in, second_is_in = Barrier(2, timeout=10), Barrier(2, timeout=10)

    def outer():
        with blas_suited_to(0):
            first_is_in.wait()
            assert n_threads() == {1}
            second_is_in.wait()

    def inner():
        first_is_in.wait()
        with blas_suited_to(0):
            second_is_in.wait()
            outer_call.result(timeout=10)

    with ThreadPoolExecutor(2) as pool:
        outer_call = pool.submit(outer)
        pool.submit(inner).result(timeout=10)
    assert n_threads() == {3}


@pytest.mark.parametrize("kind", [MLRHClassifier, KernelMLRHClassifier, MLRHClassifierCV])
def test_what_a_small_fit_factorises_has_one_thread(kind, monkeypatch):
    seen, factor, inverse = [], metric._factor, metric._inverse
    for name, original in (("_factor", factor), ("_inverse", inverse)):
        monkeypatch.setattr(metric, name, lambda *args, original=original: seen.append(n_threads()) or original(*args))
    X = np.random.default_rng(0).normal(size=(60, 5))
    kind().fit(X, X[:, :2] > 0)
    assert seen
    assert all(threads == {1} for threads in seen)


def test_the_kernel_matrix_of_few_wide_rows_keeps_its_threads(monkeypatch):
    seen, original = [], KernelMLRHClassifier._kernel_matrix
    monkeypatch.setattr(
        KernelMLRHClassifier, "_kernel_matrix", lambda *args: seen.append(n_threads()) or original(*args)
    )
    X = np.random.default_rng(0).normal(size=(300, MIN_OPERATIONS // 300**2 + 1))
    KernelMLRHClassifier().fit(X, X[:, :2] > 0)
    assert seen == [{3}]


def test_iterations_have_one_thread_and_a_fit_leaves_as_many_as_there_were(monkeypatch):
    X, seen = np.random.default_rng(0).normal(size=(50, 3)), []
    monkeypatch.setattr(MLRHClassifier, "_report", lambda self, *_: lambda *_: seen.append(n_threads()))
    MLRHClassifier().fit(X, X > 0)
    assert seen
    assert all(threads == {1} for threads in seen)
    assert n_threads() == {3}


FORK = """
import os, threading
from mlrh._parallel import _blas, blas_suited_to
inside, over = threading.Event(), threading.Event()

def hold():
    with blas_suited_to(0):
        inside.set()
        over.wait(10)

thread = threading.Thread(target=hold)
thread.start()
inside.wait(10)
child = os.fork()
if child == 0:
    os._exit(1 if _blas.taken.locked() else 0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
over.set()
thread.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
def test_a_child_forked_in_the_middle_can_set_its_threads():
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "0"
