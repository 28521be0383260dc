"""Durations, numbers and the texts of others in words: pure."""

from __future__ import annotations


def seconds(value: float | None) -> str:
    """A duration in one or two units."""
    if value is None:
        return "-"
    if value < 10:
        return f"{value:.2f}s"
    whole = round(value)
    if whole < 120:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    if minutes < 120:
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    hours, rest = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h{rest}m" if rest else f"{hours}h"
    days, rest = divmod(hours, 24)
    return f"{days}d{rest}h" if rest else f"{days}d"


def plural(number: int, word: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def bounded(text: str, most: int = 400) -> str:
    """A text that comes from elsewhere, in one line of printable characters.

    It is cut in the middle: the cause often comes last.
    """
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    half = (most - 1) // 2
    return line if len(line) <= most else f"{line[:half]}…{line[-half:]}"
