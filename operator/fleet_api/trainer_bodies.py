"""Bodies of the control root, as trainers send them. Unknown fields are ignored: other servers read them.

Source: prime-rl's `utils.client`; vLLM's `entrypoints.rl.online` and `entrypoints.serve.lora`.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictStr

from fleet_operator.api.source import AbsolutePath, VersionLabel
from fleet_worker.protocol import with_single_slashes


def _plain(path: Any) -> Any:
    return with_single_slashes(path) if isinstance(path, str) else path


Folder = Annotated[AbsolutePath, BeforeValidator(_plain)]


class Lenient(BaseModel):
    """Base of all bodies."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Named(Lenient):
    """A directory's own names of its weights.

    Fields:
        version: needed if the name of the directory has no number.
        run_id: needed with the first version of another run.
    """

    version: VersionLabel | None = None
    run_id: VersionLabel | None = None


class UpdateWeights(Named):
    """`/update_weights`."""

    weight_dir: Folder | None = None
    update_info: dict[str, Any] | list[Any] | None = None


class Reload(Named):
    """Arguments of `reload_weights`."""

    weights_path: Folder | None = None


class CollectiveRpc(Lenient):
    """`/collective_rpc`. `timeout`: seconds to wait for the rollout; an hour at most."""

    method: StrictStr
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    named: Annotated[Reload, Field(alias="kwargs")] = Reload()


class LoadAdapter(Named):
    """`/v1/load_lora_adapter`."""

    lora_name: Annotated[StrictStr, Field(min_length=1, max_length=253)]
    lora_path: Folder


class UnloadAdapter(Lenient):
    """`/v1/unload_lora_adapter`."""

    lora_name: Annotated[StrictStr, Field(min_length=1, max_length=253)]
