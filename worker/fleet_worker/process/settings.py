"""Settings of `serve`, from its flags and from the variables of its pod."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError, field_validator
from pydantic_core import ErrorDetails

from fleet_worker.errors import Refusal
from fleet_worker.logs import LogFormat
from fleet_worker.protocol import (
    ENV_ADMIN_TOKEN_FILE,
    ENV_POD_UID,
    ENV_START_DIGEST,
    ENV_START_PATH,
    ENV_START_RUN_ID,
    ENV_START_VERSION,
    ENV_WORKER_NAME,
    Loading,
    Management,
    Reason,
    VersionLabel,
)

_VARIABLES = {
    "admin_token_file": ENV_ADMIN_TOKEN_FILE,
    "worker_name": ENV_WORKER_NAME,
    "pod_uid": ENV_POD_UID,
    "start_version": ENV_START_VERSION,
    "start_path": ENV_START_PATH,
    "start_run_id": ENV_START_RUN_ID,
    "start_digest": ENV_START_DIGEST,
}

Port = Annotated[int, Field(ge=0, le=65_535)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Settings(BaseModel, frozen=True):
    """Settings of one worker. The help of `serve` explains the flags, docs/reference/worker.md all.

    Fields:
        start_version, start_path, start_run_id, start_digest: the weights that the fleet serves. They
            are checked when the worker chooses its weights, because a wrong one must not end it.
        engine_arguments: the arguments after `--`, for vLLM.
    """

    model: str
    revision: str | None
    served_model_name: str
    version: VersionLabel
    host: str
    port: Port
    admin_host: str
    admin_port: Port
    metrics_host: str
    metrics_port: Port | None
    weights_root: tuple[str, ...]
    weights_management: Management
    driver_lease_seconds: Annotated[Seconds, Field(le=86_400)]
    weight_transfer_backend: str | None
    staging_memory_bytes: Annotated[int, Field(ge=0)] | None
    max_loras: Annotated[int, Field(ge=0)]
    max_lora_rank: Annotated[int, Field(ge=1)]
    silence_seconds: Seconds
    load_seconds: Seconds
    log_format: LogFormat
    log_level: str
    loading: Loading = Loading.FULL
    peer_port: Port | None = None
    peer_bytes_per_second: Annotated[int, Field(ge=0)] = 0
    engine_arguments: tuple[str, ...] = ()

    admin_token_file: Path
    worker_name: str = Field(default_factory=socket.gethostname)
    pod_uid: str | None = None
    start_version: str | None = None
    start_path: str | None = None
    start_run_id: str | None = None
    start_digest: str | None = None

    @field_validator("weight_transfer_backend")
    @classmethod
    def _is_safe(cls, backend: str | None) -> str | None:
        if backend == "ipc":
            raise ValueError(
                "ipc is not supported, since its handles are pickles, which run code in the worker;"
                " use nccl, also for a trainer on the same GPU"
            )
        return backend

    @classmethod
    def of(cls, arguments: argparse.Namespace, environment: Mapping[str, str]) -> Settings:
        """Check the flags and the variables. An empty variable counts as absent.

        Errors:
            Refusal: names each invalid flag and variable.
        """
        given = {field: environment.get(name) for field, name in _VARIABLES.items()}
        try:
            return cls.model_validate(vars(arguments) | {k: v for k, v in given.items() if v})
        except ValidationError as invalid:
            found = [f"{_name(str(e['loc'][0]))}: {_why(e)}" for e in invalid.errors()]
            raise Refusal(Reason.BAD_REQUEST, "; ".join(found)) from invalid


def _name(field: str) -> str:
    return _VARIABLES.get(field) or "--" + field.replace("_", "-")


def _why(error: ErrorDetails) -> str:
    return "it is not set" if error["type"] == "missing" else error["msg"]
