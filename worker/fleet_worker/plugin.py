"""Our side of vLLM's API server: an endpoint plugin that puts the worker together.

vLLM makes the plugin (entry point `vllm.endpoint_plugins`), lets it see the application and, once
the engine is up, hands it the engine client. From then on agent, admin port and watch live in
vLLM's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from argparse import Namespace
from functools import partial
from typing import Any

from prometheus_client import REGISTRY

from fleet_worker.adapters.engine_config import unsafe_settings
from fleet_worker.adapters.engine_names import PLUGIN, check_objects
from fleet_worker.adapters.http_server import serve
from fleet_worker.adapters.lora import with_adapters
from fleet_worker.adapters.model_facts import facts_of
from fleet_worker.adapters.vllm_engine import VllmEngine
from fleet_worker.core.routes import Access, access_of
from fleet_worker.drain_names import drain_seconds_of
from fleet_worker.protocol import EngineInfo, WorkerState
from fleet_worker.runtime.adapters import Adapters
from fleet_worker.runtime.agent import Agent
from fleet_worker.runtime.driver import Driver
from fleet_worker.runtime.ending import ENDING, FAILED
from fleet_worker.runtime.handover import Handover, handed_over
from fleet_worker.runtime.limits import Limits
from fleet_worker.runtime.metrics import WorkerMetrics
from fleet_worker.runtime.report import state_of
from fleet_worker.runtime.signals import SIGTERM
from fleet_worker.runtime.store_threads import StoreThreads
from fleet_worker.runtime.transferring import Transfers
from fleet_worker.runtime.watch import Watch
from fleet_worker.wire.admin.app import AdminApp
from fleet_worker.wire.admin.bearer import BearerFile
from fleet_worker.wire.admin.guard import Guard
from fleet_worker.wire.admin.surfaces import all_surfaces
from fleet_worker.wire.metrics_port import MetricsApp
from fleet_worker.wire.probes import Probes
from fleet_worker.wire.public.gate import STATE_ATTRIBUTE, GateKeeper
from fleet_worker.wire.public.key import PublicKey, keys_of
from fleet_worker.wire.public.surfaces import Surfaces
from fleet_worker.wire.public.tracking import tracked

_LOG = logging.getLogger(__name__)
# Ending the rest of the requests, what follows on it and the end of the process must fit into 5 s.
_DRAIN_SECONDS = 3.0
_END_SECONDS = 1.5
_REPLY_SECONDS = 0.1
"""So long the answer to the preStop hook has to go out."""
_FOLLOW_SECONDS = 1.0
"""So long a worker that the cluster drains goes on refusing requests. A client with a kept
connection is sent elsewhere by its next request, and kube-proxy forgets the pod meanwhile.
"""
_FAILED_SECONDS = 1.5
_LOOK_SECONDS = 0.02


class EndpointPlugin:
    """See vLLM's `EndpointPlugin` protocol."""

    name = PLUGIN
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._app: Any = None

    def attach_router(self, app: Any) -> None:
        """Take the routes away that the public port does not serve.

        The gate answers 404 for them before vLLM sees the request; without their routes they are
        not in `/openapi.json` either, and stay away if the gate ever failed.
        """
        handed_over()  # fails if vLLM was started without the worker
        self._app = app
        app.router.routes[:] = [
            route
            for route in app.router.routes
            if access_of(getattr(route, "path", "")) is not Access.ABSENT
        ]

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """The engine is up: start the agent, the admin port and the watch."""
        handover = handed_over()
        SIGTERM.release()
        _check_arguments(args, handover)
        _check_configuration(engine_client)
        # vLLM has read the files by their names. Were they exchanged meanwhile, the engine would
        # have other weights than those that were checked, under their label.
        checkpoint = handover.initial.checkpoint
        await StoreThreads().run(
            partial(checkpoint.check_same_on_disk, None), store=f"of {checkpoint.path}"
        )
        metrics = WorkerMetrics(REGISTRY)
        models = state.openai_serving_models
        check_objects(engine_client, models)
        engine = VllmEngine(engine_client, _info(engine_client, handover), models)
        room = handover.adapters
        agent = Agent(
            engine,
            handover.initial,
            handover.rules,
            clock=time.monotonic,
            metrics=metrics,
            end_process=_fail,
            adapters=Adapters(engine, slots=room.slots, max_rank=room.max_rank),
            limits=Limits(load_seconds=handover.load_seconds),
        )
        if (failure := handover.start_failure) is not None:
            # Where a refused stage stands, too: the operator sees why this worker has other weights.
            fault = agent.fault(
                failure.version, failure.refusal, run_id=failure.run_id, source=failure.path
            )
            agent.refused_stages = (fault,)
        await _check_engine_names(engine_client)
        generate = with_adapters(engine_client.generate, agent.adapters.using)
        engine_client.generate = tracked(
            generate, agent.names, is_drained=lambda: agent.quiescence.outlived
        )
        watch = Watch(
            agent,
            silence_seconds=handover.silence_seconds,
            load_seconds=handover.load_seconds,
            end_process=_fail,
        )
        probes = Probes(agent, watch.problem)
        metrics.watch(agent)
        await agent.ready()

        transfers = Transfers(agent, handover.transfer)
        agent.on_released = transfers.give_up
        driver = Driver(agent, transfers, handover.driver)

        async def drain() -> None:
            timeout = drain_seconds_of(os.environ)
            left = await agent.drain(patience_seconds=_DRAIN_SECONDS, drain_timeout_seconds=timeout)
            follow = min(_FOLLOW_SECONDS, left) if timeout > 0 else 0.0
            loop = asyncio.get_running_loop()
            loop.call_later(max(_REPLY_SECONDS, follow), _end_well, "drained")

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
            all_surfaces(agent, driver, state=document, drain=drain, metrics=metrics.text),
            guard=Guard(
                BearerFile(handover.token_file),
                pod_uid=handover.pod_uid,
                instance=handover.instance,
            ),
            probes=probes,
            on_refused=metrics.refused,
        )
        facts = facts_of(engine_client, self._app, lambda: (handover.model, *agent.adapters.names))
        key = PublicKey(keys_of(args, os.environ))
        keeper = GateKeeper(agent, probes, metrics, Surfaces(facts), key)
        setattr(state, STATE_ATTRIBUTE, keeper)
        self._start(serve(admin, handover.admin_socket), "the admin port")
        if handover.metrics_socket is not None:
            scraped = MetricsApp(metrics.text, clock=time.monotonic)
            self._start(serve(scraped, handover.metrics_socket), "the metrics port")
        self._start(watch.run(), "the watch")
        self._start(self._take_signals(state, drain), "taking over signals")

    async def _take_signals(self, state: Any, drain: Any) -> None:
        """Put our handlers in place of vLLM's, which hang while requests are held."""
        # vLLM makes its server, and sets its handlers, right after this plugin is done.
        while not getattr(getattr(state, "server", None), "started", False):  # noqa: ASYNC110 - vLLM signals nothing
            await asyncio.sleep(_LOOK_SECONDS)
        server = state.server

        def stop_server() -> None:
            server.should_exit = True

        ENDING.on_begin(stop_server)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: self._start(drain(), "draining"))

    def _start(self, work: Any, what: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=what)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("%s failed", task.get_name(), exc_info=error)
            _fail(f"{task.get_name()} failed")


def endpoint_plugin() -> EndpointPlugin:
    """The entry point's factory."""
    return EndpointPlugin()


def _fail(why: str) -> None:
    ENDING.begin(FAILED, why, patience_seconds=_FAILED_SECONDS)


def _end_well(why: str) -> None:
    ENDING.begin(0, why, patience_seconds=_END_SECONDS)


def _info(client: Any, handover: Handover) -> EngineInfo:
    parallel = client.vllm_config.parallel_config
    return EngineInfo(
        version=handover.engine_version,
        model=handover.model,
        world_size=int(parallel.world_size),
    )


def _check_arguments(args: Namespace, handover: Handover) -> None:
    """What the flags became in the end: one that slipped past us must not go unnoticed."""
    wrong = [
        name
        for name, value in {
            "served_model_name": [handover.model],
            "enable_scale_out": True,
            "worker_extension_cls": "fleet_worker.adapters.extension.WorkerExtension",
            "middleware": ["fleet_worker.wire.public.gate.Gate"],
            "enable_lora": True if handover.adapters.slots else None,
            "uds": None,
        }.items()
        if (getattr(args, name, None) or None) != value
    ]
    if wrong:
        raise RuntimeError(f"vLLM does not run with the flags that the worker set: {wrong}")


def _check_configuration(client: Any) -> None:
    """What vLLM made of the flags: settings under which a label would stand for other weights."""
    if unsafe := unsafe_settings(client.vllm_config):
        raise RuntimeError(f"the worker does not serve with these settings: {'; '.join(unsafe)}")


async def _check_engine_names(client: Any) -> None:
    for answer in await client.collective_rpc("rlfleet_missing_names"):
        if answer:
            raise RuntimeError(f"this vLLM's engine lacks names that the worker needs: {answer}")
