"""`python -m fleet_worker serve`: prepare, check, and become vLLM's API server."""

from __future__ import annotations

import argparse
import logging
import os
import runpy
import socket
import sys
import time
import uuid
import warnings
from dataclasses import dataclass
from pathlib import Path

from fleet_worker.adapters import hub, memory, platform
from fleet_worker.adapters.checkpoint import Checkpoint, open_checkpoint
from fleet_worker.adapters.engine_names import (
    SERVER_MODULE,
    UnsupportedEngineError,
    check_engine,
)
from fleet_worker.adapters.files import Roots
from fleet_worker.core.command import Public, engine_arguments, is_parallel
from fleet_worker.core.environment import prepared_environment
from fleet_worker.core.flags import refused_flags
from fleet_worker.core.refusals import Refusal
from fleet_worker.core.start import Start, choose_start
from fleet_worker.protocol import (
    ENV_ADMIN_TOKEN_FILE,
    ENV_START_PATH,
    ENV_START_VERSION,
    ENV_WORKER_NAME,
    HuggingFaceSource,
    Source,
)
from fleet_worker.runtime import logs
from fleet_worker.runtime.ending import ENDING, FAILED, end_now
from fleet_worker.runtime.handover import Handover, hand_over
from fleet_worker.runtime.ports import Inspector
from fleet_worker.runtime.reference import Reference
from fleet_worker.runtime.staging import StageRules, Weights

_LOG = logging.getLogger(__name__)
_USAGE = 2


@dataclass(frozen=True, slots=True)
class _Model:
    """The model's own weights."""

    source: Source
    directory: str
    checkpoint: Checkpoint


def serve(arguments: argparse.Namespace) -> int:
    """Run a worker until it ends; returns the exit code.

    0 after an orderly end (SIGTERM, drain), 2 for a wrong command line, 1 for everything else,
    also when the engine dies, which vLLM by itself reports as success.
    """
    started = time.monotonic()
    logs.set_up(arguments.log_format, arguments.log_level)
    if refused := refused_flags(arguments.engine_arguments):
        _LOG.error("these arguments may not be passed to vLLM: %s", "; ".join(refused))
        return _USAGE
    token_file = os.environ.get(ENV_ADMIN_TOKEN_FILE, "")
    if not token_file:
        _LOG.error("%s must name the file with the admin port's token", ENV_ADMIN_TOKEN_FILE)
        return _USAGE
    _prepare_environment(arguments.engine_arguments)
    try:
        admin_socket = _bind(arguments.admin_host, arguments.admin_port)
        engine_version = check_engine()
        handover, directory, tokenizer = _prepare(
            arguments, admin_socket, Path(token_file), engine_version, started
        )
    except (UnsupportedEngineError, Refusal, OSError) as error:
        _LOG.error("cannot start: %s", error)
        return FAILED
    hand_over(handover)
    sys.argv = [
        "vllm",
        *engine_arguments(
            public=Public(arguments.host, arguments.port, arguments.served_model_name),
            weights=directory,
            tokenizer=tokenizer,
            log_format=arguments.log_format,
            log_level=arguments.log_level,
            extra=arguments.engine_arguments,
        ),
    ]
    return _become_server()


def _prepare(
    arguments: argparse.Namespace,
    admin_socket: socket.socket,
    token_file: Path,
    engine_version: str,
    started: float,
) -> tuple[Handover, str, str]:
    """Check the model and the start version; returns also the weights' and tokenizer's folder."""
    # After the check of the engine: these import torch and transformers.
    from fleet_worker.adapters.inspector import TorchInspector  # noqa: PLC0415 - see above

    inspector: Inspector = TorchInspector()
    roots = Roots(arguments.weights_root)
    model = _open_model(arguments.model, arguments.revision)
    reference = Reference.of(model.checkpoint, inspector)
    budget = arguments.staging_memory_bytes
    rules = StageRules(
        roots, reference, inspector, memory.default_budget() if budget is None else budget
    )
    initial, start = _choose(arguments.version, model, rules)
    handover = Handover(
        worker=os.environ.get(ENV_WORKER_NAME) or socket.gethostname(),
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
    )
    return handover, start.path or model.directory, model.directory


def _open_model(name: str, revision: str | None) -> _Model:
    if Path(name).is_dir():
        directory = str(Path(name).resolve())
        source = Source(path=directory)
    else:
        directory = hub.snapshot(name, revision or "main")
        source = Source(hugging_face=HuggingFaceSource(repo=name, revision=revision or "main"))
    return _Model(source, directory, open_checkpoint(directory, None))


def _choose(version: str, model: _Model, rules: StageRules) -> tuple[Weights, Start]:
    opened: list[Checkpoint] = []

    def check(path: str) -> None:
        checkpoint = open_checkpoint(path, rules.roots)
        rules.reference.check(checkpoint, rules.inspector)
        rules.inspector.check_finite(checkpoint, lambda: None)
        opened.append(checkpoint)

    start = choose_start(
        version=version,
        start_version=os.environ.get(ENV_START_VERSION),
        start_path=os.environ.get(ENV_START_PATH),
        check=check,
    )
    level = logging.WARNING if start.refused is not None else logging.INFO
    _LOG.log(
        level,
        "starting on %s: %s",
        start.version,
        start.why,
        extra=logs.fields("start", version=start.version),
    )
    if start.path is None:
        return Weights(version, model.source, None, model.checkpoint), start
    model.checkpoint.close()
    return Weights(start.version, Source(path=start.path), None, opened[0]), start


def _prepare_environment(engine_arguments: list[str]) -> None:
    environment, notes = prepared_environment(
        os.environ,
        other_plugins=platform.other_plugins(),
        cpu=not platform.has_accelerator(),
        single_process=not is_parallel(engine_arguments),
    )
    for note in notes:
        _LOG.warning("%s", note)
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    os.environ.update(environment)


def _bind(host: str, port: int) -> socket.socket:
    from fleet_worker.adapters.http_server import bound_socket  # noqa: PLC0415 - imports uvicorn

    try:
        return bound_socket(host, port)
    except OSError as error:
        raise OSError(f"the admin port {host}:{port} cannot be bound: {error.strerror}") from error


def _become_server() -> int:
    """Run vLLM's server in this process, under its own name.

    Not its console script: the CPU wheel lacks the metadata which that asks for. Processes that
    vLLM spawns import its module, not ours.
    """
    warnings.filterwarnings("ignore", message=".*vllm.entrypoints.openai.api_server", append=False)
    try:
        runpy.run_module(SERVER_MODULE, run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:
        # SIGTERM before the engine was up; vLLM has no other way to stop then.
        _LOG.info("stopped while starting", extra=logs.fields("ending", code=0))
        end_now(0)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else FAILED
        end_now(ENDING.code if ENDING.code is not None else code or FAILED)
    except Exception:
        _LOG.exception("vLLM failed")
        end_now(ENDING.code if ENDING.code is not None else FAILED)
    if ENDING.code is None:
        _LOG.error("vLLM's server ended by itself", extra=logs.fields("ending", code=FAILED))
    end_now(FAILED if ENDING.code is None else ENDING.code)
    return FAILED
