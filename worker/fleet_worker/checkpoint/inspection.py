"""Checks that need transformers: configurations with their defaults; and the pass over the bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from sys import modules
from typing import Any

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.config_code import ConfigCode, code_of
from fleet_worker.checkpoint.configuration import sizes_of, used
from fleet_worker.checkpoint.finite import own_pass
from fleet_worker.checkpoint.keeping import Passes
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason


def normalised_config(config: dict[str, Any], code: ConfigCode | None = None) -> dict[str, Any]:
    """Return the part of a configuration that may compute, with the defaults of its architecture filled in.

    `code`: that of the running model; None for that of the configuration's own type.
    """
    code = _code_of(config) if code is None else code
    # transformers fills in bookkeeping, too.
    return used(_filled(used(config, code).config), code).config


def _filled(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with the defaults of its architecture filled in.

    Two releases of transformers write the same configuration differently (`rope_theta` or
    `rope_parameters`, without keys that have their default value). Read by one release they are equal.
    The configuration of an unknown model type does not change.

    Source: `CONFIG_MAPPING`, transformers 5.
    """
    from transformers import CONFIG_MAPPING  # noqa: PLC0415 - half a second, and rarely needed

    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        return config
    try:
        filled = CONFIG_MAPPING[kind].from_dict(config).to_dict()
    except Exception as error:  # each class raises other errors
        raise Refusal(
            Reason.CHECKPOINT_MALFORMED, f"config.json is not a valid {kind} configuration"
        ) from error
    # transformers drops the list of classes.
    return {**filled, "architectures": config.get("architectures")}


def _code_of(config: dict[str, Any], directory: str | None = None) -> ConfigCode:
    """Return the code that computes a configuration, with that in the directory of a model."""
    from transformers import CONFIG_MAPPING  # noqa: PLC0415 - as above

    # With the types that are filled in where a nested configuration names none.
    types = {s.value for s in sizes_of(_filled(config)) if s.key.endswith("model_type")}
    classes = [CONFIG_MAPPING[kind] for kind in types if kind in CONFIG_MAPPING]
    return code_of(
        config,
        directory,
        [Path(str(modules[each.__module__].__file__)) for each in classes],
        {key for each in classes for key in each.sub_configs},
    )


class ModelInspector:
    """The checks of checkpoints that need transformers or all bytes."""

    def __init__(self, passes: Passes | None = None) -> None:
        """`passes`: makes the passes over the bytes. By default they run in this process."""
        self._passes = own_pass if passes is None else passes

    def read(
        self, checkpoint: Checkpoint, *, budget: int, check_cancelled: Callable[[], None]
    ) -> bool:
        """Read all bytes once and refuse infinities and NaNs; see `Checkpoint.read_in`."""
        reading = self._passes(checkpoint.casts)
        return checkpoint.read_in(reading, budget=budget, check_cancelled=check_cancelled)

    def leave_memory(self, checkpoint: Checkpoint) -> None:
        """Free the memory of a checkpoint; see `Checkpoint.leave_memory`."""
        checkpoint.leave_memory(self._passes(None))

    def normalised_config(self, config: dict[str, Any], code: ConfigCode) -> dict[str, Any]:
        """Return the part of a configuration that may compute, with its defaults filled in."""
        return normalised_config(config, code)

    def code_of(self, checkpoint: Checkpoint) -> ConfigCode:
        """Return the code that computes the model of a checkpoint."""
        return _code_of(checkpoint.config, checkpoint.path)
