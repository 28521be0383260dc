"""What is known and checked before the engine starts: the model, the start version, the ports."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import socket
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import TypeAdapter, ValidationError

from fleet_worker.adapters import hub, memory, platform
from fleet_worker.adapters.checkpoint import Checkpoint
from fleet_worker.adapters.engine_names import check_engine
from fleet_worker.adapters.files import Roots
from fleet_worker.adapters.opening import open_checkpoint
from fleet_worker.core.command import AdapterRoom
from fleet_worker.core.digests import check_digest
from fleet_worker.core.refusals import Refusal
from fleet_worker.core.start import Wanted, choose_start
from fleet_worker.protocol import (
    ENV_ADMIN_TOKEN_FILE,
    ENV_POD_UID,
    ENV_START_DIGEST,
    ENV_START_PATH,
    ENV_START_RUN_ID,
    ENV_START_VERSION,
    ENV_WORKER_NAME,
    HuggingFaceSource,
    Management,
    Reason,
    Source,
    VersionLabel,
    WeightsDigest,
)
from fleet_worker.runtime.driver import DriverRules
from fleet_worker.runtime.handover import Handover, StartFailure
from fleet_worker.runtime.logs import fields
from fleet_worker.runtime.ports import Inspector
from fleet_worker.runtime.reference import Reference
from fleet_worker.runtime.staging import StageRules
from fleet_worker.runtime.store_threads import SILENCE_SECONDS, Pulse, StoreThreads
from fleet_worker.runtime.transferring import TransferRoom
from fleet_worker.runtime.weights import Weights

_LOG = logging.getLogger(__name__)
_LONGEST_LEASE_SECONDS = 86_400

T = TypeVar("T")


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


class Sockets(NamedTuple):
    """Bound, not listening yet. `metrics`: None without such a port."""

    admin: socket.socket
    metrics: socket.socket | None


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
        OSError: the admin port, or the metrics port, cannot be bound.
        UnsupportedEngineError: this vLLM will not do.
    """
    # In the order of what they cost: the engine's names take seconds to import.
    token_file = Path(environment[ENV_ADMIN_TOKEN_FILE])
    with token_file.open():
        pass  # unreadable, nobody could ever drive this worker
    _check_label(arguments.version, "--version")
    _check_driving(arguments)
    with contextlib.ExitStack() as unless_prepared:
        admin = _bind("admin", arguments.admin_host, arguments.admin_port)
        unless_prepared.enter_context(admin)
        metrics = None
        if arguments.metrics_port is not None:
            metrics = _bind("metrics", arguments.metrics_host, arguments.metrics_port)
            unless_prepared.enter_context(metrics)
        prepared = _prepare(arguments, started, environment, Sockets(admin, metrics), token_file)
        unless_prepared.pop_all()
    return prepared


def _prepare(
    arguments: argparse.Namespace,
    started: float,
    environment: Mapping[str, str],
    sockets: Sockets,
    token_file: Path,
) -> Prepared:
    model = _in_time(
        f"of {arguments.model}", lambda _: _open_model(arguments.model, arguments.revision)
    )
    engine_version = check_engine()
    named = ", ".join(map(str, arguments.weights_root))
    roots = _in_time(named, lambda _: Roots(arguments.weights_root))
    rules = _rules(arguments, model, roots)
    initial, failure = _choose(arguments.version, model, rules, environment)
    reference = replace(rules.reference, zero_blocks=initial.checkpoint.zero_blocks)
    rules = replace(rules, reference=reference)
    has_accelerator = platform.has_accelerator()
    handover = Handover(
        worker=environment.get(ENV_WORKER_NAME) or socket.gethostname(),
        pod_uid=environment.get(ENV_POD_UID) or None,
        instance=uuid.uuid4().hex,
        started=started,
        model=arguments.served_model_name,
        initial=initial,
        rules=rules,
        admin_socket=sockets.admin,
        metrics_socket=sockets.metrics,
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
        start_failure=failure,
    )
    return Prepared(handover, initial.checkpoint.path, model.directory)


def _in_time(
    store: str,
    work: Callable[[Callable[[], None]], T],
    *,
    late: Callable[[T], object] = lambda _: None,
) -> T:
    """Do work on a file system, which may take for ever to answer.

    Args:
        store: The directory that it needs, for the message.
        work: What to do; given what it calls whenever the store has answered.
        late: Given what the work brings after it was given up.

    Errors:
        Refusal: of the work; `SourceUnreadable` if the store has not answered for 60 s.
    """
    pulse = Pulse()
    threads = StoreThreads()
    return asyncio.run(
        threads.run(
            partial(work, pulse.beat),
            store=store,
            within_seconds=SILENCE_SECONDS,
            pulse=pulse,
            late=late,
        )
    )


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


def _bind(what: str, host: str, port: int) -> socket.socket:
    from fleet_worker.adapters.http_server import bound_socket  # noqa: PLC0415 - imports uvicorn

    try:
        return bound_socket(host, port)
    except OSError as error:
        told = f"the {what} port {host}:{port} cannot be bound: {error.strerror}"
        raise OSError(told) from error


def _open_model(name: str, revision: str | None) -> Model:
    if Path(name).is_dir():
        directory = os.path.realpath(name)
        source = Source(path=directory)
    else:
        # By its commit, which the state reports: a branch may move before the next start.
        commit = hub.commit_of(name, revision or "main")
        directory = hub.snapshot(name, commit)
        source = Source(hugging_face=HuggingFaceSource(repo=name, revision=commit))
    return Model(source, directory, open_checkpoint(directory, None))


def _rules(arguments: argparse.Namespace, model: Model, roots: Roots) -> StageRules:
    from fleet_worker.adapters.inspector import TorchInspector  # noqa: PLC0415 - imports torch

    inspector: Inspector = TorchInspector()
    budget = arguments.staging_memory_bytes
    return StageRules(
        roots,
        Reference.of(model.checkpoint, inspector),
        inspector,
        memory.default_budget() if budget is None else budget,
    )


def _choose(
    version: str, model: Model, rules: StageRules, environment: Mapping[str, str]
) -> tuple[Weights, StartFailure | None]:
    wanted = Wanted(
        *(
            environment.get(name) or None
            for name in (ENV_START_VERSION, ENV_START_PATH, ENV_START_RUN_ID, ENV_START_DIGEST)
        )
    )
    opened: list[Weights] = []

    def check(path: str) -> None:
        _check_label(wanted.version or "", ENV_START_VERSION)
        _check_named(wanted)
        reading = partial(_read_start, path, wanted, rules)
        opened.append(
            _in_time(rules.roots.root_of(path), reading, late=lambda late: late.checkpoint.close())
        )

    start = choose_start(
        version=version,
        wanted=wanted,
        own_digest=lambda: _read_model(model.checkpoint, rules.inspector),
        check=check,
    )
    level = logging.WARNING if start.refused is not None else logging.INFO
    line = fields("start", version=start.version, run_id=start.run_id)
    _LOG.log(level, "starting on %s: %s", start.version, start.why, extra=line)
    failure = None
    if start.refused is not None:
        failure = StartFailure(wanted.version, wanted.run_id, wanted.path, start.refused)
    if start.path is None:
        digest = _read_model(model.checkpoint, rules.inspector)
        return Weights(version, model.source, digest, model.checkpoint), failure
    model.checkpoint.close()
    return opened[0], failure


def _read_start(path: str, wanted: Wanted, rules: StageRules, go_on: Callable[[], None]) -> Weights:
    """Open, judge and digest what the environment names. Blocks; nothing stays open if refused."""
    checkpoint = open_checkpoint(path, rules.roots)
    try:
        rules.reference.check(checkpoint, rules.inspector)
        if wanted.digest is None:
            rules.reference.check_written(checkpoint)
        rules.inspector.read(checkpoint, budget=0, go_on=go_on)
        digest = checkpoint.digest(go_on)
        check_digest(wanted.digest, digest, f"the files in {path}")
    except BaseException:
        checkpoint.close()
        raise
    source = Source(path=path)
    return Weights(wanted.version or "", source, digest, checkpoint, run_id=wanted.run_id)


def _check_named(wanted: Wanted) -> None:
    if wanted.run_id is not None:
        _check_label(wanted.run_id, ENV_START_RUN_ID)
    try:
        TypeAdapter(WeightsDigest | None).validate_python(wanted.digest)
    except ValidationError as error:
        raise Refusal(Reason.BAD_REQUEST, f"{ENV_START_DIGEST} is not a digest") from error


def _read_model(checkpoint: Checkpoint, inspector: Inspector) -> str:
    """The digest of the model's own weights; their owner may have reasons for odd values."""

    def read(go_on: Callable[[], None]) -> str:
        try:
            if checkpoint.zero_blocks is None:
                inspector.read(checkpoint, budget=0, go_on=go_on)
        except Refusal as refusal:
            if refusal.reason is not Reason.CHECKPOINT_NOT_FINITE:
                raise
        return checkpoint.digest(go_on)

    return _in_time(f"of {checkpoint.path}", read)
