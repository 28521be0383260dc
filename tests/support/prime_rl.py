"""prime-rl's orchestrator at a control address: its calls, their time limits and their retries.

prime-rl is not on any registry, so these are the calls and not its code. Source: prime-rl main,
`prime_rl.utils.client`, revision 559b44772.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

ATTEMPTS = 10
PAUSE_SECONDS = 300.0
UPDATE_SECONDS = 720.0
ADAPTER_SECONDS = 30.0
ADAPTER_RETRY_SECONDS = 120.0
LONGEST_WAIT_SECONDS = 10.0
METRICS_SECONDS = 5.0
"""Its period, and its time limit for each page, which a busy machine cannot keep."""
PAGE_SECONDS = 30.0
"""A limit of the wait for each page."""
METRICS = frozenset(
    {
        "vllm:kv_cache_usage_perc",
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:num_requests_waiting_by_reason",
        "vllm:num_preemptions_total",
        "vllm:prefix_cache_hits_total",
        "vllm:prefix_cache_queries_total",
        "vllm:cache_config_info",
    }
)
"""Those that it reads, each with the label `engine`."""
_OF_A_LOAD = frozenset({404, 500})
"""Statuses that prime-rl repeats for an adapter, whose files may come late over NFS."""


@dataclass
class Answered:
    """One answer of the fleet."""

    path: str
    status: int
    body: Any = None


Page = dict[str, set[str]]
"""Metrics that prime-rl reads → the engines that a page has them of."""


@dataclass
class PrimeRl:
    """One orchestrator.

    Fields:
        base_url: `admin_base_url` of its configuration.
        key: what it reads from `VLLM_API_KEY`.
        answers: of all calls, with those that were repeated.
    """

    base_url: str
    key: str
    answers: list[Answered] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make its admin client."""
        self._http = httpx.Client(
            base_url=self.base_url.rstrip("/").removesuffix("/v1"),
            headers={"Authorization": f"Bearer {self.key}"},
            limits=httpx.Limits(max_connections=4, max_keepalive_connections=1),
            timeout=None,  # noqa: S113 - as prime-rl does; each call has its own
            trust_env=False,
        )

    def close(self) -> None:
        """End its connections."""
        self._http.close()

    def wait_for_ready(self, model: str, *, timeout_seconds: float = 1800) -> int:
        """`wait_for_ready`, and the model's length, as it is read at the start.

        Errors: TimeoutError, ValueError.
        """
        limit = time.monotonic() + timeout_seconds
        while self._get("/health").status_code not in (200, 404):
            if time.monotonic() > limit:
                raise TimeoutError("the inference server is not ready")
            time.sleep(1)
        models = self._get("/v1/models").json()["data"]
        found = [row for row in models if row["id"] == model]
        if not found:
            raise ValueError(f"model {model} was not found")
        return int(found[0]["max_model_len"])

    def init_broadcaster(self, processes: int) -> None:
        """Join its group. Every refusal is swallowed, as prime-rl does."""
        body = {"host": "10.0.0.1", "port": 29501, "rank_offset": 0, "timeout": 60}
        more = {"inference_world_size": processes, "quantize_in_weight_transfer": False}
        self._keep("/init_broadcaster", self._http.post("/init_broadcaster", json=body | more))

    def update_weights(self, seen: str, folder: Path) -> None:
        """Pause, load, and always resume.

        Args:
            seen: The directory as workers see it.
            folder: The same here.

        Errors: httpx.HTTPError, after which prime-rl ends.
        """
        pause = {"mode": "keep", "clear_cache": "false"}
        self._post("/pause", PAUSE_SECONDS, params=pause)
        try:
            (folder / "NCCL_READY").touch()
            self._post("/update_weights", UPDATE_SECONDS, json={"weight_dir": seen})
        finally:
            self._post("/resume", PAUSE_SECONDS)

    def load_adapter(self, name: str, seen: str) -> None:
        """Put a step of an adapter in place of the one before. Errors: httpx.HTTPError."""
        body = {"lora_name": name, "lora_path": seen}
        self._post(
            "/load_lora_adapter",
            ADAPTER_SECONDS,
            budget_seconds=ADAPTER_RETRY_SECONDS,
            again=_OF_A_LOAD.__contains__,
            json=body,
        )

    def unload_adapter(self, name: str) -> None:
        """Take an adapter away. prime-rl ignores the answer, whatever it is."""
        with suppress(httpx.TransportError):
            path = "/v1/unload_lora_adapter"
            self._keep(path, self._http.post(path, json={"lora_name": name}))

    @contextmanager
    def metrics_polled(self) -> Iterator[list[Page]]:
        """Read `/metrics` periodically in the block, as during a training, and once at its end.

        Yields: the pages so far.

        Errors at the end of the block: httpx.HTTPError or ValueError of the first page that failed.
        """
        pages: list[Page] = []
        failed: list[Exception] = []
        ended = threading.Event()

        def poll() -> None:
            while not ended.is_set() and not failed:
                try:
                    pages.append(self._page())
                except (httpx.HTTPError, ValueError) as error:
                    failed.append(error)
                ended.wait(METRICS_SECONDS)

        poller = threading.Thread(target=poll)
        poller.start()
        try:
            yield pages
        finally:
            ended.set()
            poller.join()
        if failed:
            raise failed[0]
        pages.append(self._page())

    def _page(self) -> Page:
        # Not among the answers: another thread makes these.
        found = self._http.get("/metrics", timeout=PAGE_SECONDS).raise_for_status()
        page: Page = {name: set() for name in METRICS}
        for family in text_string_to_metric_families(found.text):
            for sample in family.samples:
                if sample.name in METRICS:
                    page[sample.name].add(sample.labels["engine"])
        return page

    def score(self, model: str, tokens: list[int]) -> list[float]:
        """Log-probabilities of a teacher: the first entry of each position is the token's."""
        sampling = {"max_tokens": 1, "temperature": 1.0, "top_p": 1.0, "prompt_logprobs": 1}
        body = {"model": model, "token_ids": tokens, "sampling_params": sampling}
        reply = self._http.post("/inference/v1/generate", json=body).raise_for_status().json()
        first = [next(iter(p.items())) if p else None for p in reply["prompt_logprobs"]]
        assert [int(found[0]) for found in first if found] == tokens[1:]
        return [found[1]["logprob"] if found else 0.0 for found in first]

    def statuses(self, path: str) -> list[int]:
        """The statuses of all calls to a path."""
        return [one.status for one in self.answers if one.path == path]

    def _get(self, path: str) -> httpx.Response:
        return self._keep(path, self._http.get(path))

    def _post(
        self,
        path: str,
        read_seconds: float,
        *,
        budget_seconds: float = 0,
        again: Callable[[int], bool] = lambda status: status >= 500,
        **options: Any,
    ) -> None:
        limits = httpx.Timeout(connect=10.0, read=read_seconds, write=60.0, pool=10.0)
        end = time.monotonic() + (budget_seconds or 2 * read_seconds)
        for attempt in range(1, ATTEMPTS + 1):
            failed: httpx.HTTPError
            try:
                found = self._keep(path, self._http.post(path, timeout=limits, **options))
                found.raise_for_status()
            except httpx.HTTPStatusError as error:
                if not again(error.response.status_code):
                    raise
                failed = error
            except httpx.TransportError as error:
                failed = error
            else:
                return
            if attempt == ATTEMPTS or time.monotonic() > end:
                raise failed
            time.sleep(min(max(1.0, 2.0 ** (attempt - 1)), LONGEST_WAIT_SECONDS))

    def _keep(self, path: str, response: httpx.Response) -> httpx.Response:
        is_json = "json" in response.headers.get("content-type", "")
        body = response.json() if is_json else None
        self.answers.append(Answered(path, response.status_code, body))
        return response
