"""The calls of a trainer that drives a worker itself: LoRA adapters, sleep, and weights over NCCL."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench_worker import servers, swaps
from bench_worker.servers import MODEL, TOKEN, Server
from free_ports import free_port

ADAPTER, RANK = "tuned", 16
OPTIONS = (
    "--weights-management=External",
    "--weight-transfer-backend=nccl",
    "--driver-lease-seconds=120",
    "--max-loras=2",
    f"--max-lora-rank={RANK}",
)
ON_ONE_GPU = {"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"}
"""NCCL refuses two ranks on one GPU of one host, so each needs another `NCCL_HOSTID`, too."""
ENVIRONMENT = {**ON_ONE_GPU, "NCCL_HOSTID": "worker"}
_TRAINER = Path(__file__).parent / "in_the_trainer" / "nccl_trainer.py"
_TRAINER_SECONDS = 70
_TOKENS = 16
_PROMPTS = [[20 + (number * step * 7) % 480 for step in range(1, 25)] for number in (1, 2, 3)]
_numbers = itertools.count(1)


class WrongTokensError(Exception):
    """Tokens are not those of the weights that should have made them, or their spans say otherwise."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A greedy reply. `made_by`: the versions of the model and of the adapter in its only span."""

    tokens: Sequence[int]
    made_by: tuple[str, str | None]


def adapters(worker: Server, steps: Sequence[Path], versions: Sequence[Path]) -> dict[str, Any]:
    """Swap two versions of an adapter, then the model below the second one.

    Args:
        worker: It serves the first of the models, without adapters.
        steps: Directories of two models.
        versions: Those of two versions of an adapter.
    """
    home, plain = _home(worker), _replies(worker)
    seconds, found = list[float](), list[list[Reply]]()
    for number, path in enumerate(versions):
        began = time.perf_counter()
        call = f"adapters/{ADAPTER}"
        swaps.call(worker, call, version=f"adapter-{number}", source={"path": str(path)})
        seconds.append(time.perf_counter() - began)
        found.append(_replies(worker, ADAPTER))
        _check_versions(found[-1], home, f"adapter-{number}")
    _check_differ("the adapter's first version and the model", found[0], plain)
    _check_differ("the adapter's two versions", *found)
    _check_same("the model", _replies(worker), plain)
    away = _swap(worker, steps[1])
    _check_differ("the adapter on two models", _replies(worker, ADAPTER), found[1])
    _swap(worker, steps[0])
    _check_same("the adapter after two swaps", _replies(worker, ADAPTER), found[1])
    return {"put_seconds": seconds, "swap_below_it": away}


def sleep(worker: Server, steps: Sequence[Path], level: int) -> dict[str, Any]:
    """Sleep and wake, and load a version while the worker sleeps.

    Args:
        worker: It serves the first of the models.
        steps: Directories of two models.
        level: Of the sleep; 0 only pauses, also on CPUs.
    """
    plain, used = _replies(worker), used_mib()
    asleep = _trainer_call(worker, f"/sleep?level={level}&mode=keep")
    left = used_mib()
    awake = _trainer_call(worker, "/wake_up")
    _trainer_call(worker, "/resume")
    _check_same("the model after it slept", _replies(worker), plain)
    _trainer_call(worker, f"/sleep?level={level}&mode=keep")
    reload = {"method": "reload_weights", "kwargs": {"weights_path": str(steps[1])}}
    loaded = _trainer_call(worker, "/collective_rpc", reload)
    _trainer_call(worker, "/resume")
    _check_differ("the models before and after a load while asleep", _replies(worker), plain)
    _swap(worker, steps[0])
    _check_same("the model after both loads", _replies(worker), plain)
    freed = used - left if used is not None and left is not None else None
    return {
        "level": level,
        "sleep_seconds": asleep,
        "freed_mib": freed,
        "wake_seconds": awake,
        "load_while_asleep_seconds": loaded,
    }


def nccl(worker: Server, steps: Sequence[Path]) -> dict[str, Any]:
    """Send a model over NCCL from a process on the same GPU, three times.

    Args:
        worker: It serves the first of the models.
        steps: Directories of two models. The second one is sent.
    """
    _swap(worker, steps[1])
    plain = _replies(worker)
    _swap(worker, steps[0])
    url = f"{worker.admin.base_url}/t/{TOKEN}".replace("//t/", "/t/")
    command = [servers.interpreter(), str(_TRAINER), url, str(steps[1]), str(free_port())]
    environment = {**os.environ, **servers.ENVIRONMENT, **ON_ONE_GPU, "NCCL_HOSTID": "trainer"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TRAINER_SECONDS,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode:
        raise RuntimeError(f"the trainer: {lines[-1:]} {done.stderr[-1500:]}")
    _check_same("the model that was sent", _replies(worker), plain)
    return {"seconds": json.loads(lines[-1])}


def used_mib() -> int | None:
    """Return the memory of the first GPU that is in use; None without one."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return int(done.stdout.split()[0])


def _home(worker: Server) -> str:
    return str(worker.admin.get("/v1/worker/state").json()["version"])


def _swap(worker: Server, path: Path) -> dict[str, float]:
    version = f"driven-{next(_numbers)}"
    timings = swaps.swap(worker, version, path, drop_cache=False)
    _check_versions(_replies(worker), version, None)
    return timings


def _trainer_call(worker: Server, path: str, body: dict[str, Any] | None = None) -> float:
    """Make a call of vLLM's own routes, as a trainer does. Returns: its seconds."""
    began = time.perf_counter()
    worker.admin.post(path, json=body).raise_for_status()
    return time.perf_counter() - began


def _replies(worker: Server, model: str = MODEL) -> list[Reply]:
    """Greedy replies, of which the prefix cache makes nothing."""
    sampling = {"max_tokens": _TOKENS, "temperature": 0.0, "ignore_eos": True}
    found = []
    for prompt in _PROMPTS:
        body = {
            "model": model,
            "token_ids": prompt,
            "sampling_params": sampling,
            "cache_salt": str(next(_numbers)),
        }
        reply = httpx.post(f"{worker.public}/inference/v1/generate", json=body, timeout=60)
        reply.raise_for_status()
        (choice,) = reply.json()["choices"]
        (span,) = choice["weight_versions"]
        if (span["start"], span["end"]) != (0, _TOKENS):
            raise WrongTokensError(f"a span of {_TOKENS} tokens is {span}")
        found.append(Reply(tuple(choice["token_ids"]), (span["version"], span.get("adapter"))))
    return found


def _check_versions(replies: Sequence[Reply], version: str, adapter: str | None) -> None:
    wrong = {reply.made_by for reply in replies} - {(version, adapter)}
    if wrong:
        raise WrongTokensError(f"tokens of {version} and {adapter} are labelled as {wrong}")


def _check_same(what: str, one: Sequence[Reply], other: Sequence[Reply]) -> None:
    if not _alike(one, other):
        raise WrongTokensError(f"{what} made other tokens")


def _check_differ(what: str, one: Sequence[Reply], other: Sequence[Reply]) -> None:
    if _alike(one, other):
        raise WrongTokensError(f"{what} made the same tokens")


def _alike(one: Sequence[Reply], other: Sequence[Reply]) -> bool:
    return [reply.tokens for reply in one] == [reply.tokens for reply in other]
