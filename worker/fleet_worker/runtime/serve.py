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

from fleet_worker.adapters import platform
from fleet_worker.adapters.engine_names import SERVER_MODULE, UnsupportedEngineError
from fleet_worker.core.command import Public, engine_arguments, is_parallel
from fleet_worker.core.environment import prepared_environment
from fleet_worker.core.flags import refused_flags
from fleet_worker.core.refusals import Refusal
from fleet_worker.protocol import ENV_ADMIN_TOKEN_FILE
from fleet_worker.runtime import logs
from fleet_worker.runtime.ending import ENDING, FAILED, end_now
from fleet_worker.runtime.handover import hand_over
from fleet_worker.runtime.signals import SIGTERM
from fleet_worker.runtime.start_up import prepare

_LOG = logging.getLogger(__name__)
_USAGE = 2


def serve(arguments: argparse.Namespace) -> int:
    """Run a worker until it ends; returns the exit code.

    0 after an orderly end (SIGTERM, drain), 2 for a wrong command line, 1 for everything else,
    also when the engine dies, which vLLM by itself reports as success.
    """
    started = time.monotonic()
    logs.set_up(arguments.log_format, arguments.log_level)
    SIGTERM.keep(_stop_starting)
    if refused := refused_flags(arguments.engine_arguments):
        _LOG.error("these arguments may not be passed to vLLM: %s", "; ".join(refused))
        return _USAGE
    if not os.environ.get(ENV_ADMIN_TOKEN_FILE):
        _LOG.error("%s must name the file with the admin port's token", ENV_ADMIN_TOKEN_FILE)
        return _USAGE
    _prepare_environment(arguments.engine_arguments)
    try:
        prepared = prepare(arguments, started=started, environment=os.environ)
        hand_over(prepared.handover)
        sys.argv = [
            "vllm",
            *engine_arguments(
                public=Public(arguments.host, arguments.port, arguments.served_model_name),
                weights=prepared.weights,
                tokenizer=prepared.tokenizer,
                log_format=arguments.log_format,
                log_level=arguments.log_level,
                adapters=prepared.handover.adapters,
                transfer_backend=prepared.handover.transfer.backend,
                extra=arguments.engine_arguments,
            ),
        ]
        end_now(_become_server())
    except (UnsupportedEngineError, Refusal, OSError) as error:
        _LOG.error("cannot start: %s", error)
    return FAILED


def _become_server() -> int:
    """Run vLLM's server in this process, under its own name; returns the exit code.

    Not its console script: the CPU wheel lacks the metadata which that asks for. Processes that
    vLLM spawns import its module, not ours.
    """
    warnings.filterwarnings("ignore", message=".*vllm.entrypoints.openai.api_server", append=False)
    try:
        runpy.run_module(SERVER_MODULE, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if ENDING.code is None:
            return end.code if isinstance(end.code, int) and end.code else FAILED
    except Exception:  # noqa: BLE001 - whatever it is, it ends the process in the one way
        _LOG.exception("vLLM failed")
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
    # Nothing runs yet that would have to be ended in order. Not by an exception: it would surface
    # in whatever is being imported or waited for, and may be swallowed there.
    _LOG.info("stopped while starting", extra=logs.fields("ending", code=0))
    end_now(0)
