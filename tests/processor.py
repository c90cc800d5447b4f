"""Prints the vector instructions that NumPy uses on this processor, for NPY_DISABLE_CPU_FEATURES."""

from numpy._core import _multiarray_umath

print(*[name for name in _multiarray_umath.__cpu_dispatch__ if _multiarray_umath.__cpu_features__[name]])
