"""The machine: its name, what it copies and multiplies in a second, and the least time that bytes and flops take."""

import os
import platform
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
from joblib import cpu_count
from threadpoolctl import threadpool_limits

from benchmarks.timing import timed

PACKAGES = ("mlrh", "numpy", "scipy", "scikit-learn", "numba")


@dataclass(frozen=True)
class Machine:
    """A machine: bytes a second of a copy (read and written) and flops a second of matrix products, by all cores."""

    name: str
    cores: int
    blas_threads: int
    bandwidth: float
    gemm_rate: float
    load: float
    versions: dict[str, str]

    def floor(self, *, n_bytes=0.0, flops=0.0) -> float:
        """Seconds that can't be undercut: bytes moved over the bandwidth or flops over the rate, whichever is more."""
        return max(n_bytes / self.bandwidth, flops / self.gemm_rate)

    def __str__(self):
        packages = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return (
            f"{self.name}, {self.cores} cores, copies {self.bandwidth / 1e9:.1f} GB/s (read and written), multiplies "
            f"matrices at {self.gemm_rate / 1e9:.0f} Gflop/s, BLAS with {self.blas_threads} threads; load average at "
            f"the start {self.load:.1f}; Python {platform.python_version()}, {packages}"
        )


def measure(blas_threads, *, quick=False) -> Machine:
    """This machine; takes about a second."""
    return Machine(
        name=_cpu_name(),
        cores=cpu_count(),
        blas_threads=blas_threads,
        load=round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else float("nan"),
        bandwidth=_bandwidth(cpu_count(), 2**20 if quick else 2**24),
        gemm_rate=_gemm_rate(cpu_count(), 256 if quick else 1536),
        versions={name: version(name) for name in PACKAGES},
    )


def _cpu_name():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _bandwidth(n_threads, n_numbers):
    """Bytes a second, read and written, of a copy by all cores; the best of six."""
    source, target = np.ones((n_threads, n_numbers)), np.zeros((n_threads, n_numbers))
    with ThreadPoolExecutor(n_threads) as pool:
        return 2 * source.nbytes / _best(lambda: list(pool.map(np.copyto, target, source)))


def _gemm_rate(n_threads, n):
    """Flops a second of products of square matrices in float64, one on each core; the best of six."""
    matrices = [np.full((n, n), 1.0 / n) for _ in range(n_threads)]
    with ThreadPoolExecutor(n_threads) as pool, threadpool_limits(1, user_api="blas"):
        return n_threads * 2 * n**3 / _best(lambda: list(pool.map(np.matmul, matrices, matrices)))


def _best(function):
    """Least seconds of six calls; the first warms up."""
    return min(timed(function)()[0] for _ in range(6))
