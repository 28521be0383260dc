"""Names of Dynamo's engine routes on the admin port: `POST /engine/<name>`.

Clients look for these names in the discovery document of a fleet.
"""

from __future__ import annotations

_BOTH = (
    "pause_generation",
    "resume_generation",
    "flush_cache",
    "abort_request",
    "load_lora",
    "unload_lora",
)
_FLAT = (
    *_BOTH,
    "liveness_probe",
    "update_weights_from_disk",
    "update_weights_from_distributed",
    "update_weights_from_tensor",
    "init_weights_update_group",
    "destroy_weights_update_group",
    "get_weight_version",
    "set_weight_version",
)
_CONTROL = (*_BOTH, "is_paused", "get_weight_version", "sleep", "wake_up")
_UPDATE = (
    "update_weight_version",
    "init_weight_transfer_engine",
    "start_weight_update",
    "update_weights",
    "finish_weight_update",
    "load_lora",
    "unload_lora",
)
ENGINE_ROUTES: frozenset[str] = frozenset(
    (*_FLAT, *(f"control/{name}" for name in _CONTROL), *(f"update/{name}" for name in _UPDATE))
)
READING_ENGINE_ROUTES: frozenset[str] = frozenset(
    ("liveness_probe", "get_weight_version", "control/is_paused", "control/get_weight_version")
)
"""Those that change nothing: workers of the operator's fleets answer no other ones."""
