"""Checks before the engine starts: the model, the version to start on, and the ports."""

from __future__ import annotations

import contextlib
import logging
import socket
import uuid
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeVar

from pydantic import TypeAdapter, ValidationError

from fleet_worker.checkpoint import memory
from fleet_worker.checkpoint.delta_chain import FirstBase
from fleet_worker.checkpoint.files import Roots, is_uri
from fleet_worker.checkpoint.inspector import Inspector
from fleet_worker.checkpoint.nearby import with_what_is_there
from fleet_worker.checkpoint.reference import Reference, StageRules
from fleet_worker.checkpoint.stager_pass import StagerPass
from fleet_worker.checkpoint.stagers import Stagers
from fleet_worker.engine import platform
from fleet_worker.engine.required_names import check_engine
from fleet_worker.errors import Refusal
from fleet_worker.http.sockets import EVERY, bound_socket
from fleet_worker.lifecycle.weights import Weights
from fleet_worker.logs import fields
from fleet_worker.process.command import AdapterRoom
from fleet_worker.process.handover import Handover, StartFailure
from fleet_worker.process.settings import Settings
from fleet_worker.process.start import Wanted, choose_start
from fleet_worker.process.start_directory import start_directory
from fleet_worker.process.start_weights import (
    Model,
    in_time,
    open_model,
    read_model,
    read_start,
)
from fleet_worker.protocol import (
    ENV_START_DIGEST,
    ENV_START_RUN_ID,
    ENV_START_VERSION,
    Loading,
    Reason,
    VersionLabel,
    WeightsDigest,
)
from fleet_worker.trainer.driver import DriverRules
from fleet_worker.trainer.transfers import TransferRoom

_LOG = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prepared:
    """The data that the engine and the plugin need.

    Fields:
        directory: what vLLM starts on (`start_directory`).
    """

    handover: Handover
    directory: str


class Sockets(NamedTuple):
    """Sockets that are bound and not listening yet. `metrics`, `peers`: None without such a port."""

    admin: socket.socket
    metrics: socket.socket | None
    peers: socket.socket | None


def prepare(settings: Settings, *, started: float) -> Prepared:
    """Run all checks that are possible before the engine spends minutes on loading.

    `started`: the start of the process, in monotonic seconds.

    Errors:
        Refusal: The model cannot be used.
        OSError: The admin port or the metrics port cannot be bound.
        UnsupportedEngineError: The worker does not support this version of vLLM.
    """
    # The cheapest checks come first: importing vLLM takes seconds.
    with settings.admin_token_file.open():
        pass  # without a readable token every call would be refused
    with contextlib.ExitStack() as unless_prepared:
        admin = _bind("admin", settings.admin_host, settings.admin_port)
        unless_prepared.enter_context(admin)
        metrics = None
        if settings.metrics_port is not None:
            metrics = _bind("metrics", settings.metrics_host, settings.metrics_port)
            unless_prepared.enter_context(metrics)
        peers = None
        if settings.peer_port is not None:
            peers = _bind("peer", EVERY, settings.peer_port)
            unless_prepared.enter_context(peers)
        prepared = _prepare(settings, started, Sockets(admin, metrics, peers))
        unless_prepared.pop_all()
    return prepared


def _open_model(settings: Settings, roots: Roots) -> Model:
    try:
        return open_model(settings.model, settings.revision)
    except Refusal as refusal:
        named = Refusal(refusal.reason, f"model {settings.model}: {refusal.message}")
        with contextlib.suppress(Refusal):  # outside of the roots nothing is listed
            roots.check_name(settings.model)
            named = with_what_is_there(named, settings.model, roots)
        raise named from refusal


def _prepare(settings: Settings, started: float, sockets: Sockets) -> Prepared:
    named = ", ".join(map(str, settings.weights_root))
    roots = in_time(named, lambda _: Roots(settings.weights_root))
    model = in_time(f"of {settings.model}", lambda _: _open_model(settings, roots))
    engine_version = check_engine()
    stagers = Stagers()
    rules = _rules(settings, model, roots, stagers if is_uri(model.directory) else None)
    initial, failure = _choose(settings, model, rules)
    initial.checkpoint.is_started_on = True
    reference = replace(rules.reference, zero_blocks=initial.checkpoint.zero_blocks)
    own = initial.digest if initial.checkpoint is model.checkpoint else None
    first_base = FirstBase(model.directory, settings.version, own)
    rules = replace(
        rules, reference=reference, inspector=_inspector(stagers), first_base=first_base
    )
    has_accelerator = platform.has_accelerator()
    handover = Handover(
        worker=settings.worker_name,
        pod_uid=settings.pod_uid,
        instance=uuid.uuid4().hex,
        started=started,
        model=settings.served_model_name,
        initial=initial,
        rules=rules,
        stagers=stagers,
        admin_socket=sockets.admin,
        metrics_socket=sockets.metrics,
        peer_socket=sockets.peers,
        peer_bytes_per_second=settings.peer_bytes_per_second,
        loads_in_place=settings.loading is Loading.IN_PLACE,
        token_file=settings.admin_token_file,
        silence_seconds=settings.silence_seconds,
        load_seconds=settings.load_seconds,
        engine_version=engine_version,
        adapters=AdapterRoom(
            settings.max_loras, settings.max_lora_rank, spare=0 if has_accelerator else 1
        ),
        transfer=TransferRoom(settings.weight_transfer_backend, has_accelerator),
        driver=DriverRules(settings.weights_management, settings.driver_lease_seconds),
        start_failure=failure,
    )
    port = sockets.admin.getsockname()[1]
    start = partial(start_directory, initial.checkpoint, model.checkpoint, port=port)
    return Prepared(handover, in_time(f"of {model.directory}", lambda _: start()))


def _check_label(label: str, name: str) -> None:
    try:
        TypeAdapter(VersionLabel).validate_python(label)
    except ValidationError as error:
        raise Refusal(Reason.BAD_REQUEST, f"{name} is not a valid label") from error


def _bind(name: str, host: str, port: int) -> socket.socket:
    try:
        return bound_socket(host, port)
    except OSError as error:
        message = f"the {name} port {host}:{port} cannot be bound: {error.strerror}"
        raise OSError(message) from error


def _rules(settings: Settings, model: Model, roots: Roots, stagers: Stagers | None) -> StageRules:
    # There are no streams yet that a pass in this process could disturb. But only stagers ask stores.
    inspector = _inspector(stagers)
    budget = settings.staging_memory_bytes
    return StageRules(
        roots,
        in_time(f"of {model.directory}", partial(Reference.of, model.checkpoint, inspector)),
        inspector,
        memory.default_budget() if budget is None else budget,
    )


def _inspector(stagers: Stagers | None) -> Inspector:
    """The checks of checkpoints, whose bytes are read by stagers or in this process."""
    from fleet_worker.checkpoint.inspection import ModelInspector  # noqa: PLC0415 - imports numpy

    return ModelInspector(None if stagers is None else partial(StagerPass, stagers))


def _choose(
    settings: Settings, model: Model, rules: StageRules
) -> tuple[Weights, StartFailure | None]:
    wanted = Wanted(
        settings.start_version, settings.start_path, settings.start_run_id, settings.start_digest
    )
    opened: list[Weights] = []

    def check(path: str) -> str:
        _check_label(wanted.version or "", ENV_START_VERSION)
        _check_named(wanted)
        reading = partial(read_start, path, wanted, rules)
        found = in_time(rules.roots.root_of(path), reading, late=_close)
        if isinstance(found, str):
            return found
        opened.append(found)
        return ""

    start = choose_start(
        version=settings.version,
        wanted=wanted,
        own_digest=lambda: read_model(model.checkpoint, rules.inspector, rules.budget_bytes),
        check=check,
    )
    level = logging.WARNING if start.refused is not None else logging.INFO
    log_fields = fields("start", version=start.version, run_id=start.run_id)
    _LOG.log(level, "starting on %s: %s", start.version, start.why, extra=log_fields)
    failure = None
    if start.refused is not None:
        failure = StartFailure(wanted.version, wanted.run_id, wanted.path, start.refused)
    if start.path is None:
        digest = read_model(model.checkpoint, rules.inspector, rules.budget_bytes)
        weights = Weights(settings.version, model.source, digest, model.checkpoint)
        return replace(weights, in_memory=model.checkpoint.is_only_in_memory), failure
    model.checkpoint.close()
    return opened[0], failure


def _close(late: Weights | str) -> None:
    if isinstance(late, Weights):
        late.checkpoint.close()


def _check_named(wanted: Wanted) -> None:
    if wanted.run_id is not None:
        _check_label(wanted.run_id, ENV_START_RUN_ID)
    try:
        TypeAdapter(WeightsDigest | None).validate_python(wanted.digest)
    except ValidationError as error:
        raise Refusal(Reason.BAD_REQUEST, f"{ENV_START_DIGEST} is not a digest") from error
