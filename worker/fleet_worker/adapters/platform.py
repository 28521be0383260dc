"""What is installed beside us: other plugins of vLLM, and whether the engine computes on CPUs."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

# Those of the groups that load without being named in VLLM_PLUGINS, as long as that is not set.
_PLUGIN_GROUPS = (
    "vllm.general_plugins",
    "vllm.platform_plugins",
    "vllm.io_processor_plugins",
    "vllm.stat_logger_plugins",
)
_ACCELERATORS = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/kfd", "/dev/dxg", "/dev/davinci0")


def other_plugins() -> list[str]:
    """Names of the installed plugins that vLLM loads on its own accord."""
    points = [p for group in _PLUGIN_GROUPS for p in importlib.metadata.entry_points(group=group)]
    return list(dict.fromkeys(point.name for point in points))


def has_accelerator() -> bool:
    """Whether there is a device other than CPUs; asked without loading a driver."""
    return any(Path(device).exists() for device in _ACCELERATORS)
