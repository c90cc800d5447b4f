"""Settings that must stand before numpy and scipy are imported."""

import os

# Tests run in parallel processes; OpenBLAS threads that wait by spinning would take each other's cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# scikit-learn's checks of array API input are skipped without it.
os.environ.setdefault("SCIPY_ARRAY_API", "1")
