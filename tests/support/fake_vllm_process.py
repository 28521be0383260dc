"""The worker's plugin in a process where vLLM's server and its engine client are fakes."""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from types import SimpleNamespace
from typing import Any

from tests.support.waiting import soon

from fleet_worker.gateway.gate import STATE_ATTRIBUTE, Gate, GateKeeper
from fleet_worker.process.command import EXTENSION, GATE
from fleet_worker.process.handover import Handover

TOKEN = "the-token"


class FakeClient:
    """vLLM's engine client, as far as a worker that does nothing uses it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.label = "default"
        self.errored = False
        self.missing: list[str] = []
        self.vllm_config = SimpleNamespace(
            parallel_config=SimpleNamespace(world_size=2, enable_eplb=False),
            kv_transfer_config=None,
            ec_transfer_config=None,
            ec_manager_config=SimpleNamespace(encoder_cache_manager_cls=None),
            offload_config=SimpleNamespace(
                prefetch=SimpleNamespace(offload_group_size=0),
                uva=SimpleNamespace(cpu_offload_gb=0),
            ),
        )
        self.output_processor = SimpleNamespace(request_states={}, parent_requests={})
        self.first_generate = self.generate

    def generate(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("no test asks for tokens here")

    def get_num_unfinished_requests(self) -> int:
        return 0

    async def pause_generation(self, *, mode: str, clear_cache: bool) -> None:
        self.calls.append(f"pause {mode} {clear_cache}")

    async def is_paused(self) -> bool:
        return True

    async def update_weight_version(self, version: str) -> None:
        self.label = version
        self.calls.append(f"label {version}")

    async def get_weight_version(self) -> str:
        return self.label

    async def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        self.calls.append(method)
        return [[], self.missing]


class FakeUvicorn:
    """The admin port's listener: serves until it is let go, or fails."""

    def __init__(self) -> None:
        self.apps: list[Any] = []
        self.sockets: list[Any] = []
        self.error: Exception | None = None
        self.end = asyncio.Event()

    def module(self) -> dict[str, Any]:
        outer = self

        class Server:
            def __init__(self, config: Any) -> None:
                outer.apps.append(config.app)

            async def serve(self, *, sockets: list[Any]) -> None:
                outer.sockets += sockets
                await outer.end.wait()
                if outer.error is not None:
                    raise outer.error

        return {"Server": Server, "Config": lambda app, **_: server_config(app)}


def server_config(app: Any = None) -> SimpleNamespace:
    """The configuration of a server, as far as the limits of its connections need it."""
    return SimpleNamespace(app=app, loaded=True, http_protocol_class=asyncio.Protocol)


class Put:
    """A plugin, and everything around it."""

    def __init__(self, plugin: Any, module: Any, handover: Handover, uvicorn: FakeUvicorn) -> None:
        self.plugin, self.module, self.handover, self.uvicorn = plugin, module, handover, uvicorn
        self.client = FakeClient()
        self.server = SimpleNamespace(started=False, should_exit=False, config=server_config())
        self.state = SimpleNamespace(
            openai_serving_models=SimpleNamespace(lora_requests={}), server=self.server
        )
        self.arguments = Namespace(
            model=handover.initial.checkpoint.path,
            served_model_name=["policy"],
            enable_scale_out=True,
            worker_extension_cls=EXTENSION,
            middleware=[GATE],
            enable_lora=False,
            load_format="rlfleet",
            uds=None,
            api_key=["public-key"],
        )
        self.endings: list[tuple[int, str]] = []

    async def together(self) -> GateKeeper:
        await self.plugin.init_state(self.client, self.state, self.arguments)
        keeper = getattr(self.state, STATE_ATTRIBUTE)
        assert isinstance(keeper, GateKeeper)
        return keeper

    async def admin(self, method: str, path: str, token: str = TOKEN) -> tuple[int, Any]:
        """Ask the admin port."""
        await soon(lambda: self.uvicorn.apps)
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        headers = [(b"authorization", f"Bearer {token}".encode())]
        scope = {"type": "http", "method": method, "path": path, "headers": headers}
        await self.uvicorn.apps[0](scope, receive, send)
        return sent[0]["status"], json.loads(sent[1]["body"])

    async def scrape(self) -> tuple[int, str]:
        """Ask the metrics port, without any header."""
        await soon(lambda: len(self.uvicorn.apps) > 1)
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/metrics", "headers": []}
        await self.uvicorn.apps[1](scope, None, send)
        return sent[0]["status"], sent[1]["body"].decode()

    async def ask_for_tokens(self) -> dict[str, Any]:
        """The start of the public port's answer to a request that must not reach the engine."""
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"{}", "more_body": False}

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/completions",
            "headers": [(b"authorization", b"Bearer public-key")],
            "app": SimpleNamespace(state=self.state),
        }
        await Gate(_no_engine)(scope, receive, send)
        return sent[0]


async def _no_engine(*_: Any) -> None:
    raise AssertionError("the request passed a closed latch")
