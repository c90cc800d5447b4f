"""What a fit of the open space costs beside one of the observed space on the same rows.

    MLRH_DATA=folder OPENBLAS_NUM_THREADS=1 python docs/open-space/cost.py [--threads 2] [--turns 7] [name ...]

Both fits take turns. Prints, per data set, the median of seconds (of the processor with one thread, else of the clock),
iterations, the ratio, and the peak of the process's own memory (RssAnon of /proc, Linux only). --alone leaves the
observed space out, for sets on which it takes long.
"""

import argparse
import time
import warnings
from threading import Event, Thread

import numpy as np
from strength import CS, parts

from mlrh import MLRHClassifier

ALL_CS = {**CS, "tmc2007-500": 0.3, "bibtex": 1.0}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=list(CS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--alone", action="store_true")
    options = parser.parse_args()
    print("| data set | sets | open, s | iterations | observed, s | iterations | ratio | peak, MB |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in options.names:
        print(line(name, options), flush=True)


def line(name, options):
    X, Y, _, _ = parts(name)
    spaces = ["open"] if options.alone else ["open", "observed"]
    models = {s: MLRHClassifier(C=ALL_CS[name], label_space=s, n_jobs=options.threads) for s in spaces}
    clock = time.process_time if options.threads == 1 else time.perf_counter
    seconds, peaks = {space: [] for space in spaces}, []
    for model in models.values():
        model.set_params(max_iter=1).fit(X[:200], Y[:200]).set_params(max_iter=1000)  # loads the compiled code
    for _ in range(options.turns):
        for space, model in models.items():
            start = clock()
            peak = peak_during(lambda model=model: model.fit(X, Y))
            seconds[space].append(clock() - start)
            peaks += [peak] if space == "open" else []
    of_open = f"{len(models['open'].sets_)} | {np.median(seconds['open']):.3g} | {models['open'].n_iter_}"
    of_observed = "| |"
    if not options.alone:
        ratio = np.median(seconds["open"]) / np.median(seconds["observed"])
        of_observed = f"{np.median(seconds['observed']):.3g} | {models['observed'].n_iter_} | {ratio:.2f}"
    return f"| {name} | {of_open} | {of_observed} | {max(peaks):.0f} |"


def peak_during(work):
    """The highest RssAnon in MB while the work runs, looked at every 20 ms."""
    done, highest = Event(), [0.0]

    def watch():
        while not done.wait(0.02):
            with open("/proc/self/status") as status:
                kilobytes = next(line for line in status if line.startswith("RssAnon")).split()[1]
            highest[0] = max(highest[0], int(kilobytes) / 1000)

    watcher = Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        done.set()
        watcher.join()
    return highest[0]


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # labels and sizes that the training rows of a set lack
    main()
