"""Stock vLLM and our worker, side by side, on the same machine with the same flags."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import httpx

import envs
from bench_scale import processes
from free_ports import free_port

MODEL = "policy"
TOKEN = "of-the-bench"  # noqa: S105 - of a server on loopback that lives for minutes
START_SECONDS = 600
_NOTHING: Mapping[str, str] = MappingProxyType({})

# As tests and demo run tiny models on shared CPUs (docs/reference/worker.md, "Environment").
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "TORCHDYNAMO_DISABLE": "1",
    "PYTHONSAFEPATH": "1",
}
_FLAGS = (
    "--enforce-eager",
    "--block-size=32",
    "--dtype=bfloat16",
    "--max-model-len=4096",
    "--max-num-seqs=16",
    "--gpu-memory-utilization=0.05",  # two servers share a GPU
)


class ServerEndedError(Exception):
    """A server ended, or did not come up."""


@dataclass(frozen=True, slots=True)
class Server:
    """One running server.

    Fields:
        public: address of the port that clients use.
        admin: address of the port that changes weights; for stock vLLM it is the same.
        up_seconds: from the start of the process until it accepted requests.
        pid: of the API server.
    """

    name: str
    public: str
    admin: httpx.Client
    up_seconds: float
    pid: int

    def cpu_seconds(self) -> float:
        """Processor time that the API server itself has used; the engine is another process."""
        return processes.cpu_seconds(self.pid)

    def client(self) -> httpx.AsyncClient:
        """A client of the public port, with as many connections as it takes."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        return httpx.AsyncClient(base_url=self.public, timeout=600, limits=limits, trust_env=False)


def interpreter() -> str:
    """The Python that has vLLM: ours for CPUs, or the one that `RLFLEET_BENCH_PYTHON` names."""
    return os.environ.get("RLFLEET_BENCH_PYTHON") or str(envs.interpreter_of("worker"))


@contextlib.contextmanager
def starting(
    *servers: AbstractContextManager[Server],
) -> Iterator[Callable[[], list[Server]]]:
    """Start some servers at once. Yields what waits until they are up. They end with the block."""
    with contextlib.ExitStack() as running, ThreadPoolExecutor() as pool:
        begun = [pool.submit(running.enter_context, each) for each in servers]
        yield lambda: [each.result() for each in begun]


@contextlib.contextmanager
def stock(
    folder: Path,
    model: Path,
    *,
    threads: int,
    cache_bytes: int,
    flags: Sequence[str] = (),
    start_seconds: float = START_SECONDS,
) -> Iterator[Server]:
    """`vllm serve` with its development routes, until the block ends. `flags`: more of vLLM's."""
    port = free_port()
    command = [
        interpreter(),
        "-m",
        "vllm.entrypoints.openai.api_server",
        f"--model={model}",
        f"--served-model-name={MODEL}",
        "--host=127.0.0.1",
        f"--port={port}",
        "--enable-scale-out",
        "--uvicorn-log-level=warning",
        f"--kv-cache-memory-bytes={cache_bytes}",
        *_FLAGS,
        *flags,
    ]
    environment = {"VLLM_SERVER_DEV_MODE": "1", "OMP_NUM_THREADS": str(threads)}
    address = f"http://127.0.0.1:{port}"
    with _process("stock", folder, command, environment) as process:
        admin = httpx.Client(base_url=address, timeout=600, trust_env=False)
        with admin:
            up = _wait(process, folder / "stock.log", admin, "/health", start_seconds)
            yield Server("stock", address, admin, up, process.pid)


@contextlib.contextmanager
def worker(
    folder: Path,
    model: Path,
    roots: Sequence[Path],
    *,
    threads: int,
    cache_bytes: int,
    flags: Sequence[str] = (),
    options: Sequence[str] = (),
    staging_bytes: int = 8_000_000_000,
    more_environment: Mapping[str, str] = _NOTHING,
    start_seconds: float = START_SECONDS,
) -> Iterator[Server]:
    """Our worker, joining, until the block ends. `flags`: more of vLLM's. `options`: more of its own."""
    port, admin_port = free_port(), free_port()
    token = folder / "token"
    token.write_text(TOKEN)
    command = [
        interpreter(),
        "-m",
        "fleet_worker",
        "serve",
        f"--model={model}",
        f"--served-model-name={MODEL}",
        "--version=base",
        "--host=127.0.0.1",
        f"--port={port}",
        f"--admin-port={admin_port}",
        *(f"--weights-root={root}" for root in roots),
        f"--staging-memory-bytes={staging_bytes}",
        *options,
        "--",
        f"--kv-cache-memory-bytes={cache_bytes}",
        *_FLAGS,
        *flags,
    ]
    environment = {
        "PYTHONPATH": str(envs.app_folder()),
        "RLFLEET_ADMIN_TOKEN_FILE": str(token),
        "OMP_NUM_THREADS": str(threads),
    }
    with _process("worker", folder, command, {**environment, **more_environment}) as process:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        admin = httpx.Client(
            base_url=f"http://127.0.0.1:{admin_port}", timeout=600, headers=headers, trust_env=False
        )
        with admin:
            up = _wait(process, folder / "worker.log", admin, "/v1/worker/state", start_seconds)
            yield Server("worker", f"http://127.0.0.1:{port}", admin, up, process.pid)


@contextlib.contextmanager
def _process(
    name: str, folder: Path, command: Sequence[str], environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RLFLEET_", "VLLM_", "HF_"))}
    kept.pop("PYTHONPATH", None)
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env=kept | ENVIRONMENT | environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)


def _wait(
    process: subprocess.Popen[bytes], log: Path, client: httpx.Client, path: str, seconds: float
) -> float:
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        if process.poll() is not None:
            raise ServerEndedError(log.read_text(errors="replace")[-4000:])
        with contextlib.suppress(httpx.TransportError):
            if client.get(path).status_code == 200:
                return time.monotonic() - began
        time.sleep(0.02)
    raise ServerEndedError(
        f"not up within {seconds:.0f} s: {log.read_text(errors='replace')[-2000:]}"
    )
