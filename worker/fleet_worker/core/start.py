"""Which weights a process starts on.

The environment names the version that the fleet serves now: its run, its directory, its digest. A
worker that starts on it need not load a second time before it is admitted. One that cannot, or
whose files have another digest, starts on the model's own weights, says why, and gets the version
by a load like every other worker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fleet_worker.core.digests import check_digest
from fleet_worker.core.refusals import Refusal


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the environment names; empty is the same as absent."""

    version: str | None = None
    path: str | None = None
    run_id: str | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """What a process starts on.

    Fields:
        path: Directory of the weights, or None for the model's own.
        version: Label of these weights.
        why: One sentence for the log.
        run_id: The run that the version belongs to.
        refused: The reason and the message why the fleet's version was not taken.
    """

    path: str | None
    version: str
    why: str
    run_id: str | None = None
    refused: Refusal | None = None


def choose_start(
    *,
    version: str,
    wanted: Wanted,
    own_digest: Callable[[], str],
    check: Callable[[str], None],
) -> Start:
    """Choose between the version that the fleet serves and the model's own weights.

    Args:
        version: Label of the model's own weights, which belong to no run.
        wanted: What the environment names.
        own_digest: Computes the digest of the model's own weights.
        check: Raises `Refusal` if the directory may not be used, or holds other bytes.
    """
    if not wanted.version and not wanted.path:
        return Start(None, version, "no start version is named")
    if wanted.version == version and not wanted.run_id:
        why = f"the fleet serves {version}, the model's own weights"
        try:
            check_digest(wanted.digest, own_digest(), "the model's own weights")
        except Refusal as refusal:
            return Start(None, version, refusal.message, refused=refusal)
        return Start(None, version, why)
    if not wanted.version or not wanted.path:
        given = "version" if wanted.version else "path"
        return Start(None, version, f"only the {given} of a start version is named, not both")
    try:
        check(wanted.path)
    except Refusal as refusal:
        why = f"{wanted.version} is not usable ({refusal.reason}): {refusal.message}"
        return Start(None, version, why, refused=refusal)
    why = f"the fleet serves {wanted.version}"
    return Start(wanted.path, wanted.version, why, wanted.run_id or None)
