"""Weights over a collective: vLLM's weight transfer engine, reached through the engine client.

Source: `AsyncLLM.*_weight_transfer_engine`, `AsyncLLM.*_weight_update`, vLLM 0.32.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

_REQUESTS = "vllm.distributed.weight_transfer.base"


class WeightTransfer:
    """The weight transfer calls of one engine client."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def join(self, info: Mapping[str, Any]) -> None:
        """Join a trainer's group."""
        request = _module().WeightTransferInitRequest(init_info=dict(info))
        await self._client.init_weight_transfer_engine(request)

    async def leave(self) -> None:
        """Leave the trainer's group."""
        await self._client.shutdown_weight_transfer_engine()

    async def begin(self) -> None:
        """Make the model ready to receive."""
        await self._client.start_weight_update()

    async def receive(self, info: Mapping[str, Any] | Sequence[Any]) -> None:
        """Receive some weights. A list has one entry per process of the engine."""
        given = dict(info) if isinstance(info, Mapping) else list(info)
        request = _module().WeightTransferUpdateRequest(update_info=given)
        await self._client.update_weights(request)

    async def end(self) -> None:
        """End the update. The label of the weights is set later, after they were checked."""
        await self._client.finish_weight_update()


def _module() -> Any:
    # Imported on use: vLLM takes seconds to import, and this module loads before vLLM starts.
    return importlib.import_module(_REQUESTS)
