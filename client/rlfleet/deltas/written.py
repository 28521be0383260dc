"""The record of a version that was written: pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A version that was written.

    Fields:
        directory: where.
        digest: of the whole weights, as `spec.digest` has it. A delta has the digest of its result.
        base_version: what it is a delta of; None for a full checkpoint.
        why_full: why it is not a delta; empty for a delta, and without `delta`.
        changed_share: elements that differ from the version before, 0 to 1; None where it is not known.
        written_bytes: of all files that were written.
        full_bytes: of the weight files of the full checkpoint.
        seconds: how long it took.
    """

    version: str
    directory: str
    digest: str
    base_version: str | None = None
    why_full: str = ""
    changed_share: float | None = None
    written_bytes: int = 0
    full_bytes: int = 0
    seconds: float = 0.0


def in_words(written: Written) -> str:
    """The record as a sentence."""
    share = (
        ""
        if written.changed_share is None
        else f", {written.changed_share:.2%} of its elements differ"
    )
    kind = f"a delta of {written.base_version}" if written.base_version is not None else "full"
    why = f" because {written.why_full}" if written.why_full else ""
    return (
        f"version {written.version} is {kind}{why}{share}: {written.written_bytes} bytes in "
        f"{written.directory} after {written.seconds:.1f} s"
    )
