"""Bodies of Dynamo's engine routes. `trainer/dynamo.py` serves the routes."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import ConfigDict, StrictStr

from fleet_worker.admin.api import Lenient
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason
from fleet_worker.trainer.vllm_requests import JoinId, Loading


class FromDisk(Loading):
    """`update_weights_from_disk`."""

    model_path: StrictStr | None = None
    engine_rpc: StrictStr = "reload_weights"


class FromDistributed(Lenient):
    """`update_weights_from_distributed`: one step of an update, named by `engine_rpc`."""

    engine_rpc: StrictStr = "update_weights_from_path"
    allow_unpaused: bool = False
    reset_prefix_cache: bool = True


class JoinGroup(Lenient):
    """`init_weights_update_group`. Other fields are for the weight transfer engine."""

    model_config = ConfigDict(frozen=True, extra="allow")

    host: StrictStr | None = None
    port: int | None = None
    rank_offset: int = 0
    inference_world_size: int | None = None
    init_info: dict[str, Any] | None = None
    join_id: JoinId | None = None

    def as_init_info(self) -> dict[str, Any]:
        """Return the arguments of the weight transfer engine."""
        if self.init_info is not None:
            return self.init_info
        if self.host is None or self.port is None or self.inference_world_size is None:
            raise Refusal(
                Reason.BAD_REQUEST, "host, port and inference_world_size, or init_info, are needed"
            )
        return {
            "master_address": self.host,
            "master_port": self.port,
            "rank_offset": self.rank_offset + 1,
            "world_size": self.inference_world_size + 1,
        }


class SetVersion(Lenient):
    """`set_weight_version`, and `update/update_weight_version` under another key."""

    weight_version: StrictStr | None = None
    new_version: StrictStr | None = None

    @property
    def label(self) -> str:
        """The one that is given."""
        found = self.weight_version or self.new_version
        if not found:
            raise Refusal(Reason.BAD_REQUEST, "no version is named")
        return found


class AdapterSource(Lenient):
    """Where an adapter is: `file://` and a path."""

    uri: StrictStr

    @property
    def path(self) -> str:
        """The path."""
        try:
            parts = urlsplit(self.uri)
        except ValueError as error:
            raise Refusal(
                Reason.BAD_REQUEST, "source.uri is not a valid URI; use file:///DIRECTORY"
            ) from error
        if parts.scheme not in ("file", "") or parts.netloc not in ("", "localhost"):
            raise Refusal(Reason.BAD_REQUEST, "adapters are read from file:// only")
        return unquote(parts.path)


class LoadAdapter(Loading):
    """`load_lora`, `POST /v1/loras`."""

    lora_name: StrictStr
    source: AdapterSource
