"""Which weights a process starts on.

The environment names the version that the fleet serves now. A worker that starts on it need not
load a second time before it is admitted; one that cannot starts on the model's own weights, says
why, and gets the version by a load like everybody else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fleet_worker.core.refusals import Refusal


@dataclass(frozen=True, slots=True)
class Start:
    """What a process starts on.

    Fields:
        path: Directory of the weights, or None for the model's own.
        version: Label of these weights.
        why: One sentence for the log.
        refused: The reason and the message why the fleet's version was not taken.
    """

    path: str | None
    version: str
    why: str
    refused: Refusal | None = None


def choose_start(
    *,
    version: str,
    start_version: str | None,
    start_path: str | None,
    check: Callable[[str], None],
) -> Start:
    """Choose between the version that the fleet serves and the model's own weights.

    Args:
        version: Label of the model's own weights.
        start_version: What the environment names; empty is the same as absent.
        start_path: The same of the directory.
        check: Raises `Refusal` if the directory may not be used.
    """
    if not start_version and not start_path:
        return Start(None, version, "no start version is named")
    if not start_version or not start_path:
        given = "version" if start_version else "path"
        return Start(None, version, f"only the {given} of a start version is named, not both")
    if start_version == version:
        return Start(None, version, f"the fleet serves {version}, the model's own weights")
    try:
        check(start_path)
    except Refusal as refusal:
        why = f"{start_version} is not usable ({refusal.reason}): {refusal.message}"
        return Start(None, version, why, refusal)
    return Start(start_path, start_version, f"the fleet serves {start_version}")
