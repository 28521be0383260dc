"""Bodies and queries of vLLM's routes for online RL. `trainer/vllm.py` serves the routes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StrictStr, model_validator

from fleet_worker.admin.api import Lenient
from fleet_worker.protocol import PauseMode, with_plain_names

_RELOAD = "reload_weights"

JoinId = Annotated[StrictStr, Field(min_length=8, max_length=128)]
"""The same text at all workers that join a group, and new for each group. The control root sends it."""


class Naming(Lenient):
    """A body that may name weights. A name that has no effect here is refused, not ignored."""

    @model_validator(mode="before")
    @classmethod
    def _with_plain_names(cls, body: Any) -> Any:
        return with_plain_names(body, cls.model_fields)


class Loading(Naming):
    """A body that brings weights. `version`: their name, else that of the directory or of the weights."""

    version: StrictStr | None = None


class Pause(Lenient):
    """`/pause?mode=&clear_cache=`; the default is vLLM's."""

    mode: PauseMode = PauseMode.ABORT
    clear_cache: bool = True


class JoinTransfer(Lenient):
    """`/init_weight_transfer_engine`. `join_id`: see `JoinId`."""

    init_info: dict[str, Any]
    join_id: JoinId | None = None


class BeginTransfer(Loading):
    """`/start_weight_update`. vLLM's has no body; a version that is named here is checked here."""


class Receive(Lenient):
    """`/update_weights` with tensors that come over a collective."""

    update_info: dict[str, Any] | list[Any]


class EndTransfer(Loading):
    """`/finish_weight_update`."""


class NameVersion(Lenient):
    """`/update_weight_version`."""

    new_version: StrictStr


class ReloadArguments(Loading):
    """Keyword arguments of the one method that may be called by `/collective_rpc`."""

    weights_path: StrictStr | None = None


class CollectiveRpc(Naming):
    """`/collective_rpc`."""

    method: StrictStr
    positional: Annotated[tuple[Any, ...], Field(alias="args", max_length=0)] = ()
    named: Annotated[ReloadArguments, Field(alias="kwargs")] = ReloadArguments()

    @property
    def is_allowed(self) -> bool:
        """Whether it is the method that may be called."""
        return self.method == _RELOAD


class DropPrefixes(Lenient):
    """`/reset_prefix_cache`, in the query or in the body."""

    reset_running_requests: bool = False


class Sleep(Lenient):
    """`/sleep?level=&mode=`."""

    level: Annotated[int, Field(ge=0, le=2)] = 1
    mode: PauseMode = PauseMode.ABORT


class Wake(Lenient):
    """`/wake_up?tags=&tags=`."""

    tags: list[str] | None = None


class AbortRequests(Lenient):
    """`/abort_requests`; all of them if none is named."""

    request_ids: list[StrictStr] | None = None


class LoadAdapter(Loading):
    """`/v1/load_lora_adapter`, prime-rl's `/load_lora_adapter`."""

    lora_name: StrictStr
    lora_path: StrictStr


class UnloadAdapter(Lenient):
    """`/v1/unload_lora_adapter`."""

    lora_name: StrictStr
