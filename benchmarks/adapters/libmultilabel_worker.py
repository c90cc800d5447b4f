"""Fits LibMultiLabel's one-vs-rest on request; runs in the environment that has it and imports nothing of ours.

One argument: the folder with X.npz and Y.npz. It first says that it is ready. A request is a line of JSON with
liblinear's options on standard input, the answer a line with the seconds of the fit alone and the file of its weights.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
from libmultilabel.linear import train_1vsrest
from scipy import sparse


def main(folder):
    X, Y = (sparse.load_npz(folder / f"{name}.npz") for name in ("X", "Y"))
    print(json.dumps({"ready": True}), flush=True)
    for request in sys.stdin:
        begin = time.perf_counter()
        model = train_1vsrest(Y, X, options=json.loads(request)["options"], verbose=False)
        seconds = time.perf_counter() - begin
        np.save(folder / "weights.npy", np.asarray(model.weights))
        print(json.dumps({"seconds": seconds, "weights": str(folder / "weights.npy")}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
