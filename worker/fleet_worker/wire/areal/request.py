"""What AReaL sends.

Source: `areal.engine.vllm_remote` and its vLLM server, AReaL 1.0.
"""

from __future__ import annotations

from pydantic import StrictStr

from fleet_worker.wire.control import Lenient


class UpdateWeights(Lenient):
    """`/areal_update_weights`."""

    model_path: StrictStr | None = None
