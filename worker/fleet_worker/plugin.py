"""The endpoint plugin that runs the worker inside vLLM's API server.

vLLM creates the plugin (entry point `vllm.endpoint_plugins`), then passes it the application and,
once the engine is up, the engine client. Agent, admin port and engine watch run in vLLM's event
loop.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import os
import signal
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from typing import Any

from prometheus_client import REGISTRY

from fleet_worker.admin.app import AdminApp
from fleet_worker.admin.guard import BearerFile, Guard
from fleet_worker.checkpoint.peer_tls import Certificate
from fleet_worker.checkpoint.peers import Peers
from fleet_worker.drain_names import drain_seconds_of
from fleet_worker.engine.limits import Limits
from fleet_worker.engine.required_names import PLUGIN, check_objects
from fleet_worker.engine.start_names import LOAD_FORMAT
from fleet_worker.engine.vllm import VllmEngine
from fleet_worker.engine.vllm_facts import facts_of, unsafe_settings
from fleet_worker.engine.vllm_names import ENVIRONMENT
from fleet_worker.engine.vllm_requests import sent_again, with_adapters
from fleet_worker.gateway.gate import STATE_ATTRIBUTE, GateKeeper, PublicKey, keys_of
from fleet_worker.gateway.routes import Access, access_of
from fleet_worker.gateway.table import Translations
from fleet_worker.http.bounded_port import bound
from fleet_worker.http.server import serve
from fleet_worker.http.unauthenticated import MetricsApp, Probes
from fleet_worker.lifecycle.agent import Agent
from fleet_worker.lifecycle.metrics import PORTS, WorkerMetrics
from fleet_worker.lifecycle.state_document import StateGauges, state_of
from fleet_worker.lifecycle.watchdog import Watch
from fleet_worker.lora.slots import Adapters
from fleet_worker.process.apis import all_apis
from fleet_worker.process.ending import ENDING, FAILED, SIGTERM
from fleet_worker.process.handover import Handover, handed_over
from fleet_worker.protocol import EngineInfo, Management, WorkerState
from fleet_worker.provenance.tracking import tracked
from fleet_worker.trainer.driver import Driver
from fleet_worker.trainer.transfers import Transfers

_LOG = logging.getLogger(__name__)
NEW_OBJECTS = 10_000
"""Number of new objects after which Python looks for cycles among them. With its default of 700, these looks were
a sixth of the processor time of a streamed token with log-probabilities. Cycles take a few megabytes until then.
"""
# The drain, the time that follows it and the end of the process must fit into 5 s.
_DRAIN_SECONDS = 3.0
_END_SECONDS = 1.5
_REPLY_SECONDS = 0.1
"""Time for the reply to the preStop hook to go out."""
_FOLLOW_SECONDS = 1.0
"""How long a drained worker keeps refusing requests before its process ends. Meanwhile kube-proxy
removes the pod, and clients with open connections learn to go elsewhere.
"""
_FAILED_SECONDS = 1.5
_POLL_SECONDS = 0.02


class EndpointPlugin:
    """See vLLM's `EndpointPlugin` protocol."""

    name = PLUGIN
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._app: Any = None

    def attach_router(self, app: Any) -> None:
        """Remove the routes that the public port does not serve.

        The gate already answers 404 for them. Removing the routes keeps them out of
        `/openapi.json`, and unreachable if the gate ever fails.
        """
        handed_over()  # fails if vLLM was not started by `fleet_worker serve`
        launcher = logging.getLogger(_LAUNCHER)
        if not launcher.isEnabledFor(logging.DEBUG):
            launcher.addFilter(_without_route_table)
        self._app = app
        app.router.routes[:] = [
            route
            for route in app.router.routes
            if access_of(getattr(route, "path", "")) is not Access.ABSENT
        ]

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Start the agent, the admin port and the engine watch. vLLM calls it with the engine up."""
        handover = handed_over()
        SIGTERM.release()
        _check_arguments(args, handover)
        _check_configuration(engine_client)
        metrics = WorkerMetrics(REGISTRY)
        models = state.openai_serving_models
        check_objects(engine_client, models)
        engine = VllmEngine(engine_client, _info(engine_client, handover), models)
        room = handover.adapters
        tokens = BearerFile(handover.token_file)
        agent = Agent(
            engine,
            handover.initial,
            handover.rules,
            clock=time.monotonic,
            metrics=metrics,
            end_process=_fail,
            adapters=Adapters(engine, slots=room.slots, max_rank=room.max_rank),
            limits=Limits(load_seconds=handover.load_seconds),
            peers=_peers(handover, tokens, args),
            loads_in_place=handover.loads_in_place,
        )
        if (failure := handover.start_failure) is not None:
            # Reported like a refused stage: the operator sees why this worker has other weights.
            fault = agent.fault(
                failure.version, failure.refusal, run_id=failure.run_id, source=failure.path
            )
            agent.refused_stages = (fault,)
        await _check_engine_names(engine_client)
        _spend_less_on_tokens()
        generate = with_adapters(sent_again(engine_client.generate, agent), agent.adapters.using)
        engine_client.generate = tracked(
            generate, agent.names, is_drained=lambda: agent.quiescence.drain_timed_out
        )
        watch = Watch(
            agent,
            silence_seconds=handover.silence_seconds,
            load_seconds=handover.load_seconds,
            end_process=_fail,
        )
        probes = Probes(agent, watch.problem, listens=partial(_listens, state))
        metrics.registry.register(StateGauges(agent))
        await agent.ready()

        transfers = Transfers(agent, handover.transfer)
        agent.on_released = transfers.cancel
        driver = Driver(agent, transfers, handover.driver)

        async def drain() -> None:
            timeout = drain_seconds_of(os.environ)
            left = await agent.drain(patience_seconds=_DRAIN_SECONDS, drain_timeout_seconds=timeout)
            follow = min(_FOLLOW_SECONDS, left) if timeout > 0 else 0.0
            loop = asyncio.get_running_loop()
            loop.call_later(max(_REPLY_SECONDS, follow), _exit_cleanly, "drained")

        def document() -> WorkerState:
            return state_of(
                agent,
                worker=handover.worker,
                instance=handover.instance,
                pod_uid=handover.pod_uid,
                started=handover.started,
                management=handover.driver.management,
                transfer=transfers.state,
            )

        admin = AdminApp(
            all_apis(agent, driver, state=document, drain=drain, metrics=metrics.text),
            guard=Guard(
                tokens,
                pod_uid=handover.pod_uid,
                instance=handover.instance,
            ),
            probes=probes,
            on_refused=metrics.refused,
        )
        facts = facts_of(engine_client, self._app, lambda: (handover.model, *agent.adapters.names))
        key = PublicKey(keys_of(args, os.environ))
        names_no_runs = handover.driver.management is Management.EXTERNAL
        keeper = GateKeeper(agent, probes, metrics, Translations(facts), key, names_no_runs)
        setattr(state, STATE_ATTRIBUTE, keeper)
        # vLLM has started its processes by now, so none inherits the connection to a stager.
        await asyncio.to_thread(handover.stagers.keep_ready)
        if agent.staging.peers is not None:
            await asyncio.to_thread(agent.staging.peers.keep_ready)
        refused = {port: metrics.refused_connections.labels(port=port).inc for port in PORTS}
        self._start(serve(admin, handover.admin_socket, refused["admin"]), "admin port")
        if handover.metrics_socket is not None:
            scraped = MetricsApp(metrics.text, clock=time.monotonic)
            port = serve(scraped, handover.metrics_socket, refused["metrics"])
            self._start(port, "metrics port")
        self._start(watch.run(), "engine watch")
        self._start(self._take_server(state, drain, refused["public"]), "public port")

    async def _take_server(self, state: Any, drain: Any, on_refused: Callable[[], None]) -> None:
        """Limit the connections of vLLM's server, and replace its signal handlers with ours. vLLM's hang while requests
        are held.
        """
        # vLLM creates its server, and sets its handlers, after this plugin has returned.
        while not _listens(state):  # noqa: ASYNC110 - vLLM has no event for it
            await asyncio.sleep(_POLL_SECONDS)
        server = state.server
        bound(server.config, on_refused)

        def stop_server() -> None:
            server.should_exit = True

        ENDING.on_begin(stop_server)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: self._start(drain(), "drain"))

    def _start(self, work: Any, name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("the worker's %s failed", task.get_name(), exc_info=error)
            _fail(f"the worker's {task.get_name()} failed")


def endpoint_plugin() -> EndpointPlugin:
    """Create the plugin. The entry point names this function."""
    return EndpointPlugin()


def _listens(state: Any) -> bool:
    """Whether vLLM's server takes connections."""
    return bool(getattr(getattr(state, "server", None), "started", False))


_LAUNCHER = "vllm.entrypoints.launchers.launcher"
_ROUTE_TABLE = ("Available routes are:", "Route: ")


def _without_route_table(record: logging.LogRecord) -> bool:
    """Drop vLLM's lines about each route: the public port serves others, which our reference lists."""
    return not str(record.msg).startswith(_ROUTE_TABLE)


def _fail(reason: str) -> None:
    ENDING.begin(FAILED, reason, patience_seconds=_FAILED_SECONDS)


def _exit_cleanly(reason: str) -> None:
    ENDING.begin(0, reason, patience_seconds=_END_SECONDS)


def _info(client: Any, handover: Handover) -> EngineInfo:
    parallel = client.vllm_config.parallel_config
    return EngineInfo(
        version=handover.engine_version,
        model=handover.model,
        world_size=int(parallel.world_size),
    )


def _peers(handover: Handover, tokens: BearerFile, args: Namespace) -> Peers | None:
    if handover.peer_socket is None:
        return None
    certificate = (
        Certificate(args.ssl_certfile, args.ssl_keyfile or "") if args.ssl_certfile else None
    )
    return Peers(
        handover.peer_socket,
        pod_uid=handover.pod_uid or "",
        tokens=lambda: tokens.tokens,
        bytes_per_second=handover.peer_bytes_per_second,
        certificate=certificate,
    )


def _check_arguments(args: Namespace, handover: Handover) -> None:
    """Fail if vLLM parsed one of the worker's flags to another value."""
    changed = [
        name
        for name, value in {
            "served_model_name": [handover.model],
            "enable_scale_out": True,
            "worker_extension_cls": "fleet_worker.engine.extension.WorkerExtension",
            "middleware": ["fleet_worker.gateway.gate.Gate"],
            "enable_lora": True if handover.adapters.slots else None,
            "load_format": LOAD_FORMAT,
            "uds": None,
        }.items()
        if (getattr(args, name, None) or None) != value
    ]
    if changed:
        raise RuntimeError(
            f"vLLM does not use the values that the worker set for: {', '.join(changed)};"
            " remove them from the engine's arguments and configuration"
        )


def _check_configuration(client: Any) -> None:
    """Fail on engine settings with which a label could name other weights."""
    if unsafe := unsafe_settings(client.vllm_config):
        raise RuntimeError(f"the worker does not support these vLLM settings: {'; '.join(unsafe)}")


def _spend_less_on_tokens() -> None:
    # vLLM parses one of its variables again for each token. Its other processes use this cache.
    importlib.import_module(ENVIRONMENT).enable_envs_cache()
    gc.set_threshold(NEW_OBJECTS)


async def _check_engine_names(client: Any) -> None:
    for missing in await client.collective_rpc("rlfleet_missing_names"):
        if missing:
            raise RuntimeError(f"vLLM's engine lacks functions that the worker needs: {missing}")
