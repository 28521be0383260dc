"""Counts in messages, with nouns and verbs that agree with them."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun, such as `1 worker` or `2 workers`. `noun`: singular; its plural
    ends in s.
    """
    return f"{number} {noun if number == 1 else f'{noun}s'}"


def agree(number: int, singular: str, plural: str) -> str:
    """Returns the word that agrees with a number."""
    return singular if number == 1 else plural


def counted_of(part: int, total: int, noun: str, singular: str, plural: str) -> str:
    """Returns a part of a total with its verb, such as `1 of 3 workers serves`; with more than the
    total, `2 workers (1 wanted) serve`.
    """
    if part > total:
        return f"{counted(part, noun)} ({total} wanted) {agree(part, singular, plural)}"
    verb = singular if 1 in {part, total} else plural
    return f"{part} of {counted(total, noun)} {verb}"
