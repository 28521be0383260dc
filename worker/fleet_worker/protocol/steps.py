"""The paths of a trainer's directories, and the number of a step in their names.

Trainers put the number of a step into the folder's name, `…/step_41` or `…/step_41/weights`. That number is the
version.
"""

from __future__ import annotations

import re

_STEP = re.compile(r"(?:global_)?step[_-]?([0-9]{1,18})")
_BELOW_A_STEP = frozenset({"weight", "weights", "model", "hf", "policy", "actor"})


def step_of(path: str) -> str | None:
    """Return the number in a folder's name, without leading zeros; None without a number."""
    parts = _parts_to_step(path)
    found = _STEP.fullmatch(parts[-1]) if parts else None
    return str(int(found[1])) if found else None


def parent_of_step(path: str) -> str | None:
    """Return the folder that holds the steps of a trainer, from the absolute path of one step.

    `/run-7` for `/run-7/step_41` and for `/run-7/step_41/weights`. None for a path without a step.
    """
    if step_of(path) is None:
        return None
    return "/" + "/".join(_parts_to_step(path)[:-1])


def _parts_to_step(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if len(parts) > 1 and parts[-1] in _BELOW_A_STEP:
        parts.pop()
    return parts


def with_single_slashes(path: str) -> str:
    """Return a trainer's spelling of a path as a resource has it: `/run/step_5` for `/run//step_5/`."""
    return re.sub("/+", "/", path).rstrip("/") or "/"
