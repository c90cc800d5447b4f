"""Figures in words, for people who wait."""


def left_in_words(seconds: float | None) -> str:
    """How long is left, roughly; nothing where it isn't known."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"{max(round(seconds), 1)} s left"
    return f"{round(seconds / 60)} min left"
