"""The program `mlrh`, also as `python -m mlrh`."""

import signal
import sys
import threading


class _Terminated(SystemExit):
    """SIGTERM has come."""


def main() -> None:
    """Run the command line; an interrupt ends it quietly, also while it is still being loaded.

    SIGTERM ends the process as it always does, but after files that were made for this run only are removed; a second
    one doesn't wait for that.
    """
    is_ours = threading.current_thread() is threading.main_thread()  # only that one may say what a signal does
    is_ours = is_ours and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    try:
        if is_ours:
            signal.signal(signal.SIGTERM, _terminate)
        from mlrh.cli import run

        sys.exit(run())
    except KeyboardInterrupt:
        sys.exit(130)
    except _Terminated:
        signal.raise_signal(signal.SIGTERM)
    finally:
        if is_ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number, frame):
    signal.signal(number, signal.SIG_DFL)
    raise _Terminated(128 + number)


if __name__ == "__main__":
    main()
