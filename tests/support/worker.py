"""A real worker process: vLLM behind our plugin, driven over HTTP."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from tests.support.environments import ENGINE_ARGUMENTS, engine_environment, worker_python
from tests.support.waiting import eventually

from free_ports import free_port

TOKEN = "a-token-of-the-tests"
MODEL_NAME = "policy"
START_SECONDS = 300
"""It takes 13 s on idle cores, and minutes on busy ones."""
REPLY_SECONDS = 300
"""A limit of the wait for a whole reply: on busy cores 3900 tokens take more than a minute."""


class WorkerProcess:
    """One worker: a process, its three ports, its log.

    Fields:
        public: client of the public port.
        admin: client of the admin port, with the token.
    """

    def __init__(
        self,
        folder: Path,
        *,
        model: Path | str,
        roots: Sequence[Path | str],
        version: str = "base",
        options: Sequence[str] = (),
        engine_arguments: Sequence[str] = ENGINE_ARGUMENTS,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the process; use as a context manager.

        Args:
            folder: For its token and its log.
            model: Checkpoint that it starts on; also the URI of one.
            roots: Where versions may come from.
            version: Label of the model's own weights.
            options: More options of `serve`.
            engine_arguments: What follows `--`.
            environment: Added to the engine's.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.token_file = folder / "token"
        self.token_file.write_text(TOKEN + "\n")
        self.log_file = folder / "worker.log"
        self.port, self.admin_port, self.metrics_port = free_port(), free_port(), free_port()
        self._sequence = itertools.count(1)
        command = [
            *_as_in_a_pod(),
            worker_python(),
            "-m",
            "fleet_worker",
            "serve",
            f"--model={model}",
            f"--served-model-name={MODEL_NAME}",
            f"--version={version}",
            f"--port={self.port}",
            f"--admin-port={self.admin_port}",
            "--metrics-host=*",
            f"--metrics-port={self.metrics_port}",
            *(f"--weights-root={root}" for root in roots),
            *options,
            "--",
            *engine_arguments,
        ]
        environment = {"RLFLEET_ADMIN_TOKEN_FILE": str(self.token_file), **(environment or {})}
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                env=engine_environment() | environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        # No proxies, no limit on connections: tests hold many requests at once.
        limits = httpx.Limits(max_connections=None)
        self.public = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            timeout=REPLY_SECONDS,
            trust_env=False,
            limits=limits,
        )
        self.admin = httpx.Client(
            base_url=f"http://127.0.0.1:{self.admin_port}",
            timeout=60,
            trust_env=False,
            headers={"Authorization": f"Bearer {TOKEN}"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    # --- the process ---------------------------------------------------------------------------

    def wait_until_up(self) -> Self:
        """Wait for the first state document, or fail with the log if the process ends before."""
        eventually(self._is_up, within_seconds=START_SECONDS, describe=self.log_tail)
        return self

    def _is_up(self) -> bool:
        assert self.process.poll() is None, f"the worker ended:\n{self.log_tail()}"
        try:
            return self.admin.get("/livez").status_code == 200
        except httpx.TransportError:
            return False

    def exit_code(self, *, within_seconds: float) -> int:
        """Wait for the process to end by itself."""
        eventually(
            lambda: self.process.poll() is not None,
            within_seconds=within_seconds,
            describe=self.log_tail,
        )
        return self.process.returncode

    def engine_pids(self) -> list[int]:
        """Processes that vLLM has started: the engine core."""
        return [pid for pid in self.children_of(self.process.pid) if not _is_stager(pid)]

    def stager_pids(self) -> list[int]:
        """Processes that the worker has started to read versions."""
        return [pid for pid in self.children_of(self.process.pid) if _is_stager(pid)]

    def children_of(self, parent: int) -> list[int]:
        """Processes that another has started, except for Python's own helpers."""
        threads = Path(f"/proc/{parent}/task").glob("*/children")
        pids = [int(pid) for children in threads for pid in _read_proc(children).split()]
        return [pid for pid in pids if "resource_tracker" not in command_of(pid)]

    def kill(self) -> None:
        """End the whole session of processes, whatever state it is in."""
        self.public.close()
        self.admin.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=10)

    def log_tail(self, lines: int = 40) -> str:
        """The end of the log, for failures."""
        return "\n".join(self.log().splitlines()[-lines:])

    def log(self) -> str:
        """All that the worker and its engine have logged."""
        return self.log_file.read_text(errors="replace")

    # --- the admin port ------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The state document."""
        return dict(self.admin.get("/v1/worker/state").raise_for_status().json())

    def call(
        self, name: str, *, epoch: tuple[int, int] | None = None, **body: Any
    ) -> httpx.Response:
        """One call of the protocol, in the newest epoch unless another is named."""
        term, sequence = epoch or (1, next(self._sequence))
        body["epoch"] = {"term": term, "sequence": sequence}
        return self.admin.put(f"/v1/worker/{name}", json=body)

    def must(self, name: str, **body: Any) -> dict[str, Any]:
        """A call that has to succeed; returns the state."""
        reply = self.call(name, **body)
        assert reply.status_code == 200, f"{name}: {reply.text}\n{self.log_tail(10)}"
        return dict(reply.json())

    def must_remove(self, adapter: str) -> dict[str, Any]:
        """Remove an adapter, which has to succeed; returns the state."""
        epoch = {"term": 1, "sequence": next(self._sequence)}
        path = f"/v1/worker/adapters/{adapter}"
        reply = self.admin.request("DELETE", path, json={"epoch": epoch})
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    def refusal(self, name: str, **body: Any) -> tuple[int, str, str]:
        """A call that has to be refused: status, reason and message."""
        reply = self.call(name, **body)
        assert reply.status_code >= 400, f"{name} was not refused: {reply.text}"
        error = reply.json()["error"]
        return reply.status_code, error["reason"], error["message"]

    def stage(self, version: str, path: Path | str, **body: Any) -> dict[str, Any]:
        """Stage a directory."""
        kind = "uri" if "://" in str(path) else "path"
        return self.must("stage", version=version, source={kind: str(path)}, **body)

    def swap(self, version: str, path: Path | str, *, mode: str = "keep") -> dict[str, Any]:
        """Stage, pause, load, resume: the way a version comes to a serving worker."""
        self.stage(version, path)
        self.must("pause", mode=mode, lease_seconds=60)
        self.must("load", version=version)
        return self.must("resume", version=version)

    def span(self, start: int, end: int, **more: Any) -> dict[str, Any]:
        """The part of a reply about tokens that the weights in the engine now have made."""
        state = self.state()
        digest = state["digest"].removeprefix("sha256:")[:12]
        # A test before may have left weights of a named run in a shared worker.
        run = {"run_id": state["run_id"]} if state.get("run_id") else {}
        return {
            "version": state["version"],
            **run,
            "digest": digest,
            "start": start,
            "end": end,
            **more,
        }

    # --- the public port -----------------------------------------------------------------------

    def generate(self, prompt: Sequence[int], **sampling: Any) -> dict[str, Any]:
        """One completion by tokens; log-probabilities included.

        As clients do, it sends a request again that was ended before its first token.
        """
        body = token_request(prompt, **sampling)
        reply = self.public.post("/inference/v1/generate", json=body)
        while reply.status_code == 429:
            reply = self.public.post("/inference/v1/generate", json=body)
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    def wait_until_generating(self, requests: int = 1) -> None:
        """Until `requests` generate, each with tokens of the weights that are in the engine now."""
        # The worker counts a request before its first token: a pause that follows at once can
        # come before it, and then only the next weights make tokens.
        eventually(lambda: self.state()["requests_running"] >= requests)
        # Read now: the metric may still count the last tokens of the requests before.
        wanted = self.metric("vllm:generation_tokens_total") + 20 * requests
        eventually(lambda: self.metric("vllm:generation_tokens_total") > wanted)

    def greedy(
        self, prompt: Sequence[int] = (5, 6, 7), tokens: int = 12
    ) -> list[tuple[int, float]]:
        """Greedy tokens with their log-probabilities: what the weights say, bit for bit."""
        choice = self.generate(prompt, max_tokens=tokens, temperature=0)["choices"][0]
        return [(entry["token_id"], entry["logprob"]) for entry in choice["logprobs"]["content"]]

    def is_ready(self) -> bool:
        """The kubelet's view."""
        return self.admin.get("/readyz").status_code == 200

    def scrape(self, path: str = "/metrics", method: str = "GET") -> httpx.Response:
        """Ask the metrics port as a scraper does: without a key or a token."""
        url = f"http://127.0.0.1:{self.metrics_port}{path}"
        return httpx.request(method, url, timeout=10, trust_env=False)

    def metric(self, name: str, **labels: str) -> float:
        """The value of one sample on the public `/metrics`."""
        from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - few callers need it

        text = self.public.get("/metrics").text
        found = [
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        assert len(found) == 1, f"{name}{labels}: {found}"
        return found[0]


def command_of(pid: int) -> str:
    """The command line of a process; empty if it has ended."""
    return _read_proc(Path(f"/proc/{pid}/cmdline"))


def _is_stager(pid: int) -> bool:
    return "fleet_worker.checkpoint.stager" in command_of(pid)


def _read_proc(file: Path) -> str:
    try:
        return file.read_text()
    except (FileNotFoundError, ProcessLookupError):  # the process or thread has just ended
        return ""


def _as_in_a_pod() -> list[str]:
    """Without root's right to read every file, should the tests run as root."""
    rights = "-dac_override,-dac_read_search"
    return ["setpriv", f"--bounding-set={rights}", "--"] if os.geteuid() == 0 else []


def token_request(prompt: Sequence[int], **sampling: Any) -> dict[str, Any]:
    """Body of `/inference/v1/generate`; ends only by length, so that lengths are known."""
    return {
        "token_ids": list(prompt),
        "sampling_params": {"logprobs": 0, "ignore_eos": True, **sampling},
    }


def events_of(text: str) -> list[dict[str, Any]]:
    """The JSON events of a stream."""
    # Not `splitlines`, which also splits at line ends of Unicode inside of the texts.
    events = [line for line in text.split("\n") if line.startswith("data: ")]
    lines = [event.removeprefix("data: ") for event in events]
    return [json.loads(line) for line in lines if line != "[DONE]"]
