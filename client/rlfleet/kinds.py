"""Of which kinds arguments must be, where Python would fail later, without the name of the argument."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, SupportsFloat, runtime_checkable

from rlfleet.arguments import PathLike
from rlfleet.deltas.options import Deltas
from rlfleet.rollout import Rollout


@runtime_checkable
class Savable(Protocol):
    """Such as a model of transformers."""

    def save_pretrained(self, directory: str, /) -> object:
        """Write its files."""
        ...


_PATH = (str | PathLike | None, "a path")
_KINDS: dict[str, tuple[Any, str]] = {
    "state_dict": (Mapping | None, "a mapping from names to tensors, such as model.state_dict()"),
    "model": (
        Savable | None,
        "a model with save_pretrained; of another one, give the tensors with state_dict= and config_from=",
    ),
    "directory": _PATH,
    "config_from": _PATH,
    "written_to": _PATH,
    "delta": (bool | Deltas, "True, False or rlfleet.Deltas(…)"),
    "create_for": (str | None, "the name of a fleet"),
    "rollout": (Rollout | None, "the rollout that publish(wait=False) has returned"),
    "timeout_seconds": (SupportsFloat, "a number of seconds"),
}


def check_kinds(**given: Any) -> None:
    """Check of which kinds arguments are. Errors: TypeError, which names one."""
    for name, value in given.items():
        kind, words = _KINDS[name]
        if not isinstance(value, kind):
            raise TypeError(f"{name} is of the kind {type(value).__name__}, but must be {words}")
