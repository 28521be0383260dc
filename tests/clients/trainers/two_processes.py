"""The callback `publish_every` in one of two processes, which meet in collectives of torch.distributed.

Prints the outcome of each case as a line of JSON. transformers is a fake here: only torch is needed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch.distributed as dist
from tests.support.fake_objects import FakeObjects

from rlfleet import Weights, publish_every

RANK, FOLDER = int(sys.argv[1]), Path(sys.argv[2])
SECONDS = 20
"""The watchdog's limit: processes that miss each other fail after it."""
FAKE = ModuleType("transformers")
FAKE.TrainerCallback = object
sys.modules["transformers"] = FAKE


class OddError(Exception):
    """An error that cannot be sent to another process."""

    def __init__(self) -> None:
        super().__init__("odd")
        self.odd = lambda: None


def save(folder: str) -> None:
    """Write a part of the model, with a collective as of a sharded one."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    dist.barrier()
    (Path(folder) / f"part-{RANK}.safetensors").write_bytes(b"weights")


def fail_in_one(folder: str) -> None:
    save(folder)
    if RANK == 1:
        raise OSError(28, "No space left on device")


def fail_oddly(_: object) -> None:
    raise OddError


def case(name: str, act: Callable[[FakeObjects, Path], Any]) -> None:
    objects = FakeObjects(obeys=False)
    directory = FOLDER / name
    found: dict[str, Any] = {"case": name}
    try:
        act(objects, directory)
        dist.barrier()  # the next step of the training
    except Exception as error:  # noqa: BLE001 - the test compares them
        found |= {"error": type(error).__name__, "words": str(error)}
        found["reason"] = getattr(error, "reason", "")
    found["published"] = [
        body["spec"]["version"] for request, body in objects.requests if "patch" in request and body
    ]
    print(json.dumps(found), flush=True)  # noqa: T201 - the test reads it


def train(objects: FakeObjects, directory: Path, *steps: int, **options: Any) -> None:
    weights = Weights("policy", objects=objects)
    callback: Any = publish_every(10, weights, directory, **{"save": save} | options)
    for step in steps:
        state = SimpleNamespace(global_step=step, is_world_process_zero=RANK == 0)
        callback.on_step_end(None, state, None, model=None)
        if step == 10:
            objects.stall("CheckpointNotFinite")
    callback.on_train_end(None, state, None)


def with_files(objects: FakeObjects, directory: Path) -> None:
    if RANK == 0:
        (directory / "step_10").mkdir(parents=True)
        (directory / "step_10" / "model.safetensors").write_bytes(b"served")
    dist.barrier()
    train(objects, directory, 10)


def absent(objects: FakeObjects, directory: Path) -> None:
    """The API server refuses the patch."""
    objects.failures.extend([PermissionError(13, "not yours")] * 9)
    train(objects, directory, 10)


def obeyed(objects: FakeObjects, directory: Path) -> None:
    objects._obeys = True
    train(objects, directory, 9, 20, 30)


meeting = f"file://{FOLDER}/meeting"
limit = timedelta(seconds=SECONDS)
dist.init_process_group("gloo", init_method=meeting, rank=RANK, world_size=2, timeout=limit)
case("obeyed", obeyed)
case("files", with_files)
case("refused", lambda objects, directory: train(objects, directory, 10, 20))
case("at the end", lambda objects, directory: train(objects, directory, 10))
case("forbidden", absent)
case("save", lambda objects, directory: train(objects, directory, 10, save=fail_in_one))
case("odd", lambda objects, directory: train(objects, directory, 10, report=fail_oddly))
dist.destroy_process_group()
