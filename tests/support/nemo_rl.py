"""NeMo-RL's `remote_vllm` at a control address: its calls in their order.

Its published package holds no code. Source: NeMo-RL main, `remote_vllm`, read in August 2026.
"""

from __future__ import annotations

from typing import Any

import httpx

RELOAD_SECONDS = 1800.0


class NemoRl:
    """A trainer with `control_base_url` and its key."""

    def __init__(self, control_base_url: str, key: str) -> None:
        self._http = httpx.Client(
            base_url=control_base_url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=60,
            trust_env=False,
        )

    def close(self) -> None:
        """End its connections."""
        self._http.close()

    def connect(self, model: str) -> int:
        """Check the server as at the start of a run. Returns: the number of workers. Errors: ValueError."""
        health = self._http.get("/health").raise_for_status().json()
        if health["total_backends"] > 1 and health["control_fanout"] is not True:
            raise ValueError("more than one backend, and no fan-out")
        models = self._http.get("/v1/models").raise_for_status().json()["data"]
        if model not in {row["id"] for row in models}:
            raise ValueError(f"no model {model}")
        found = self._http.get("/server_info", params={"config_format": "json"})
        assert found.raise_for_status().json()["vllm_config"]["parallel_config"]
        return int(health["total_backends"])

    def refit(self, path: str) -> list[Any]:
        """Load a directory between a pause and a resume. Returns: one result for each process."""
        self._must("/pause?mode=keep&clear_cache=true")
        body = {"method": "reload_weights", "kwargs": {"weights_path": path}}
        done = self._must("/collective_rpc", json=body, timeout=RELOAD_SECONDS)
        assert self._must("/reset_prefix_cache")["success"] is True
        self._must("/resume")
        return list(done["results"])

    def _must(self, path: str, **options: Any) -> dict[str, Any]:
        return dict(self._http.post(path, **options).raise_for_status().json())
