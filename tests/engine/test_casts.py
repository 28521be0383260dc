"""A trainer saves float32 next to a fleet in bfloat16, as FSDP with mixed precision does."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

from tests.engine.conftest import Weights
from tests.engine.scripts import output_of
from tests.support import damage
from tests.support.audit import audit, records_of
from tests.support.checkpoints import copy_of
from tests.support.worker import WorkerProcess

NewVersion = Callable[[], str]


def in_float32(source: Path, target: Path) -> Path:
    """Copy a checkpoint into float32, with digits that bfloat16 has no place for.

    Each number is a quarter of a step above or below the one in bfloat16, so that it rounds to that one.
    """
    copy_of(source, target)

    def widen(tensors: damage.Tensors) -> None:
        for name, (_, shape, data) in tensors.items():
            brains = struct.unpack(f"<{len(data) // 2}H", data)
            wide = ((bits << 16) + 0x4000 - 0x8000 * (bits & 1) for bits in brains)
            near = struct.pack(f"<{len(brains)}I", *wide)
            tensors[name] = ("F32", shape, near)

    damage.edit_tensors(target, widen)
    return target


def test_weights_in_float32_are_served_as_the_same_weights_in_bfloat16(
    worker: WorkerProcess,
    weights: Weights,
    home: str,
    new_version: NewVersion,
    tmp_path: Path,
) -> None:
    worker.swap(new_version(), weights.b)
    expected = worker.greedy()
    worker.swap(new_version(), weights.c)
    wide = in_float32(weights.b, weights.root / f"wide-{new_version()}")
    state = worker.swap(version := new_version(), wide)
    reply = worker.generate((5, 6, 7), max_tokens=12, temperature=0)

    assert worker.greedy() == expected
    (remark,) = state["remarks"]
    assert "from F32 to BF16" in remark
    assert state["effect"]["changed_share"] is None or state["effect"]["changed_share"] > 0.5
    records = records_of((5, 6, 7), reply)
    assert {span["digest"] for span in records[0]["weight_versions"]} == {
        state["digest"].partition(":")[2][:12]
    }
    versions = {home: weights.a, version: wide}
    done = audit(tmp_path, records, versions, model=weights.a)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_number_that_the_served_type_has_no_place_for_is_refused(
    worker: WorkerProcess, weights: Weights, home: str, new_version: NewVersion
) -> None:
    wide = in_float32(weights.b, weights.root / f"wide-{new_version()}")

    def overflow(tensors: damage.Tensors) -> None:
        dtype, shape, data = tensors["model.norm.weight"]
        tensors["model.norm.weight"] = (dtype, shape, struct.pack("<f", 3.4e38) + data[4:])

    damage.edit_tensors(wide, overflow)
    source = {"path": str(wide)}
    status, reason, message = worker.refusal("stage", version=new_version(), source=source)

    assert (status, reason) == (422, "CheckpointNotFinite")
    assert "infinite in BF16" in message
    assert worker.state()["version"] == home


TEACHER = """
import json
import sys
from fleet_worker.audit.teacher import log_probabilities
wide, narrow, model = sys.argv[1:]
pairs = [([5, 6, 7], [8, 9, 10, 11, 12, 13, 14, 15])]
found = {
    "narrow": log_probabilities(narrow, pairs, device="cpu"),
    "cast": log_probabilities(wide, pairs, device="cpu", model=model),
    "narrow, which needs no cast": log_probabilities(narrow, pairs, device="cpu", model=model),
    "wide": log_probabilities(wide, pairs, device="cpu"),
}
print("result", json.dumps(found))
"""


def test_the_audit_casts_as_a_load_does(weights: Weights, tmp_path: Path) -> None:
    wide = in_float32(weights.b, tmp_path / "wide")
    found = output_of(TEACHER, str(wide), str(weights.b), str(weights.a))

    assert found["cast"] == found["narrow"] == found["narrow, which needs no cast"]
    assert found["wide"] != found["narrow"]
