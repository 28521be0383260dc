"""The environment of the worker: other plugins of vLLM, and whether there is an accelerator."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

# Groups whose plugins all load if VLLM_PLUGINS is not set.
_PLUGIN_GROUPS = (
    "vllm.general_plugins",
    "vllm.platform_plugins",
    "vllm.io_processor_plugins",
    "vllm.stat_logger_plugins",
)
_ACCELERATORS = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/kfd", "/dev/dxg", "/dev/davinci0")


def other_plugins() -> list[str]:
    """Return the names of the installed plugins that vLLM loads by default."""
    points = [p for group in _PLUGIN_GROUPS for p in importlib.metadata.entry_points(group=group)]
    return list(dict.fromkeys(point.name for point in points))


def has_accelerator() -> bool:
    """Return whether there is a device other than CPUs, without loading a driver."""
    return any(Path(device).exists() for device in _ACCELERATORS)
