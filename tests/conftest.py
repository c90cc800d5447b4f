"""Settings that must stand before numpy and scipy are imported, and before a test is interrupted."""

import os
import signal

# Tests run in parallel processes; OpenBLAS threads that wait by spinning would take each other's cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# scikit-learn's checks of array API input are skipped without it.
os.environ.setdefault("SCIPY_ARRAY_API", "1")
# A shell lets what it starts in the background ignore Ctrl-C, which tests send to themselves and to what they start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
