"""Versions as the client writes them, read by a worker's own reader: the two share no code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.deltas import metadata
from tests.support.fake_objects import FakeObjects

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.delta_chain import Bases, HeldBase, open_weights
from fleet_worker.checkpoint.files import Roots
from fleet_worker.checkpoint.finite import own_pass
from fleet_worker.checkpoint.reference import check_result
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason
from rlfleet import Deltas, Weights
from rlfleet.deltas import layout, writing
from rlfleet.deltas.between import write_between
from rlfleet_resources.weight_files import Encoding

STEPS = range(8, 14)
"""The number gets a second digit on the way."""
KINDS = {"8": "", "9": "8", "10": "9", "11": "10", "12": "", "13": "12"}
"""Version → its base; empty for a full one."""
ENOUGH = 1 << 40
State = dict[str, Any]


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Full versions of several files, and a file for each changed tensor of a delta."""
    monkeypatch.setattr(layout, "_SHARD_BYTES", 2 << 20)
    monkeypatch.setattr(writing, "_FILE_BYTES", 1)


@pytest.fixture(params=Encoding)
def encoding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Encoding:
    """Each encoding once, whichever is smaller."""
    found: Encoding = request.param
    monkeypatch.setattr(writing, "smaller_encoding", lambda *_: found)
    return found


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A directory with the configuration of the model."""
    folder = tmp_path / "start"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    (folder / "generation_config.json").write_text("{}")
    return folder


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    return tmp_path / "weights"


def state(step: int) -> State:
    """A tensor of more than one piece of a worker's pass, small ones, one that never changes, an empty one."""
    random = np.random.default_rng(1)
    large = random.integers(0, 1 << 14, 5 << 19, np.uint16)
    for each in range(step):
        where = np.random.default_rng(each).choice(len(large), len(large) // 100)
        large[where] ^= np.uint16(1 + each)
    return {
        "large": large.view(np.float16).reshape(1 << 9, -1),
        "odd": np.full((3, 7), step, np.float32),
        "scalar": np.array(step, np.int64),
        "still": np.arange(64, dtype=np.float32),
        "empty": np.empty((0, 4), np.float16),
    }


def publish(volume: Path, config: Path) -> dict[str, str]:
    """A chain, a full version, and a delta to it. Returns version → the digest that the fleet is given."""
    weights = Weights("policy", objects=FakeObjects(source={"path": f"{volume}/step_{{version}}"}))
    digests, kinds = {}, {}
    for step in STEPS:
        deltas = Deltas(anchor_every=4)
        weights.publish(step, state_dict=state(step), config_from=config, delta=deltas)
        assert weights.written is not None
        digests[str(step)] = weights.written.digest
        kinds[str(step)] = metadata(volume / f"step_{step}").get("base_version", "")
    assert kinds == KINDS
    return digests


@contextmanager
def read(directory: Path, *held: HeldBase) -> Iterator[Checkpoint]:
    """A version in a worker's memory."""
    checkpoint = open_weights(str(directory), Roots([directory.parent]), Bases(held))
    try:
        checkpoint.read_in(own_pass({}), budget=ENOUGH, check_cancelled=lambda: None)
        yield checkpoint
    finally:
        checkpoint.close()


def digest_of(checkpoint: Checkpoint) -> str:
    return checkpoint.digest(lambda: None)


def tensors_of(checkpoint: Checkpoint) -> dict[str, bytes]:
    """Tensor → the bytes that an engine would load."""
    return {
        spec.name: Path(checkpoint.link_of(file)).read_bytes()[spec.begin : spec.end]
        for file in checkpoint.files
        for spec in checkpoint.specs[file.name]
    }


def test_a_new_worker_reads_each_version_of_a_chain_with_the_digest_that_the_client_gives(
    encoding, volume, config
):
    digests = publish(volume, config)
    assert metadata(volume / "step_11")["delta_encoding"] == encoding.value
    assert len(list((volume / "step_11").glob("*.safetensors"))) == 3

    for version, digest in digests.items():
        with read(volume / f"step_{version}") as checkpoint:
            check_result(checkpoint, digest)
            assert digest_of(checkpoint) == digest
            given = state(int(version))
            assert tensors_of(checkpoint) == {name: t.tobytes() for name, t in given.items()}


def test_a_worker_follows_the_client_from_what_it_holds(encoding, volume, config):
    digests = publish(volume, config)
    assert len(set(digests.values())) == len(STEPS)
    held: HeldBase | None = None
    for version, digest in digests.items():
        directory = volume / f"step_{version}"
        with read(directory, *([held] if held is not None else [])) as checkpoint:
            assert digest_of(checkpoint) == digest
            own = sum(file.stat().st_size for file in directory.glob("*.safetensors"))
            assert checkpoint.read_bytes == own
            if held is not None:
                held.checkpoint.close()
            held = HeldBase(digest, checkpoint.duplicate())
    assert held is not None
    held.checkpoint.close()


def test_a_worker_reads_the_delta_of_two_checkpoints(encoding, volume, config, tmp_path):
    weights = Weights("policy", objects=FakeObjects(source={"path": f"{volume}/step_{{version}}"}))
    weights.publish(41, state_dict=state(1), config_from=config)
    local = tmp_path / "local/step_42"
    weights.publish(42, state_dict=state(2), config_from=config, written_to=local)
    done = write_between(
        volume / "step_41",
        local,
        volume / "step_42",
        version="42",
        base_version="41",
        begun=lambda _: lambda _: None,
    )

    with read(volume / "step_42") as delta, read(local) as full:
        assert done.encoding is encoding
        assert digest_of(delta) == digest_of(full) == done.result_digest
        assert weights.written is not None
        assert weights.written.digest == done.result_digest


def test_a_base_that_was_written_over_where_the_delta_changes_nothing_is_refused(
    encoding, volume, config
):
    digests = publish(volume, config)
    (file,) = (
        f for f in (volume / "step_12").glob("*.safetensors") if b'"still"' in f.read_bytes()
    )
    content = file.read_bytes()
    still = state(12)["still"].tobytes()
    assert content.count(still) == 1
    file.write_bytes(content.replace(still, still[::-1]))

    with read(volume / "step_13") as checkpoint:  # every checksum of a changed tensor is right
        assert metadata(volume / "step_13")["delta_encoding"] == encoding.value
        assert digest_of(checkpoint) != digests["13"]
        with pytest.raises(Refusal) as refused:
            check_result(checkpoint, digest_of(checkpoint))
    assert refused.value.reason is Reason.DELTA_MISMATCH
