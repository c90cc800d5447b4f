"""Run the fuzzers one after the other: python -m tests.fuzz --seconds 300"""

import argparse
import random
import sys
import time

from . import fuzzers


def main() -> int:
    """1 where a fuzzer has found a fault, else 0; prints one line per fuzzer."""
    every = fuzzers()
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Random cases within a budget.")
    parser.add_argument("--seconds", type=float, required=True, help="time for each fuzzer")
    parser.add_argument("--only", choices=sorted(every), help="one fuzzer")
    parser.add_argument("--seed", type=int, help="seed of the first case; without it another one each time")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    outcomes = [
        _is_clean(name, every[name], options.seconds, seed) for name in sorted(every) if options.only in (None, name)
    ]
    return 0 if all(outcomes) else 1


def _is_clean(name, run, seconds, seed):
    start = time.monotonic()
    try:
        n_cases = run(seconds, seed)
    except AssertionError as error:
        print(f"{name}: FAULT {error}", flush=True)
        return False
    taken = time.monotonic() - start
    print(f"{name}: {n_cases} cases in {taken:.0f} s ({n_cases / taken:.0f} per second), seed {seed}", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
