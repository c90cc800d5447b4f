"""Products of a CSR matrix with a dense one, rows spread over threads; knows nothing of what is multiplied.

scipy's own products use one thread. Every row of the result is summed in one fixed order, so it doesn't depend on the
number of threads.
"""

import numpy as np

from mlrh.blocks import map_blocks
from mlrh.compiled import kernel

TARGET_OPERATIONS = 2_000_000  # multiplications in one block: about a millisecond


def multiply(matrix, dense, *, n_jobs=None):
    """matrix @ dense, (n_rows, n_columns) in the type of the matrix's data."""
    dense = np.ascontiguousarray(dense, matrix.data.dtype)
    result = np.empty((matrix.shape[0], dense.shape[1]), dense.dtype)

    def work(rows):
        _multiply_rows(matrix.data, matrix.indices, matrix.indptr[rows.start : rows.stop + 1], dense, result[rows])

    operations_per_row = matrix.nnz * dense.shape[1] / max(matrix.shape[0], 1)
    rows_per_block = int(max(1, TARGET_OPERATIONS // max(1.0, operations_per_row)))
    map_blocks(work, matrix.shape[0], rows_per_block=rows_per_block, n_jobs=n_jobs)
    return result


@kernel
def _multiply_rows(data, indices, starts, dense, result):
    """Four entries of a row at a time, so that the result is read and written a quarter as often."""
    n_columns = dense.shape[1]
    for i in range(result.shape[0]):
        row = result[i]
        row[:] = 0
        entry, stop = starts[i], starts[i + 1]
        while entry + 4 <= stop:
            a, b, c, d = data[entry], data[entry + 1], data[entry + 2], data[entry + 3]
            first, second = dense[indices[entry]], dense[indices[entry + 1]]
            third, fourth = dense[indices[entry + 2]], dense[indices[entry + 3]]
            for k in range(n_columns):
                row[k] += (a * first[k] + b * second[k]) + (c * third[k] + d * fourth[k])
            entry += 4
        while entry < stop:
            a, first = data[entry], dense[indices[entry]]
            for k in range(n_columns):
                row[k] += a * first[k]
            entry += 1
