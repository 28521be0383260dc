"""`python -m fleet_worker serve`: prepare, check, and become vLLM's API server."""

from __future__ import annotations

import argparse
import logging
import os
import runpy
import sys
import time
import warnings
from types import FrameType

from fleet_worker import logs
from fleet_worker.engine import platform
from fleet_worker.engine.required_names import UnsupportedEngineError
from fleet_worker.engine.vllm_names import SERVER_MODULE
from fleet_worker.errors import Refusal
from fleet_worker.http.sockets import EVERY, every_address
from fleet_worker.process.command import Public, engine_arguments, is_parallel, prepared_environment
from fleet_worker.process.ending import ENDING, FAILED, SIGTERM, end_now
from fleet_worker.process.handover import hand_over
from fleet_worker.process.settings import Settings
from fleet_worker.process.start_up import prepare
from fleet_worker.protocol import ENV_WORKER_NAME
from fleet_worker.protocol.flags import refused_flags

_LOG = logging.getLogger(__name__)
_USAGE = 2


def serve(arguments: argparse.Namespace) -> int:
    """Run a worker until it ends; returns the exit code.

    The code is 0 after SIGTERM or a drain, 2 for an invalid command line, and 1 otherwise. It is
    also 1 when the engine dies, for which vLLM returns 0.
    """
    started = time.monotonic()
    pod = os.environ.get(ENV_WORKER_NAME)
    logs.set_up(arguments.log_format, arguments.log_level, pod=pod)
    SIGTERM.keep(_stop_starting)
    if refused := refused_flags(arguments.engine_arguments):
        _LOG.error("these arguments may not be passed to vLLM: %s", "; ".join(refused))
        return _USAGE
    try:
        settings = Settings.of(arguments, os.environ)
    except Refusal as refusal:
        _LOG.error("%s", refusal.message)
        return _USAGE
    _prepare_environment(arguments.engine_arguments)
    try:
        prepared = prepare(settings, started=started)
        hand_over(prepared.handover)
        sys.argv = [
            "vllm",
            *engine_arguments(
                public=Public(
                    public_host(settings.host), settings.port, settings.served_model_name
                ),
                directory=prepared.directory,
                log_format=settings.log_format,
                log_level=settings.log_level,
                adapters=prepared.handover.adapters,
                transfer_backend=prepared.handover.transfer.backend,
                extra=settings.engine_arguments,
            ),
        ]
        end_now(_become_server())
    except (UnsupportedEngineError, Refusal, OSError) as error:
        _LOG.error("cannot start: %s", error)
    return FAILED


def public_host(host: str) -> str:
    """Return vLLM's name of the address of the public port, which binds it by itself."""
    return every_address() if host == EVERY else host


def _become_server() -> int:
    """Run vLLM's server module as `__main__` in this process; returns the exit code.

    Not by vLLM's console script, which needs metadata that the CPU wheel lacks. Processes that
    vLLM spawns import its module, not ours.
    """
    warnings.filterwarnings("ignore", message=".*vllm.entrypoints.openai.api_server", append=False)
    try:
        runpy.run_module(SERVER_MODULE, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if ENDING.code is None:
            return end.code if isinstance(end.code, int) and end.code else FAILED
    except Exception:  # noqa: BLE001 - every error ends the process with an exit code
        _LOG.exception("vLLM's server failed")
        return ENDING.code or FAILED
    if ENDING.code is None:
        _LOG.error("vLLM's server ended by itself", extra=logs.fields("ending", code=FAILED))
        return FAILED
    return ENDING.code


def _prepare_environment(extra: list[str]) -> None:
    environment, notes = prepared_environment(
        os.environ,
        other_plugins=platform.other_plugins(),
        cpu=not platform.has_accelerator(),
        single_process=not is_parallel(extra),
    )
    for note in notes:
        _LOG.warning("%s", note)
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    os.environ.update(environment)


def _stop_starting(_number: int, _frame: FrameType | None) -> None:
    # Nothing needs an orderly end yet. Not by an exception: the code that is being imported may
    # catch it.
    # vLLM suppresses the lines of all loggers while it reads the defaults of its options.
    logging.disable(logging.NOTSET)
    _LOG.info("stopped while starting", extra=logs.fields("ending", code=0))
    end_now(0)
