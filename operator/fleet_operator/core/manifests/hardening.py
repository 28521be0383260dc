"""The rights that no pod of a fleet has."""

from __future__ import annotations

from typing import Any

USER_ID = 1000
"""The images run as this user and group."""


def hardened_pod() -> dict[str, Any]:
    """Returns the fields of a pod that does not run as root and has no token of the API server."""
    return {
        # A Service named `vllm` would otherwise set VLLM_PORT, which kills the engine.
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def hardened_container() -> dict[str, Any]:
    """Returns the `securityContext` of a container that cannot get more rights."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
