"""Changed model files for ten seconds, and the cases that once were a fault; `make fuzz` runs for longer."""

import sys
from random import Random

import pytest
from fuzz import model_files

if sys.platform != "linux":
    pytest.skip("the limits of time and memory are Linux's", allow_module_level=True)

SECONDS = 10
SEED = 0  # the same cases each time; only their number depends on the machine
ONCE_FAULTS = (1155, 3120, 3868, 4024)  # seeds


def test_no_changed_model_file_of_ten_seconds_is_a_fault():
    assert model_files.run(SECONDS, SEED) > 50


@pytest.mark.parametrize("seed", ONCE_FAULTS)
def test_a_case_that_was_a_fault_is_none_any_more(seed, tmp_path):
    assert model_files.fault_of(tmp_path, model_files.drawn(Random(seed))) is None
