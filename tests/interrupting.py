"""Ctrl-C in the middle of a fit, shared by the tests of what it leaves."""

import signal


def interrupt_at(monkeypatch, owner, name, n_calls):
    """Press Ctrl-C in the middle of that call of a method, which then goes on."""
    method, calls = getattr(owner, name), []

    def interrupted(self, *arguments):
        calls.append(1)
        if len(calls) == n_calls:
            signal.raise_signal(signal.SIGINT)
        return method(self, *arguments)

    monkeypatch.setattr(owner, name, interrupted)
