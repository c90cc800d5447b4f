"""The benchmark of clusters measures each of its lines, in small."""

from types import SimpleNamespace

import pytest

from benchmarks import dask


@pytest.mark.slow
def test_every_line_of_clusters_is_measured_in_small():
    lines = list(dask.measure(1, SimpleNamespace(quick=True, tell=lambda message: None)))
    assert len(lines) >= 5 and all(line.ratio is not None and not line.note.startswith("NOT") for line in lines)
    assert {line.target for line in lines} >= {dask.TARGET, dask.TARGET_TWO, 1.0}
