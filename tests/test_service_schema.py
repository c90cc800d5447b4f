"""What Schemathesis finds when it asks the service by its own OpenAPI, over real HTTP."""

import re
import subprocess
import sys
import threading

import numpy as np
import pytest
from samples import make_multilabel

from mlrh import automatic
from mlrh.data import MultilabelData
from mlrh.estimators import auto
from mlrh.web._application import make_app
from mlrh.web._http import listening, server_config, uvicorn
from mlrh.web._service import Limits

N_EXAMPLES = 50  # of each kind of test and address, as in the run of docs/serving.md, whose model is larger
TOKEN = "token-of-the-test"


@pytest.fixture(scope="module")
def address():
    """Where a small model is served, which needs a token."""
    X, Y = make_multilabel(60)
    X = np.column_stack([X[:, :2], np.arange(60) % 2])
    names = ("tempo", "key, b", "mode")
    data = MultilabelData(X, Y.astype(np.int8), names, tuple("abcd"), "songs", {"mode": ("major", "minor")})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auto, "LINEAR_C", (1.0,))
        model = automatic.choose(data, scores="linear", label_space="cardinality", n_folds=2)
    sock = listening("127.0.0.1", 0)
    server = uvicorn.Server(server_config(make_app(model, "songs", token=TOKEN, limits=Limits(rows=20))))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.mark.slow
def test_schemathesis_finds_no_fault(address):
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{address}/openapi.json"),
        *("--header", f"Authorization: Bearer {TOKEN}", "--max-examples", str(N_EXAMPLES), "--seed", "1"),
        *("--request-timeout", "120"),  # seconds, for a busy machine
        # What no JSON Schema can say is refused: known of other length than rows, knowledge that no set fits.
        *("--exclude-checks", "positive_data_acceptance", "--no-color"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert int(re.search(r"(\d[\d,]*) generated", done.stdout)[1].replace(",", "")) > 2 * N_EXAMPLES
