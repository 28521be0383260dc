"""Choose the weights that a process starts on.

The environment names the version that the fleet serves now, with its run, directory and digest. A
worker that starts on it need not load again before it is admitted. If it cannot, or if the files have
another digest, it starts on the model's own weights and reports the reason. It then loads the version
like every other worker. So it does with tensors that a load casts: vLLM takes more from the files of a start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fleet_worker.checkpoint.identity import check_digest
from fleet_worker.errors import Refusal
from fleet_worker.protocol import ENV_START_PATH, ENV_START_VERSION


@dataclass(frozen=True, slots=True)
class Wanted:
    """The start version in the environment. Empty values count as absent."""

    version: str | None = None
    path: str | None = None
    run_id: str | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """The weights that a process starts on.

    Fields:
        path: Directory of the weights, or None for the model's own.
        version: Label of these weights.
        why: One sentence for the log.
        run_id: The run that the version belongs to.
        refused: The refusal of the fleet's version, if it was refused.
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
    check: Callable[[str], str],
) -> Start:
    """Choose between the version that the fleet serves and the model's own weights.

    Args:
        version: Label of the model's own weights, which belong to no run.
        wanted: The start version in the environment.
        own_digest: Computes the digest of the model's own weights.
        check: Raises `Refusal` if the directory is not allowed, or has other bytes. Returns why only a
            load can bring its weights into the engine; empty if the engine can start on them.
    """
    if not wanted.version and not wanted.path:
        return Start(None, version, "the environment names no start version")
    if wanted.version == version and not wanted.run_id:
        why = f"the fleet serves {version}, the model's own weights"
        try:
            check_digest(wanted.digest, own_digest(), "the model's own weights")
        except Refusal as refusal:
            return Start(None, version, refusal.message, refused=refusal)
        return Start(None, version, why)
    if not wanted.version or not wanted.path:
        missing = ENV_START_PATH if wanted.version else ENV_START_VERSION
        return Start(None, version, f"the start version is incomplete: {missing} is not set")
    return _checked(version, wanted, wanted.path, check)


def _checked(own: str, wanted: Wanted, path: str, check: Callable[[str], str]) -> Start:
    try:
        needs_load = check(path)
    except Refusal as refusal:
        why = f"version {wanted.version} is refused ({refusal.reason}): {refusal.message}"
        return Start(None, own, why, refused=refusal)
    if needs_load:
        return Start(None, own, f"version {wanted.version} needs a load: {needs_load}")
    why = f"the fleet serves {wanted.version}"
    return Start(path, str(wanted.version), why, wanted.run_id or None)
