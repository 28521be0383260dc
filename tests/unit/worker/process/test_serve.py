"""`serve`: its refusals, vLLM's arguments, and the exit code for each end of vLLM."""

from __future__ import annotations

import logging
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.environments import REPOSITORY
from tests.support.waiting import eventually
from tests.support.worker_commands import served

from fleet_worker.__main__ import main
from fleet_worker.engine import platform
from fleet_worker.engine.required_names import UnsupportedEngineError
from fleet_worker.engine.vllm_names import SERVER_MODULE
from fleet_worker.errors import Refusal
from fleet_worker.process import handover, serve
from fleet_worker.process.command import AdapterRoom
from fleet_worker.process.ending import Ending, KeptSigterm
from fleet_worker.protocol import Reason
from fleet_worker.trainer.transfers import TransferRoom


class Ended(BaseException):
    """Where a real process would be gone."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@pytest.fixture(autouse=True)
def ending(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ending]:
    """A process of its own: signals, environment, arguments and end are not the tests'."""
    made, sigterm = Ending(), KeptSigterm()
    monkeypatch.setattr(serve, "ENDING", made)
    monkeypatch.setattr(serve, "SIGTERM", sigterm)
    monkeypatch.setattr(sys, "argv", ["python"])
    monkeypatch.setattr(os, "environ", dict(os.environ) | {"RLFLEET_ADMIN_TOKEN_FILE": "/token"})
    monkeypatch.setattr(handover, "_handed", [])
    before = signal.getsignal(signal.SIGTERM)
    logger = logging.getLogger("fleet_worker")
    kept = (logger.handlers, logger.level, logger.propagate)

    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(serve, "end_now", end)
    monkeypatch.setattr(serve.logs, "set_up", lambda *_, **__: None)
    yield made
    sigterm.release()
    signal.signal(signal.SIGTERM, before)
    logger.handlers, logger.level, logger.propagate = kept
    logging.disable(logging.NOTSET)


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The result of `prepare`."""
    handed = SimpleNamespace(
        adapters=AdapterRoom(2, 8), transfer=TransferRoom("nccl", has_accelerator=True)
    )
    made = SimpleNamespace(handover=handed, directory="/start")
    monkeypatch.setattr(serve, "prepare", lambda *_, **__: made)
    return made


def becomes(monkeypatch: pytest.MonkeyPatch, server: Callable[[], None]) -> None:
    """Let something else be vLLM's server."""

    def run_module(name: str, **how: Any) -> None:
        assert name == SERVER_MODULE
        assert how == {"run_name": "__main__", "alter_sys": True}
        server()

    monkeypatch.setattr(runpy, "run_module", run_module)


# --- what is refused at once ------------------------------------------------------------------------


def test_each_reserved_flag_is_named_when_the_start_fails(caplog: pytest.LogCaptureFixture) -> None:
    assert serve.serve(served("--port=1", "--max-model-len=9", "--enable-lora")) == 2

    assert "--port" in caplog.text
    assert "--enable-lora" in caplog.text
    assert "--max-model-len" not in caplog.text


@pytest.mark.parametrize("named", [None, ""])
def test_without_a_token_file_the_start_fails(
    named: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    del os.environ["RLFLEET_ADMIN_TOKEN_FILE"]
    if named is not None:
        os.environ["RLFLEET_ADMIN_TOKEN_FILE"] = named

    assert serve.serve(served()) == 2
    assert "RLFLEET_ADMIN_TOKEN_FILE" in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        Refusal(Reason.SOURCE_NOT_FOUND, "the source does not exist"),
        UnsupportedEngineError("vLLM 0.99 is not supported"),
        OSError("the admin port is taken"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_failed_start_logs_its_reason_on_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def prepare(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(serve, "prepare", prepare)

    assert serve.serve(served()) == 1
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        f"cannot start: {error}"
    ]
    assert not any(record.exc_info for record in caplog.records)


def test_a_stop_while_vllm_suppresses_all_lines_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def prepare(*_: Any, **__: Any) -> None:
        logging.disable(logging.INFO)
        signal.raise_signal(signal.SIGTERM)

    caplog.set_level(logging.INFO)
    monkeypatch.setattr(serve, "prepare", prepare)

    with pytest.raises(Ended) as ended:
        serve.serve(served())

    assert ended.value.code == 0
    assert "stopped while starting" in caplog.text


def test_without_vllm_serve_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "fleet_worker.process.serve", None)
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--model=/m", "--served-model-name=policy", "--version=1"])

    assert ended.value.code == 2
    assert "install rlfleet-server[worker]" in capsys.readouterr().err


# --- what vLLM gets ---------------------------------------------------------------------------------


def test_vllm_runs_on_the_directory_of_the_start_with_the_workers_settings(
    prepared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    becomes(monkeypatch, lambda: seen.append(list(sys.argv)))
    with pytest.raises(Ended):
        serve.serve(served("--max-model-len=9"))

    ((program, *flags),) = seen
    assert program == "vllm"
    assert "--model=/start" in flags
    assert "--max-loras=2" in flags
    assert "--weight-transfer-config.backend=nccl" in flags
    assert flags[-1] == "--max-model-len=9", "the fleet's own come last"
    assert handover.handed_over() is prepared.handover


def test_the_environment_is_set_before_vllm_is_imported(
    prepared: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    os.environ |= {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_PORT": "tcp://10.0.0.1:8000",
        "PROMETHEUS_MULTIPROC_DIR": "/tmp",  # noqa: S108 - a value, not a file
        "HF_HUB_OFFLINE": "0",
    }
    monkeypatch.setattr(platform, "other_plugins", lambda: ["theirs"])
    monkeypatch.setattr(platform, "has_accelerator", lambda: True)
    becomes(monkeypatch, lambda: None)
    with pytest.raises(Ended):
        serve.serve(served())

    assert os.environ["VLLM_SERVER_DEV_MODE"] == "0"
    assert os.environ["VLLM_PLUGINS"] == "rlfleet,theirs"
    assert os.environ["HF_HUB_OFFLINE"] == "0", "the fleet's own setting stays"
    assert "VLLM_PORT" not in os.environ
    assert "PROMETHEUS_MULTIPROC_DIR" not in os.environ
    for name in ("VLLM_SERVER_DEV_MODE", "VLLM_PORT", "PROMETHEUS_MULTIPROC_DIR"):
        assert name in caplog.text, "the log names the overruled setting"


# --- how it ends ------------------------------------------------------------------------------------


def _returns() -> None:
    return


def _exits(code: Any) -> Callable[[], None]:
    def end() -> None:
        raise SystemExit(code)

    return end


def _fails() -> None:
    raise RuntimeError("no memory for the cache")


@pytest.mark.parametrize(
    ("server", "asked", "code"),
    [
        pytest.param(_returns, 0, 0, id="drained"),
        pytest.param(_returns, 1, 1, id="the engine died"),
        pytest.param(_returns, None, 1, id="vLLM ended by itself, as it does when the engine died"),
        pytest.param(_exits(0), None, 1, id="so it does with success"),
        pytest.param(_exits(None), None, 1, id="or without a code"),
        pytest.param(_exits(3), None, 3, id="its own failure"),
        pytest.param(_exits("usage"), None, 1, id="its own words"),
        pytest.param(_exits(0), 0, 0, id="drained, and vLLM exits"),
        pytest.param(_exits(3), 0, 0, id="drained, and vLLM stumbles"),
        pytest.param(_exits(0), 1, 1, id="failed, and vLLM sees no harm in it"),
        pytest.param(_fails, None, 1, id="an error"),
        pytest.param(_fails, 0, 1, id="an error while it drains"),
    ],
)
def test_each_end_of_vllm_has_its_exit_code(
    prepared: Any,
    ending: Ending,
    monkeypatch: pytest.MonkeyPatch,
    server: Callable[[], None],
    asked: int | None,
    code: int,
) -> None:
    ending.code = asked
    becomes(monkeypatch, server)
    with pytest.raises(Ended) as ended:
        serve.serve(served())

    assert ended.value.code == code


def test_an_error_of_vllm_is_logged_with_its_stack(
    prepared: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    becomes(monkeypatch, _fails)
    with pytest.raises(Ended):
        serve.serve(served())

    assert "no memory for the cache" in caplog.text
    assert "RuntimeError" in caplog.text


def test_a_signal_during_the_start_exits_cleanly_whatever_handler_vllm_set(
    prepared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def starting() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as vLLM does
        os.kill(os.getpid(), signal.SIGTERM)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            pass  # the handler's exception comes between two instructions

    becomes(monkeypatch, starting)
    with pytest.raises(Ended) as ended:
        serve.serve(served())

    assert ended.value.code == 0


ENDS_BY_FORCE = """
import multiprocessing, sys, threading, time
from fleet_worker.process.ending import Ending
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
child.start()
threading.Thread(target=time.sleep, args=(60,)).start()
print(child.pid, flush=True)
print("the last words", end="")
ending = Ending()
ending.begin(7, "a test", patience_seconds=0.05)
ending.begin(0, "too late", patience_seconds=0.01)
time.sleep(60)
"""


def test_a_forced_end_kills_threads_and_children_and_keeps_exit_code_and_message() -> None:
    begun = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", ENDS_BY_FORCE],
        env={"PYTHONPATH": f"{REPOSITORY}/client:{REPOSITORY}/worker"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    child, words = ended.stdout.splitlines()

    assert ended.returncode == 7
    assert words == "the last words"
    assert time.monotonic() - begun < 25, "nothing was waited for"
    eventually(lambda: _has_ended(Path("/proc", child, "stat")))


def _has_ended(stat: Path) -> bool:
    """Gone, or dead and not yet reaped by its new parent."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
