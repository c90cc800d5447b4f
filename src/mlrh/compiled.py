"""How kernels are compiled: serial, without the interpreter's lock, and cached on disk where that is possible."""

from numba import njit


def kernel(function):
    """The function compiled at its first call.

    numba refuses to cache where neither the package's folder nor the user's cache can be written; such a process
    compiles anew, unless NUMBA_CACHE_DIR names a folder that can.
    """
    try:
        return njit(function, nogil=True, cache=True)
    except RuntimeError:
        return njit(function, nogil=True)
