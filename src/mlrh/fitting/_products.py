"""Products with the feature matrix, over threads: CSR times dense, and dense times few columns.

SciPy multiplies sparse matrices in one thread, and BLAS is slow where one factor has few columns.
"""

import numpy as np

from mlrh._parallel import kernel, map_blocks
from mlrh._simd import LANES, load, splat, store

TARGET_OPERATIONS = 2_000_000  # multiplications of one block: about a millisecond, so that threads share them evenly


def multiply_sparse(matrix, dense, *, n_jobs=None):
    """matrix @ dense, (n_rows, n_columns) in the type of the matrix's data."""
    dense = np.ascontiguousarray(dense, matrix.data.dtype)
    result = np.empty((matrix.shape[0], dense.shape[1]), dense.dtype)

    def work(rows):
        _multiply_sparse_rows(
            matrix.data, matrix.indices, matrix.indptr[rows.start : rows.stop + 1], dense, result[rows]
        )

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
    """Add sum_i w_i z_i z_i' of sparse rows z = (1, x), where column j of x has the place places[j], or none: -1.

    places of columns count from 1; sums is square, with a row and column for the 1 and for each place.
    """
    found, values = np.empty(len(sums), np.int64), np.empty(len(sums))
    for i in range(len(weights)):
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


def multiply_thin(matrix, thin, *, n_jobs=None):
    """matrix @ thin (n_rows, n_columns), in the type of the matrix, which is C-contiguous."""
    n_columns = thin.shape[1]
    result = np.empty((len(matrix), n_columns), matrix.dtype)
    packed = _packed(thin)

    def work(rows):
        products = np.empty((len(packed), rows.stop - rows.start, LANES))
        for group, columns in enumerate(packed):
            _multiply_rows(matrix[rows], columns, products[group])
        _unpack(products, result[rows])

    map_blocks(work, len(matrix), rows_per_block=_rows_per_block(matrix, packed), n_jobs=n_jobs)
    return result


def multiply_thin_transposed(matrix, thin, *, n_jobs=None):
    """matrix.T @ thin (n_columns of the matrix, n_columns of thin) in float64; the matrix is C-contiguous."""
    packed = _packed(thin)

    def work(rows):
        sums = np.zeros((len(packed), matrix.shape[1], LANES))
        for group, columns in enumerate(packed):
            _add_transposed(matrix[rows], columns[rows], sums[group])
        return sums

    parts = map_blocks(work, len(matrix), rows_per_block=_rows_per_block(matrix, packed), n_jobs=n_jobs)
    # Sums of blocks are added in the order of the blocks, so that the result doesn't depend on the threads.
    result = np.empty((matrix.shape[1], thin.shape[1]))
    _unpack(sum(parts[1:], parts[0]) if parts else np.zeros((len(packed), matrix.shape[1], LANES)), result)
    return result


def _rows_per_block(matrix, packed):
    """Number of rows of a block, a multiple of 8: kernels take 8 at a time.

    Each block of `multiply_thin_transposed` has sums of its own; it has enough rows to make these small beside them.
    """
    n_groups = len(packed)
    return int(max(8 * n_groups, TARGET_ENTRIES // max(1, 8 * matrix.shape[1] * n_groups))) * 8


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
def _multiply_rows(matrix, columns, products):
    """Write matrix @ columns; eight rows at a time, so that a vector of columns is read an eighth as often."""
    n_rows, n_entries = matrix.shape
    for i in range(0, n_rows - 7, 8):
        a, b, c, d, e, f, g, h = (
            matrix[i], matrix[i + 1], matrix[i + 2], matrix[i + 3],
            matrix[i + 4], matrix[i + 5], matrix[i + 6], matrix[i + 7],
        )  # fmt: skip
        # Eight sums in named variables stay in registers; in an array they would not.
        sum_a = sum_b = sum_c = sum_d = sum_e = sum_f = sum_g = sum_h = splat(0.0)
        for k in range(n_entries):
            own = load(columns, k)
            sum_a += splat(a[k]) * own
            sum_b += splat(b[k]) * own
            sum_c += splat(c[k]) * own
            sum_d += splat(d[k]) * own
            sum_e += splat(e[k]) * own
            sum_f += splat(f[k]) * own
            sum_g += splat(g[k]) * own
            sum_h += splat(h[k]) * own
        store(products, i, sum_a)
        store(products, i + 1, sum_b)
        store(products, i + 2, sum_c)
        store(products, i + 3, sum_d)
        store(products, i + 4, sum_e)
        store(products, i + 5, sum_f)
        store(products, i + 6, sum_g)
        store(products, i + 7, sum_h)
    for i in range(n_rows - n_rows % 8, n_rows):
        total = splat(0.0)
        for k in range(n_entries):
            total += splat(matrix[i, k]) * load(columns, k)
        store(products, i, total)


@kernel
def _add_transposed(matrix, columns, sums):
    """Add matrix.T @ columns; eight rows at a time, so that the sums are read and written an eighth as often."""
    n_rows, n_entries = matrix.shape
    for i in range(0, n_rows - 7, 8):
        a, b, c, d, e, f, g, h = (
            matrix[i], matrix[i + 1], matrix[i + 2], matrix[i + 3],
            matrix[i + 4], matrix[i + 5], matrix[i + 6], matrix[i + 7],
        )  # fmt: skip
        of_a, of_b, of_c, of_d = load(columns, i), load(columns, i + 1), load(columns, i + 2), load(columns, i + 3)
        of_e, of_f, of_g, of_h = load(columns, i + 4), load(columns, i + 5), load(columns, i + 6), load(columns, i + 7)
        for k in range(n_entries):
            total = load(sums, k) + splat(a[k]) * of_a + splat(b[k]) * of_b + splat(c[k]) * of_c + splat(d[k]) * of_d
            total = total + splat(e[k]) * of_e + splat(f[k]) * of_f + splat(g[k]) * of_g + splat(h[k]) * of_h
            store(sums, k, total)
    for i in range(n_rows - n_rows % 8, n_rows):
        own = load(columns, i)
        for k in range(n_entries):
            store(sums, k, load(sums, k) + splat(matrix[i, k]) * own)
