"""vLLM's real API server on a fake engine: what it costs for each token, with and without the worker.

It runs in the environment of the worker, in one process and without sockets. The fake engine gives
each request a token as soon as the server has taken the one before. So vLLM merges no tokens, and the
server's own processor time is all that is measured. Prints a row of JSON for each measurement.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import uvloop
from prometheus_client import CollectorRegistry
from vllm import envs
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason, core_client
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.executor.abstract import Executor
from vllm.v1.metrics.stats import PrefillStats, SchedulerStats
from vllm.v1.outputs import LogprobsLists

from fleet_worker.checkpoint.identity import WeightNames
from fleet_worker.engine.vllm_facts import facts_of
from fleet_worker.engine.vllm_requests import sent_again, with_adapters
from fleet_worker.gateway.gate import STATE_ATTRIBUTE, GateKeeper, PublicKey
from fleet_worker.gateway.table import Translations
from fleet_worker.lifecycle.freshness import Freshness
from fleet_worker.lifecycle.holding import Holding
from fleet_worker.lifecycle.kept_cache import KeptCache
from fleet_worker.lifecycle.metrics import WorkerMetrics
from fleet_worker.lifecycle.quiesce import Quiescence
from fleet_worker.lifecycle.sessions import Sessions
from fleet_worker.lifecycle.weights import Weights
from fleet_worker.lifecycle.worker import Worker
from fleet_worker.plugin import NEW_OBJECTS
from fleet_worker.protocol import Phase
from fleet_worker.provenance.tracking import tracked

np: Any = importlib.import_module("numpy")  # not in the environment that checks types
PROFILED_SECONDS = 20.0
MODEL, TOKENS, WARM_UP = "policy", 192, 16
ROW_SECONDS = 10.0
"""The least processor time of a row."""
PROMPT = list(range(20, 84))
_STOCK_THRESHOLD = gc.get_threshold()[0]
_SAMPLING = {"max_tokens": TOKENS, "ignore_eos": True, "temperature": 1.0}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "completions": ("/v1/completions", {**_SAMPLING, "prompt": PROMPT}),
    "chat": (
        "/v1/chat/completions",
        {**_SAMPLING, "messages": [{"role": "user", "content": "one two three four"}]},
    ),
    "generate": (
        "/inference/v1/generate",
        {"token_ids": PROMPT, "sampling_params": {**_SAMPLING, "logprobs": 1}},
    ),
}


class FakeEngineCore:
    """Takes the place of `EngineCoreClient` (vLLM 0.32), as far as generation asks for it."""

    def __init__(self) -> None:
        self.engine_ranks_managed = [0]
        self.resources = SimpleNamespace(engine_dead=False)
        self.states: dict[str, Any] = {}
        self.label = ""
        self._made: dict[str, tuple[Any, int]] = {}
        self._has_requests = asyncio.Event()

    async def get_supported_tasks_async(self) -> tuple[str, ...]:
        """Generation only."""
        return ("generate",)

    async def add_request_async(self, request: Any) -> None:
        """Begin a request (`EngineCoreRequest`)."""
        self._made[request.request_id] = (request, 0)
        self._has_requests.set()

    async def abort_requests_async(self, ids: list[str]) -> None:
        """Forget requests."""
        for each in ids:
            self._made.pop(each, None)

    def shutdown(self, **_: Any) -> None:
        """The process ends afterwards."""

    async def get_output_async(self) -> Any:
        """A token for each request, once the server has taken those before."""
        await self._has_requests.wait()
        await asyncio.sleep(0)
        while any(  # noqa: ASYNC110 - vLLM's queue has no event for it
            state.queue.output is not None for state in self.states.values()
        ):
            await asyncio.sleep(0)
        outputs = [self._next(*each) for each in list(self._made.values())]
        if not self._made:
            self._has_requests.clear()
        return EngineCoreOutputs(
            outputs=outputs, scheduler_stats=SchedulerStats(), weight_version=self.label
        )

    def _next(self, request: Any, made: int) -> Any:
        token, sampling = 20 + made * 7 % 400, request.sampling_params
        logprobs = None
        if sampling.logprobs is not None:
            ids = np.array([[token, 5]], dtype=np.int32)
            values = np.array([[-1.25, -0.5]], dtype=np.float32)
            logprobs = LogprobsLists(ids, values, np.array([3], dtype=np.int32))
        is_last = made + 1 == sampling.max_tokens
        if is_last:
            del self._made[request.request_id]
        else:
            self._made[request.request_id] = (request, made + 1)
        return EngineCoreOutput(
            request.request_id,
            [token],
            new_logprobs=logprobs,
            finish_reason=FinishReason.LENGTH if is_last else None,
            prefill_stats=None if made else PrefillStats(num_prompt_tokens=len(PROMPT)),
        )


class FakeWorker:
    """Takes the place of `Worker`, as far as the gate asks for it. It serves, without adapters."""

    name = Worker.name
    is_open, holds, phase, version, steps = True, False, Phase.SERVING, "base", 0

    def __init__(self) -> None:
        place: Any = SimpleNamespace(path="/weights/run-7/step_41")
        self.good = Weights("base", place, "sha256:" + 64 * "3", place)
        self.names, self.kept = WeightNames(), KeptCache()
        self.names.note_loaded(self.good.name)
        self.quiescence, self.held = Quiescence(), Holding()
        self.sessions = Sessions(time.monotonic)
        self.freshness = Freshness(time.monotonic)
        self.adapters = SimpleNamespace(weights_of=None, has=lambda _: False)


class WrongReplyError(Exception):
    """A reply failed, or lacks tokens or labels: its figures would mean nothing."""


class Measurement:
    """Two applications on one engine client: vLLM's own, and the same behind the worker's gate."""

    def __init__(self) -> None:
        self._apps: dict[str, Any] = {}
        self._generate: dict[str, Callable[..., Any]] = {}
        self._client: Any = None

    async def start(self, model: str) -> None:
        """Put both together, as `vllm serve` and the worker's plugin do."""
        parser = make_arg_parser(FlexibleArgumentParser())
        flags = [
            *(f"--model={model}", f"--served-model-name={MODEL}", "--enable-scale-out"),
            *("--dtype=bfloat16", "--max-model-len=4096", "--enforce-eager"),
            "--kv-cache-memory-bytes=67108864",
        ]
        stock = parser.parse_args(flags)
        gated = parser.parse_args([*flags, "--middleware=fleet_worker.gateway.gate.Gate"])
        config = AsyncEngineArgs.from_cli_args(stock).create_engine_config()
        core = FakeEngineCore()
        core_client.EngineCoreClient.make_async_mp_client = staticmethod(lambda **_: core)
        client = AsyncLLM(config, Executor.get_class(config), log_stats=True, log_requests=False)
        core.states = client.output_processor.request_states
        for name, arguments in (("stock", stock), ("worker", gated)):
            app = build_app(arguments, ("generate",), config.model_config)
            await init_app_state(client, app.state, arguments, ("generate",))
            self._apps[name] = app
        worker: Any = FakeWorker()
        core.label = worker.names.label_of(worker.good.name, worker.good.mark)
        facts = facts_of(client, self._apps["worker"], lambda: (MODEL,))
        probes: Any = SimpleNamespace(problem=None)
        metrics = WorkerMetrics(CollectorRegistry())
        keeper = GateKeeper(worker, probes, metrics, Translations(facts), PublicKey())
        setattr(self._apps["worker"].state, STATE_ATTRIBUTE, keeper)
        # As in `fleet_worker.plugin`.
        adapted = with_adapters(sent_again(client.generate, worker), worker.adapters.has)
        self._generate = {
            "stock": client.generate,
            "worker": tracked(adapted, worker.names),
        }
        self._client = client
        gc.collect()
        gc.freeze()  # as vLLM's server does once it has started

    async def row(self, kind: str, streams: int, pairs: int, *, streamed: bool) -> dict[str, Any]:
        """Measure one kind of request: at least `pairs` pairs, and more where rounds are short.

        A pair is stock, worker, worker, stock or the reverse, so that a machine that grows slower or
        faster meanwhile changes both alike. The ratio is the median of those of the pairs.
        """
        for name in ("stock", "worker"):
            await self._round(name, kind, WARM_UP, streamed=streamed)
        seconds: dict[str, list[float]] = {"stock": [], "worker": []}
        while len(seconds["stock"]) < pairs or sum(map(sum, seconds.values())) < ROW_SECONDS:
            both = ("stock", "worker") if len(seconds["stock"]) % 2 else ("worker", "stock")
            took = dict.fromkeys(both, 0.0)
            for name in (*both, *both[::-1]):
                took[name] += await self._round(name, kind, streams, streamed=streamed)
            for name, both_rounds in took.items():
                seconds[name].append(both_rounds)
        scale = 10_000 / (2 * streams * TOKENS)
        ratios = [a / b for a, b in zip(seconds["worker"], seconds["stock"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        median = {name: statistics.median(each) for name, each in seconds.items()}
        return {
            "kind": kind,
            "streams": streams,
            "streamed": streamed,
            **{name: {"cpu_seconds_per_10000_tokens": scale * s} for name, s in median.items()},
            "cpu_ratio": middle,
            "cpu_ratio_quartiles": [low, high],
            "pairs": len(ratios),
        }

    async def _round(self, name: str, kind: str, streams: int, *, streamed: bool) -> float:
        """Processor seconds of a round, without the garbage of the one before."""
        self._client.generate = self._generate[name]
        # Both as in `fleet_worker.plugin`; stock vLLM has this cache in its other processes only.
        envs.enable_envs_cache() if name == "worker" else envs.disable_envs_cache()
        gc.set_threshold(NEW_OBJECTS if name == "worker" else _STOCK_THRESHOLD)
        gc.collect()
        path, fields = KINDS[kind]
        body = json.dumps({"model": MODEL, "stream": streamed, **fields}).encode()
        began = time.process_time()
        replies = await asyncio.gather(*(self._ask(name, path, body) for _ in range(streams)))
        took = time.process_time() - began
        for status, content in replies:
            is_whole = not streamed or content.endswith(b"data: [DONE]\n\n")
            is_labelled = name == "stock" or b'"end":%d' % TOKENS in content
            if status != 200 or not is_whole or not is_labelled:
                raise WrongReplyError(f"{name}, {kind}: {status} {content[-300:]!r}")
        return took

    async def _ask(self, name: str, path: str, body: bytes) -> tuple[int, bytes]:
        status, pieces = 0, []
        left = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            return left.pop() if left else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                pieces.append(message.get("body", b""))

        headers = [
            (b"host", b"worker"),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "server": ("127.0.0.1", 80),
            "client": ("127.0.0.1", 81),
            "root_path": "",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": headers,
        }
        await self._apps[name](scope, receive, send)
        return status, b"".join(pieces)

    async def repeat(self, kind: str, streams: int, seconds: float) -> None:
        """Stream through the worker for some time, for a profiler that reads this process."""
        await self._round("worker", kind, WARM_UP, streamed=True)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            await self._round("worker", kind, streams, streamed=True)


async def main(model: str, pairs: int, sizes: list[int]) -> None:
    """Measure every kind. Without pairs: completions through the worker alone, for a profiler."""
    measurement = Measurement()
    await measurement.start(model)
    if not pairs:
        sys.stdout.write("{}\n")
        sys.stdout.flush()
        await measurement.repeat("completions", sizes[0], PROFILED_SECONDS)
        return
    for streamed in (True, False):
        for kind in KINDS:
            for streams in sizes:
                row = await measurement.row(kind, streams, pairs, streamed=streamed)
                sys.stdout.write(json.dumps(row) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2]), [int(each) for each in sys.argv[3:]]))
