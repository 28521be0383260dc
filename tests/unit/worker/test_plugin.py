"""The plugin: how a worker is put together inside of vLLM's server, and what keeps it from that.

vLLM, FastAPI and uvicorn are fakes here; everything of ours is real, over a fake engine's client.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.support.fake_modules import install
from tests.support.fake_vllm_process import TOKEN, FakeUvicorn, Put
from tests.support.tiny import BASE_DIGEST, tiny_rules
from tests.support.waiting import soon

from fleet_worker.checkpoint.stagers import Stagers
from fleet_worker.engine.facts import Facts
from fleet_worker.engine.required_names import UnsupportedEngineError
from fleet_worker.errors import Refusal
from fleet_worker.gateway.gate import STATE_ATTRIBUTE
from fleet_worker.lifecycle.state_document import state_of
from fleet_worker.process import handover as handing
from fleet_worker.process.command import GATE, AdapterRoom
from fleet_worker.process.ending import Ending, KeptSigterm
from fleet_worker.process.handover import Handover, StartFailure
from fleet_worker.protocol import Management, Phase, Reason
from fleet_worker.trainer.driver import DriverRules
from fleet_worker.trainer.transfers import TransferRoom


class IdleStagers(Stagers):
    """Starts no process: no test here reads a version."""

    def __init__(self) -> None:
        super().__init__()
        self.was_started = False

    def keep_ready(self) -> None:
        self.was_started = True


@pytest.fixture
async def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Put]:
    uvicorn = FakeUvicorn()
    install(
        monkeypatch,
        {
            "uvicorn": uvicorn.module(),
            "vllm.exceptions": {"RetryableRequestError": ConnectionError},
            "vllm.envs": {"enable_envs_cache": lambda: made.client.calls.append("cache")},
        },
    )
    monkeypatch.setattr("gc.set_threshold", lambda n: made.client.calls.append(f"cycles {n}"))
    for name in ("fleet_worker.http.server", "fleet_worker.plugin"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module("fleet_worker.plugin")
    rules, initial = tiny_rules(tmp_path)
    token = tmp_path / "token"
    token.write_text(TOKEN)
    handover = Handover(
        worker="policy-0",
        pod_uid="uid-0",
        instance="i",
        started=time.monotonic(),
        model="policy",
        initial=initial,
        rules=rules,
        stagers=IdleStagers(),
        admin_socket=socket.socket(),
        token_file=token,
        silence_seconds=60,
        load_seconds=60,
        engine_version="0.32.0",
        adapters=AdapterRoom(),
        transfer=TransferRoom(),
        driver=DriverRules(Management.OPERATOR, 60),
    )
    monkeypatch.setattr(handing, "_handed", [handover])
    made = Put(module.EndpointPlugin(), module, handover, uvicorn)
    facts = Facts(lambda: ("policy",), 64, 512, SimpleNamespace(), frozenset(), frozenset())
    monkeypatch.setattr(module, "facts_of", lambda *_: facts)
    monkeypatch.setattr(module, "REGISTRY", CollectorRegistry())
    sigterm = KeptSigterm()
    monkeypatch.setattr(module, "SIGTERM", sigterm)
    ending = Ending()
    monkeypatch.setattr(module, "ENDING", ending)
    monkeypatch.setattr(ending, "begin", lambda code, why, **_: made.endings.append((code, why)))
    yield made
    for task in list(made.plugin._tasks):
        task.cancel()
    await asyncio.gather(*made.plugin._tasks, return_exceptions=True)
    sigterm.release()
    handover.admin_socket.close()
    initial.checkpoint.close()
    for name in ("fleet_worker.http.server", "fleet_worker.plugin"):
        sys.modules.pop(name, None)
        package, _, attribute = name.rpartition(".")
        sys.modules[package].__dict__.pop(attribute, None)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


# --- routes -----------------------------------------------------------------------------------------


def test_routes_that_the_public_port_does_not_serve_are_removed(put: Put) -> None:
    paths = ("/v1/completions", "/pause", "/collective_rpc", "/health", "/v1/load_lora_adapter")
    routes = [SimpleNamespace(path=path) for path in paths]
    app = SimpleNamespace(router=SimpleNamespace(routes=[*routes, SimpleNamespace()]))
    put.plugin.attach_router(app)

    assert [route.path for route in app.router.routes] == ["/v1/completions", "/health"]


@pytest.mark.parametrize(("level", "shown"), [("INFO", 0), ("DEBUG", 2)])
def test_the_log_has_vllms_table_of_routes_only_at_debug(
    put: Put,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    level: str,
    shown: int,
) -> None:
    launcher = logging.getLogger("vllm.entrypoints.launchers.launcher")
    monkeypatch.setattr(launcher, "filters", [])  # not those of other tests' plugins
    with caplog.at_level(level, launcher.name):
        put.plugin.attach_router(SimpleNamespace(router=SimpleNamespace(routes=[])))
        launcher.info("Available routes are:")
        launcher.info("Route: %s, Methods: %s", "/pause", "POST")
        launcher.info("Starting vLLM server on %s", "http://0.0.0.0:8000")

    assert len([each for each in caplog.records if each.name == launcher.name]) == shown + 1


def test_a_vllm_started_without_serve_gets_no_plugin(
    put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handing, "_handed", [])
    with pytest.raises(RuntimeError, match="VLLM_PLUGINS"):
        put.plugin.attach_router(SimpleNamespace(router=SimpleNamespace(routes=[])))


def test_the_entry_point_makes_a_plugin_that_vllm_accepts(put: Put) -> None:
    plugin = put.module.endpoint_plugin()

    assert (plugin.name, plugin.required_tasks) == ("rlfleet", ("generate",))


# --- coming up --------------------------------------------------------------------------------------


async def test_a_started_worker_is_idle_labelled_and_closed(put: Put) -> None:
    keeper = await put.together()

    label = f"label base@{BASE_DIGEST}"
    calls = ["rlfleet_missing_names", "cache", "cycles 10000", "pause abort True", label]
    assert put.client.calls == calls
    assert keeper.agent.phase is Phase.JOINING
    assert keeper.agent.is_open is False
    assert put.client.generate != put.client.first_generate, "every request is looked at"


async def test_a_started_worker_has_a_stager_ready(put: Put) -> None:
    assert isinstance(put.handover.stagers, IdleStagers)
    assert not put.handover.stagers.was_started, "a process of vLLM would inherit its connection"
    await put.together()

    assert put.handover.stagers.was_started


@pytest.mark.parametrize(
    ("management", "names_no_runs"), [(Management.EXTERNAL, True), (Management.OPERATOR, False)]
)
async def test_directories_count_as_runs_in_an_external_fleet(
    put: Put, management: Management, names_no_runs: bool
) -> None:
    handing.hand_over(replace(put.handover, driver=DriverRules(management, 60)))
    keeper = await put.together()

    assert keeper.names_no_runs is names_no_runs


async def test_a_worker_that_started_on_other_weights_reports_the_reason_in_its_state(
    put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = Refusal(Reason.DIGEST_MISMATCH, "the files were changed")
    failure = StartFailure("43", "run-7", "/weights/current", refusal)
    handing.hand_over(replace(put.handover, start_failure=failure))
    keeper = await put.together()

    state = state_of(keeper.agent, worker="w", instance="i", started=0)
    assert (state.version, state.run_id, state.admitted) == ("base", None, False)
    assert state.stage_failure is not None
    assert (state.stage_failure.version, state.stage_failure.run_id) == ("43", "run-7")
    assert state.stage_failure.reason is Reason.DIGEST_MISMATCH


async def test_the_admin_port_answers_on_the_bound_socket_with_the_whole_state(put: Put) -> None:
    await put.together()
    status, state = await put.admin("GET", "/v1/worker/state")

    assert put.uvicorn.sockets == [put.handover.admin_socket]
    assert status == 200
    assert (state["worker"], state["instance"]) == ("policy-0", "i")
    assert (state["phase"], state["version"]) == ("joining", "base")
    assert state["engine"] == {
        "name": "vllm",
        "version": "0.32.0",
        "model": "policy",
        "world_size": 2,
    }
    assert (await put.admin("GET", "/v1/worker/state", token="another"))[0] == 401


async def test_metrics_have_their_own_port_without_a_key(put: Put) -> None:
    with socket.socket() as bound:
        handing.hand_over(replace(put.handover, metrics_socket=bound))
        keeper = await put.together()
        status, text = await put.scrape()

        assert put.uvicorn.sockets == [put.handover.admin_socket, bound]
    assert status == 200
    assert 'rlfleet_worker_phase{phase="joining"} 1.0' in text
    with pytest.raises(Exception, match="API key"):
        keeper.key.check("/metrics", [])


async def test_the_keys_of_the_public_port_are_vllms(put: Put) -> None:
    keeper = await put.together()
    keeper.key.check("/v1/completions", [(b"authorization", b"Bearer public-key")])
    with pytest.raises(Exception, match="API key"):
        keeper.key.check("/v1/completions", [(b"authorization", b"Bearer other")])


WRONG_ARGUMENTS = {
    "served_model_name": ["policy", "another"],
    "enable_scale_out": False,
    "worker_extension_cls": "theirs.Extension",
    "middleware": ["theirs.Middleware", GATE],
    "enable_lora": True,
    "load_format": "auto",
    "uds": "/tmp/socket",  # noqa: S108 - a value, not a file
}


@pytest.mark.parametrize("name", WRONG_ARGUMENTS)
async def test_a_reserved_flag_in_vllms_settings_fails_the_start(put: Put, name: str) -> None:
    setattr(put.arguments, name, WRONG_ARGUMENTS[name])
    with pytest.raises(RuntimeError, match=name):
        await put.together()

    assert not hasattr(put.state, STATE_ATTRIBUTE), "the gate stays closed"


async def test_a_prefix_cache_that_vllm_enabled_by_other_flags_fails_the_start(put: Put) -> None:
    put.client.vllm_config.kv_transfer_config = SimpleNamespace(
        kv_connector="LMCacheMPConnector", kv_connector_module_path=None
    )
    with pytest.raises(RuntimeError, match="LMCacheMPConnector"):
        await put.together()

    assert put.client.calls == []
    assert not hasattr(put.state, STATE_ATTRIBUTE)


async def test_an_engine_without_a_required_name_fails_the_start(put: Put) -> None:
    put.client.missing = ["model_runner.reload_weights(weights_iterator)"]
    with pytest.raises(RuntimeError, match="reload_weights"):
        await put.together()


async def test_an_engine_whose_requests_cannot_be_aborted_fails_the_start(
    put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "fleet_worker.engine.required_names.supported_range", lambda: "<0.34,>=0.32"
    )
    put.client.output_processor = SimpleNamespace()
    with pytest.raises(UnsupportedEngineError, match="request_states"):
        await put.together()

    assert put.client.calls == []


# --- going down -------------------------------------------------------------------------------------


async def test_a_drain_ends_the_process_after_its_answer(put: Put) -> None:
    keeper = await put.together()
    status, state = await put.admin("POST", "/v1/worker/drain")

    assert (status, state["phase"]) == (200, "draining")
    assert keeper.agent.is_open is False
    await soon(lambda: put.endings == [(0, "drained")])


ORDERLY_SECONDS = 5.0
"""Within which a worker ends after its drain timeout, as docs/reference/worker.md says."""


@pytest.mark.parametrize(
    ("drain_timeout", "end_in_seconds"),
    [
        pytest.param("300", 1.0, id="drained by the cluster"),
        pytest.param("0", 0.1, id="no drain timeout"),
        pytest.param(None, 0.1, id="not in a pod"),
    ],
)
async def test_a_drained_worker_refuses_requests_until_the_endpoints_have_changed_and_then_ends(
    put: Put, monkeypatch: pytest.MonkeyPatch, drain_timeout: str | None, end_in_seconds: float
) -> None:
    if drain_timeout is not None:
        monkeypatch.setenv("RLFLEET_DRAIN_SECONDS", drain_timeout)
    ends = _noted_ends(monkeypatch)
    await put.together()
    assert (await put.admin("POST", "/v1/worker/drain"))[0] == 200

    assert ends == [end_in_seconds]
    start = await put.ask_for_tokens()
    assert start["status"] == 429
    assert (b"connection", b"close") in start["headers"]


async def test_a_long_drain_leaves_less_time_for_refusals(
    put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLFLEET_DRAIN_SECONDS", "300")
    longest = put.module._DRAIN_SECONDS + put.module._REPLY_SECONDS + put.module._END_SECONDS
    assert put.module._FOLLOW_SECONDS <= put.module._DRAIN_SECONDS
    assert longest <= ORDERLY_SECONDS
    monkeypatch.setattr(put.module, "_DRAIN_SECONDS", 0.05)
    ends = _noted_ends(monkeypatch)
    await put.together()
    monkeypatch.setattr(put.client, "pause_generation", _never)
    await put.admin("POST", "/v1/worker/drain")

    assert ends == [put.module._REPLY_SECONDS]


async def _never(**_: Any) -> None:
    await asyncio.Event().wait()


def _noted_ends(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The patience in seconds of each orderly end that the process was sent."""
    loop = asyncio.get_running_loop()
    call_later, ends = loop.call_later, []

    def noting(delay: float, callback: Any, *arguments: Any, **options: Any) -> Any:
        if arguments == ("drained",):
            ends.append(delay)
        return call_later(delay, callback, *arguments, **options)

    monkeypatch.setattr(loop, "call_later", noting)
    return ends


async def test_after_the_start_vllm_may_set_its_signal_handlers(put: Put) -> None:
    put.module.SIGTERM.keep(signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "kept while the engine starts"
    await put.together()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_after_vllms_own_handlers_are_set(
    put: Put, number: signal.Signals
) -> None:
    keeper = await put.together()
    signal.signal(number, lambda *_: None)  # vLLM sets its own before its server has started
    put.server.started = True
    await soon(lambda: not any(t.get_name() == "public port" for t in put.plugin._tasks))
    assert put.server.config.http_protocol_class is not asyncio.Protocol, (
        "its connections have limits"
    )
    os.kill(os.getpid(), number)
    await soon(lambda: keeper.agent.phase is Phase.DRAINING)
    await soon(lambda: put.endings == [(0, "drained")])


async def test_a_failed_admin_port_ends_the_process(
    put: Put, caplog: pytest.LogCaptureFixture
) -> None:
    put.uvicorn.error = OSError("no descriptors left")
    await put.together()
    put.uvicorn.end.set()
    await soon(lambda: put.endings)

    assert put.endings == [(1, "the worker's admin port failed")]
    assert "no descriptors left" in caplog.text


async def test_an_engine_that_dies_ends_the_process_with_a_failure(put: Put) -> None:
    await put.together()
    put.client.errored = True
    await soon(lambda: put.endings)

    code, why = put.endings[0]
    assert code == 1
    assert "engine" in why
