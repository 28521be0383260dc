"""Loads a version in full and in place, in turn, into the real vLLM; prints JSON. In the worker's environment."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vllm.engine.arg_utils import EngineArgs
from vllm.utils.network_utils import get_distributed_init_method, get_open_port
from vllm.v1.worker.worker_base import WorkerWrapperBase

from fleet_worker.checkpoint.memory import MemoryFile

_WEIGHTS = "model.safetensors"
PLAIN, PACKED = "plain_extension.PlainExtension", "fleet_worker.engine.extension.WorkerExtension"


def main() -> None:
    """Measure the processor time of the calls that move weights during a pause: other work does not change it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--packed", action="store_true", help="as vLLM does on CPUs; only in full")
    arguments = parser.parse_args()
    packed, folder = arguments.packed, arguments.folder
    engine = worker_on(folder / "base", PACKED if packed else PLAIN)
    rows: dict[str, list[float]] = {"full": [], "comparison": [], "in place": []}
    with _sealed(folder / "base") as base, _sealed(folder / "full") as new:
        for number in range(arguments.rounds + 1):
            found = {"full": load(engine, new)}
            if not packed:
                load(engine, base)
                found["comparison"] = compare(engine, new, base)
                found["in place"] = load_in_place(engine, new, base)
            load(engine, base)
            for name, seconds in found.items() if number else ():  # the first one warms up
                rows[name].append(seconds)
    json.dump(rows, sys.stdout)


def worker_on(model: Path, extension: str) -> Any:
    """Return vLLM's worker with a model, without the rest of an engine."""
    given = EngineArgs(
        model=str(model),
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=256,
        dtype="bfloat16",
        kv_cache_memory_bytes=1 << 26,
        worker_extension_cls=extension,
    )
    place = {
        "vllm_config": given.create_engine_config(),
        "local_rank": 0,
        "rank": 0,
        "distributed_init_method": get_distributed_init_method("127.0.0.1", get_open_port()),
        "is_driver_worker": True,
    }
    wrapper = WorkerWrapperBase(rpc_rank=0)
    wrapper.init_worker([place])
    wrapper.init_device()
    wrapper.load_model()
    return wrapper.worker


def load(engine: Any, path: str) -> float:
    """Load sealed memory in full. Returns: processor seconds."""
    given: dict[str, Any] = {
        "files": [path],
        "copies": {},
        "casts": {},
        "digests": None,
        "started": False,
    }
    began = time.process_time()
    answer = call(engine, "rlfleet_load", **given)
    check(answer["error"])
    return time.process_time() - began


def load_in_place(engine: Any, path: str, base: str) -> float:
    """Write what differs from the base, which the engine has. Returns: processor seconds."""
    given: dict[str, Any] = {"files": [path], "base": [base], "copies": {}, "casts": {}}
    began = time.process_time()
    answer = call(engine, "rlfleet_load_in_place", **given)
    check(answer["why_not"])
    return time.process_time() - began


def compare(engine: Any, path: str, base: str) -> float:
    """Outside of the pause: let the engine find what differs."""
    call(engine, "rlfleet_hold", links=[])  # it forgets what it has found before
    began = time.process_time()
    while not call(engine, "rlfleet_hold", links=[path], base=[base], room=1 << 40)["done"]:
        time.sleep(0.02)
    return time.process_time() - began


def check(problem: str | None) -> None:
    """End the measurement if there is a problem."""
    if problem:
        raise SystemExit(problem)


def call(engine: Any, method: str, **given: Any) -> Any:
    """Call a method of the worker's extension. Errors: SystemExit, if it fails."""
    answer = engine.rlfleet_call(method, given)
    check(answer["error"])
    return answer["result"]


@contextmanager
def _sealed(directory: Path) -> Iterator[str]:
    content = (directory / _WEIGHTS).read_bytes()
    memory = MemoryFile(_WEIGHTS, len(content))
    memory.write(memoryview(content), 0)
    memory.seal()
    del content
    yield f"/proc/{os.getpid()}/fd/{memory.descriptor}"
    memory.close()


if __name__ == "__main__":
    main()
