"""Products with the feature matrix, over threads: CSR times dense, and dense times few columns.

SciPy multiplies sparse matrices in one thread, and BLAS is slow where one factor has few columns.
"""

import numpy as np

from mlrh._parallel import kernel, map_blocks
from mlrh._simd import LANES, load, load_from, splat, store

FEW_COLUMNS = 3 * LANES  # of the dense factor of a sparse matrix, whose sums stay in registers
TARGET_OPERATIONS = 2_000_000  # multiplications of one block: about a millisecond, so that threads share them evenly


def multiply_sparse(matrix, dense, *, n_jobs=None):
    """matrix @ dense, (n_rows, n_columns) in the type of the matrix's data."""
    result = np.empty((matrix.shape[0], dense.shape[1]), matrix.data.dtype)
    if dense.shape[1] <= FEW_COLUMNS:
        dense = np.ascontiguousarray(dense, np.float64)
        # Vectors are read beyond the end of a row: the last rows, from `border` on, have zeros behind them.
        border = max(0, dense.size - FEW_COLUMNS)
        end = np.concatenate([dense.ravel()[border:], np.zeros(FEW_COLUMNS)])
        multiply, factor = _multiply_few_columns, (dense.ravel(), end, dense.shape[1])
    else:
        multiply, factor = _multiply_sparse_rows, (np.ascontiguousarray(dense, matrix.data.dtype),)

    def work(rows):
        starts = matrix.indptr[rows.start : rows.stop + 1]
        multiply(matrix.data, matrix.indices, starts, *factor, result[rows])

    operations_per_row = matrix.nnz * dense.shape[1] / max(matrix.shape[0], 1)
    rows_per_block = int(max(1, TARGET_OPERATIONS // max(1.0, operations_per_row)))
    map_blocks(work, matrix.shape[0], rows_per_block=rows_per_block, n_jobs=n_jobs)
    return result


@kernel
def _multiply_sparse_rows(data, indices, starts, dense, result):
    """Write matrix @ dense; four entries of a row at a time, so that the result is read and written less often."""
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


@kernel
def _multiply_few_columns(data, indices, starts, dense, end, n_columns, result):
    """Write matrix @ dense for at most FEW_COLUMNS columns; a row of the result is kept in registers.

    dense has its rows one after the other in one dimension, and end the entries from dense.size - FEW_COLUMNS on (all,
    if there are fewer) with zeros behind them.
    """
    border = max(0, len(dense) - FEW_COLUMNS)
    row = np.empty((3, LANES))
    for i in range(result.shape[0]):
        first = second = third = splat(0.0)
        for entry in range(starts[i], starts[i + 1]):
            value, at = splat(data[entry]), indices[entry] * n_columns
            if at < border:
                first += value * load_from(dense, at)
                second += value * load_from(dense, at + LANES)
                third += value * load_from(dense, at + 2 * LANES)
            else:
                first += value * load_from(end, at - border)
                second += value * load_from(end, at - border + LANES)
                third += value * load_from(end, at - border + 2 * LANES)
        store(row, 0, first)
        store(row, 1, second)
        store(row, 2, third)
        for k in range(n_columns):
            result[i, k] = row[k // LANES, k % LANES]


def multiply_sparse_transposed(matrix, dense, *, n_jobs=None):
    """matrix.T @ dense, (n_columns of the matrix, n_columns of dense) in float64, without transposing the matrix.

    For a matrix that is used once: transposing it would take about as long as the product.
    """
    dense = np.ascontiguousarray(dense, matrix.data.dtype)

    def work(rows):
        sums = np.zeros((matrix.shape[1], dense.shape[1]))
        _add_sparse_transposed(
            matrix.data, matrix.indices, matrix.indptr[rows.start : rows.stop + 1], dense[rows], sums
        )
        return sums

    # Each block has sums of its own: enough entries to make filling and adding these cheap, and blocks that do not
    # depend on the number of threads, so that the result doesn't either.
    n_entries = max(TARGET_OPERATIONS // max(1, dense.shape[1]), 8 * matrix.shape[1])
    rows_per_block = max(1, int(n_entries * matrix.shape[0] / max(1, matrix.nnz)))
    parts = map_blocks(work, matrix.shape[0], rows_per_block=rows_per_block, n_jobs=n_jobs)
    return sum(parts[1:], parts[0]) if parts else np.zeros((matrix.shape[1], dense.shape[1]))


@kernel
def _add_sparse_transposed(data, indices, starts, dense, sums):
    """Add matrix.T @ dense; the row of dense stays in the cache while the sums of its entries are visited."""
    n_columns = dense.shape[1]
    for i in range(dense.shape[0]):
        row = dense[i]
        for entry in range(starts[i], starts[i + 1]):
            value, total = data[entry], sums[indices[entry]]
            for k in range(n_columns):
                total[k] += value * row[k]


@kernel
def add_weighted_squares(data, indices, starts, places, weights, sums):
    """Add sum_i w_i z_i z_i' of sparse rows z = (1, x), where column j of x has the place places[j], or none: 0.

    places of columns count from 1; sums is square, with a row and column for the 1 and for each place.
    """
    # By the longest row, not by the places: a row may hold the same column several times, which adds up.
    most = 1
    for i in range(len(weights)):
        most = max(most, 1 + starts[i + 1] - starts[i])
    found, values = np.empty(most, np.int64), np.empty(most)
    for i in range(len(weights)):
        if weights[i] == 0.0:  # as the misfit of most rows is
            continue
        found[0], values[0], n_found = 0, 1.0, 1
        for entry in range(starts[i], starts[i + 1]):
            if places[indices[entry]] > 0:
                found[n_found], values[n_found] = places[indices[entry]], data[entry]
                n_found += 1
        for a in range(n_found):
            own = weights[i] * values[a]
            for b in range(n_found):
                sums[found[a], found[b]] += own * values[b]


TARGET_ENTRIES = 1_000_000  # of the large matrix in one block, for each vector of columns: under a millisecond


FEW_LABELS = 32  # with fewer, BLAS is faster with a large matrix on the right, and `multiply_thin` can be faster still
MIN_ENTRIES = 80_000  # of the matrix; below, BLAS is as fast


def are_thin(matrix, factor):
    """Whether `multiply_thin`, or its transposed, is faster than BLAS for a dense matrix and a factor.

    With more than 4,096 columns of the matrix the sums of the kernel leave the cache; with fewer than 16, packing the
    factor into vectors costs as much as reading the matrix.
    """
    is_large = matrix.size >= MIN_ENTRIES and 16 <= matrix.shape[1] <= 4096
    return is_large and factor.shape[1] < FEW_LABELS and matrix.flags.c_contiguous


def multiply_thin(matrix, thin, *, is_triangular=False, n_jobs=None):
    """matrix @ thin (n_rows, n_columns), in the type of the matrix, which is C-contiguous.

    Of a matrix that is_triangular, entries above the diagonal are zeros, and are not read.
    """
    n_columns = thin.shape[1]
    result = np.empty((len(matrix), n_columns), matrix.dtype)
    packed = _packed(thin)

    def work(rows):
        products = np.empty((len(packed), rows.stop - rows.start, LANES))
        for group, columns in enumerate(packed):
            _multiply_rows(matrix[rows], columns, products[group], rows.start if is_triangular else matrix.shape[1])
        _unpack(products, result[rows])

    map_blocks(work, len(matrix), rows_per_block=_rows_per_block(matrix, packed), n_jobs=n_jobs)
    return result


def multiply_thin_transposed(matrix, thin, *, is_triangular=False, n_jobs=None):
    """matrix.T @ thin (n_columns of the matrix, n_columns of thin) in float64; the matrix as for `multiply_thin`."""
    packed = _packed(thin)

    def work(rows):
        sums = np.zeros((len(packed), matrix.shape[1], LANES))
        for group, columns in enumerate(packed):
            _add_transposed(matrix[rows], columns[rows], sums[group], rows.start if is_triangular else matrix.shape[1])
        return sums

    parts = map_blocks(work, len(matrix), rows_per_block=_rows_per_block(matrix, packed), n_jobs=n_jobs)
    # Sums of blocks are added in the order of the blocks, so that the result doesn't depend on the threads.
    result = np.empty((matrix.shape[1], thin.shape[1]))
    _unpack(sum(parts[1:], parts[0]) if parts else np.zeros((len(packed), matrix.shape[1], LANES)), result)
    return result


def _rows_per_block(matrix, packed):
    """Number of rows of a block, a multiple of 6: kernels take so many at a time.

    Each block of `multiply_thin_transposed` has sums of its own; it has enough rows to make these small beside them.
    """
    n_groups = len(packed)
    return int(max(12 * n_groups, TARGET_ENTRIES // max(1, 6 * matrix.shape[1] * n_groups))) * 6


def _packed(thin):
    """The columns of thin (n_rows, n_columns) in vectors (n_vectors, n_rows, LANES), padded with zeros."""
    # In float64: sums over many rows or features need it, also where the features are float32.
    n_rows, n_columns = thin.shape
    packed = np.zeros((-(-n_columns // LANES), n_rows, LANES))
    for group, columns in enumerate(packed):
        part = thin[:, group * LANES : (group + 1) * LANES]
        columns[:, : part.shape[1]] = part
    return packed


def _unpack(packed, result):
    """Write vectors (n_vectors, n_rows, LANES) into the columns of result (n_rows, n_columns)."""
    for group, columns in enumerate(packed):
        part = result[:, group * LANES : (group + 1) * LANES]
        part[:] = columns[:, : part.shape[1]]


@kernel
def _multiply_rows(matrix, columns, products, first):
    """Write matrix @ columns; six rows at a time, so that a vector of columns is read a sixth as often.

    Row i has zeros behind entry first + i.
    """
    n_rows, n_entries = matrix.shape
    for i in range(0, n_rows - 5, 6):
        a, b, c, d, e, f = (
            matrix[i], matrix[i + 1], matrix[i + 2], matrix[i + 3], matrix[i + 4], matrix[i + 5],
        )  # fmt: skip
        # Six sums in named variables stay in registers; in an array they would not, nor would eight with AVX2, whose
        # sixteen registers hold four doubles each: that took more than twice as long.
        sum_a = sum_b = sum_c = sum_d = sum_e = sum_f = splat(0.0)
        for k in range(min(n_entries, first + i + 6)):
            own = load(columns, k)
            sum_a += splat(a[k]) * own
            sum_b += splat(b[k]) * own
            sum_c += splat(c[k]) * own
            sum_d += splat(d[k]) * own
            sum_e += splat(e[k]) * own
            sum_f += splat(f[k]) * own
        store(products, i, sum_a)
        store(products, i + 1, sum_b)
        store(products, i + 2, sum_c)
        store(products, i + 3, sum_d)
        store(products, i + 4, sum_e)
        store(products, i + 5, sum_f)
    for i in range(n_rows - n_rows % 6, n_rows):
        total = splat(0.0)
        for k in range(min(n_entries, first + i + 1)):
            total += splat(matrix[i, k]) * load(columns, k)
        store(products, i, total)


@kernel
def _add_transposed(matrix, columns, sums, first):
    """Add matrix.T @ columns; six rows at a time, so that the sums are read and written a sixth as often.

    Row i has zeros behind entry first + i.
    """
    n_rows, n_entries = matrix.shape
    for i in range(0, n_rows - 5, 6):
        a, b, c, d, e, f = (
            matrix[i], matrix[i + 1], matrix[i + 2], matrix[i + 3], matrix[i + 4], matrix[i + 5],
        )  # fmt: skip
        of_a, of_b, of_c = load(columns, i), load(columns, i + 1), load(columns, i + 2)
        of_d, of_e, of_f = load(columns, i + 3), load(columns, i + 4), load(columns, i + 5)
        for k in range(min(n_entries, first + i + 6)):
            total = load(sums, k) + splat(a[k]) * of_a + splat(b[k]) * of_b + splat(c[k]) * of_c
            store(sums, k, total + splat(d[k]) * of_d + splat(e[k]) * of_e + splat(f[k]) * of_f)
    for i in range(n_rows - n_rows % 6, n_rows):
        own = load(columns, i)
        for k in range(min(n_entries, first + i + 1)):
            store(sums, k, load(sums, k) + splat(matrix[i, k]) * own)
