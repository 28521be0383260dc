"""Bodies of the control root, as trainers send them. Unknown fields are ignored: other servers read them.

The names of weights are the exception: each spelling of them counts, or refuses the body.

Source: prime-rl's `utils.client`; vLLM's `entrypoints.rl.online` and `entrypoints.serve.lora`.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictStr, model_validator

from fleet_worker.protocol import with_plain_names, with_single_slashes
from rlfleet_resources.source import AbsolutePath, ManifestDigest, VersionLabel


def _plain(path: Any) -> Any:
    return with_single_slashes(path) if isinstance(path, str) else path


Folder = Annotated[AbsolutePath, BeforeValidator(_plain)]


class Lenient(BaseModel):
    """Base of all bodies."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _with_plain_names(cls, body: Any) -> Any:
        return with_plain_names(body, cls.model_fields)


class Named(Lenient):
    """A directory's own names of its weights.

    Fields:
        version: needed if the name of the directory has no number.
        run_id: needed with the first version of another run.
        digest: of the files, which workers check before they load them.
    """

    version: VersionLabel | None = None
    run_id: VersionLabel | None = None
    digest: ManifestDigest | None = None


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
    positional: Annotated[tuple[Any, ...], Field(alias="args", max_length=0)] = ()
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    named: Annotated[Reload, Field(alias="kwargs")] = Reload()


class LoadAdapter(Named):
    """`/v1/load_lora_adapter`."""

    lora_name: Annotated[StrictStr, Field(min_length=1, max_length=253)]
    lora_path: Folder


class UnloadAdapter(Lenient):
    """`/v1/unload_lora_adapter`."""

    lora_name: Annotated[StrictStr, Field(min_length=1, max_length=253)]
