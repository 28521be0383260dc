"""What is known and checked before the engine starts: the model, the start version, the port."""

from __future__ import annotations

import argparse
import logging
import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from fleet_worker.adapters import hub, memory, platform
from fleet_worker.adapters.checkpoint import Checkpoint
from fleet_worker.adapters.engine_names import check_engine
from fleet_worker.adapters.files import Roots
from fleet_worker.adapters.opening import open_checkpoint
from fleet_worker.core.command import AdapterRoom
from fleet_worker.core.refusals import Refusal
from fleet_worker.core.start import Start, choose_start
from fleet_worker.protocol import (
    ENV_ADMIN_TOKEN_FILE,
    ENV_POD_UID,
    ENV_START_PATH,
    ENV_START_VERSION,
    ENV_WORKER_NAME,
    HuggingFaceSource,
    Management,
    Reason,
    Source,
    VersionLabel,
)
from fleet_worker.runtime.driver import DriverRules
from fleet_worker.runtime.handover import Handover
from fleet_worker.runtime.logs import fields
from fleet_worker.runtime.ports import Inspector
from fleet_worker.runtime.reference import Reference
from fleet_worker.runtime.staging import StageRules, Weights
from fleet_worker.runtime.transferring import TransferRoom

_LOG = logging.getLogger(__name__)
_LONGEST_LEASE_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class Model:
    """The model's own weights; also where the tokenizer comes from, whatever version is served."""

    source: Source
    directory: str
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything that the engine and the plugin need.

    Fields:
        weights: directory of the weights to start on.
        tokenizer: directory of the tokenizer.
    """

    handover: Handover
    weights: str
    tokenizer: str


def prepare(
    arguments: argparse.Namespace, *, started: float, environment: Mapping[str, str]
) -> Prepared:
    """Check all that can be checked before minutes are spent on loading.

    Args:
        arguments: Of `serve`.
        started: Monotonic seconds of the process' start.
        environment: Names the token file, the worker and the start version.

    Errors:
        Refusal: the model cannot be used.
        OSError: the admin port cannot be bound.
        UnsupportedEngineError: this vLLM will not do.
    """
    # In the order of what they cost: the engine's names take seconds to import.
    token_file = Path(environment[ENV_ADMIN_TOKEN_FILE])
    with token_file.open():
        pass  # unreadable, nobody could ever drive this worker
    _check_label(arguments.version, "--version")
    _check_driving(arguments)
    admin_socket = _bind(arguments.admin_host, arguments.admin_port)
    try:
        return _prepare(arguments, started, environment, admin_socket, token_file)
    except BaseException:
        admin_socket.close()
        raise


def _prepare(
    arguments: argparse.Namespace,
    started: float,
    environment: Mapping[str, str],
    admin_socket: socket.socket,
    token_file: Path,
) -> Prepared:
    model = _open_model(arguments.model, arguments.revision)
    engine_version = check_engine()
    rules = _rules(arguments, model)
    initial, start = _choose(arguments.version, model, rules, environment)
    has_accelerator = platform.has_accelerator()
    handover = Handover(
        worker=environment.get(ENV_WORKER_NAME) or socket.gethostname(),
        pod_uid=environment.get(ENV_POD_UID) or None,
        instance=uuid.uuid4().hex,
        started=started,
        model=arguments.served_model_name,
        initial=initial,
        rules=rules,
        admin_socket=admin_socket,
        token_file=token_file,
        silence_seconds=arguments.silence_seconds,
        load_seconds=arguments.load_seconds,
        engine_version=engine_version,
        adapters=AdapterRoom(
            arguments.max_loras, arguments.max_lora_rank, spare=0 if has_accelerator else 1
        ),
        transfer=TransferRoom(arguments.weight_transfer_backend, has_accelerator),
        driver=DriverRules(
            Management(arguments.weights_management), arguments.driver_lease_seconds
        ),
    )
    return Prepared(handover, start.path or model.directory, model.directory)


def _check_label(label: str, name: str) -> None:
    try:
        TypeAdapter(VersionLabel).validate_python(label)
    except ValidationError as error:
        raise Refusal(Reason.BAD_REQUEST, f"{name} is not a label of a version") from error


def _check_driving(arguments: argparse.Namespace) -> None:
    if not 0 < arguments.driver_lease_seconds <= _LONGEST_LEASE_SECONDS:
        raise Refusal(
            Reason.BAD_REQUEST,
            f"--driver-lease-seconds must be positive and at most {_LONGEST_LEASE_SECONDS}",
        )
    if arguments.weight_transfer_backend == "ipc":
        raise Refusal(
            Reason.BAD_REQUEST,
            "--weight-transfer-backend ipc is not served: its handles travel as pickles",
        )


def _bind(host: str, port: int) -> socket.socket:
    from fleet_worker.adapters.http_server import bound_socket  # noqa: PLC0415 - imports uvicorn

    try:
        return bound_socket(host, port)
    except OSError as error:
        raise OSError(f"the admin port {host}:{port} cannot be bound: {error.strerror}") from error


def _open_model(name: str, revision: str | None) -> Model:
    if Path(name).is_dir():
        directory = os.path.realpath(name)
        source = Source(path=directory)
    else:
        directory = hub.snapshot(name, revision or "main")
        source = Source(hugging_face=HuggingFaceSource(repo=name, revision=revision or "main"))
    return Model(source, directory, open_checkpoint(directory, None))


def _rules(arguments: argparse.Namespace, model: Model) -> StageRules:
    from fleet_worker.adapters.inspector import TorchInspector  # noqa: PLC0415 - imports torch

    inspector: Inspector = TorchInspector()
    budget = arguments.staging_memory_bytes
    return StageRules(
        Roots(arguments.weights_root),
        Reference.of(model.checkpoint, inspector),
        inspector,
        memory.default_budget() if budget is None else budget,
    )


def _choose(
    version: str, model: Model, rules: StageRules, environment: Mapping[str, str]
) -> tuple[Weights, Start]:
    opened: list[Checkpoint] = []

    def check(path: str) -> None:
        _check_label(environment[ENV_START_VERSION], ENV_START_VERSION)
        checkpoint = open_checkpoint(path, rules.roots)
        try:
            rules.reference.check(checkpoint, rules.inspector)
            rules.inspector.read(checkpoint, budget=0, go_on=lambda: None)
        except BaseException:
            checkpoint.close()
            raise
        opened.append(checkpoint)

    start = choose_start(
        version=version,
        start_version=environment.get(ENV_START_VERSION),
        start_path=environment.get(ENV_START_PATH),
        check=check,
    )
    level = logging.WARNING if start.refused is not None else logging.INFO
    line = fields("start", version=start.version)
    _LOG.log(level, "starting on %s: %s", start.version, start.why, extra=line)
    if start.path is None:
        digest = model.checkpoint.digest(lambda: None)
        return Weights(version, model.source, digest, model.checkpoint), start
    model.checkpoint.close()
    digest = opened[0].digest(lambda: None)
    return Weights(start.version, Source(path=start.path), digest, opened[0]), start
