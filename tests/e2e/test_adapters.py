"""LoRA adapters on a fleet of its own: rolled out, swapped under load, put back, taken away."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.adapters import write_adapter

import stack
from chaos.fleet import Fleet
from chaos.processes import signal_worker, without_operator
from demo.sampler import TOKENS
from stack.offline import audit

pytestmark = pytest.mark.long
NAME = "adapted"
ADAPTER = "sql"


class AdapterFleet(Fleet):
    """Seen through its adapter: what clients name, and the WeightVersion that is patched."""

    def restarts(self) -> int:
        (pod,) = self.pods().values()
        return pod["status"]["containerStatuses"][0]["restartCount"]

    def served(self) -> str:
        """The version of the adapter that all workers of the fleet serve."""
        return self.get(f"wv/{self.name}")["status"]["applied"]["version"]

    def write(self, version: int) -> Path:
        folder = self.weights / f"sql_{version}"
        return write_adapter(folder, seed=version)


@pytest.fixture(scope="module")
def adapted(shared_fleet: Fleet) -> Iterator[AdapterFleet]:
    """One worker with room for one adapter, on the model's own weights."""
    fleet = AdapterFleet(shared_fleet.cluster, shared_fleet.weights, iter(()), name=NAME)
    manifest = stack.fleet_manifest(NAME, replicas=1)
    manifest["spec"]["adapters"] = {"max": 1, "maxRank": 8}
    pointer = stack.weights_manifest(NAME, fleet=NAME, version="1")
    pointer["spec"] |= {"adapter": ADAPTER, "source": {"path": "/weights/sql_{version}"}}
    fleet.write(1)
    for made in (manifest, pointer):
        fleet.kubectl("apply", "-f", "-", stdin=json.dumps(made))
    fleet.wait_whole()
    yield fleet
    fleet.kubectl("delete", "wv,ifl", NAME)


def labels(samples_file: Path) -> set[tuple[str, str]]:
    if not samples_file.exists():
        return set()
    # The last line may be on its way.
    lines = samples_file.read_text().rpartition("\n")[0].splitlines()
    records = map(json.loads, lines)
    return {(s["version"], s["adapter"]) for r in records for s in r["weight_versions"]}


def test_new_requests_get_the_new_version_without_a_pause_and_every_token_says_which(
    adapted: AdapterFleet, tmp_path: Path
) -> None:
    before = adapted.served()
    folders = {before: adapted.weights / f"sql_{before}"}
    folders |= {str(n): adapted.write(n) for n in (2, 3)}
    replies = tmp_path / "replies.jsonl"

    def roll_out() -> None:
        for step in (2, 3):
            adapted.roll_out(step)
        adapted.eventually(lambda: ("base", "3") in labels(replies), "clients get version 3")

    samples = adapted.while_sampling(replies, roll_out, model=ADAPTER)

    assert samples.lost == []
    assert samples.retried == {}
    assert sum(samples.tokens.values()) == samples.answered * TOKENS
    # No request was held up: a reply is of one version from its first token to its last.
    assert samples.mixed_replies == 0
    assert labels(replies) <= {("base", version) for version in folders}
    assert ("base", "3") in labels(replies)
    judged = audit(replies, {"base": adapted.weights / "base"}, folders)
    assert judged.returncode == 0, judged.stdout + judged.stderr


def test_a_bad_adapter_is_reported_and_the_earlier_version_serves_on(adapted: AdapterFleet) -> None:
    before = adapted.served()
    good = adapted.write(10)
    bad = adapted.weights / "sql_11"
    shutil.copytree(good, bad)
    file = bad / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])

    adapted.publish("11")

    stalled = adapted.eventually(lambda: adapted.condition("Stalled"), "Stalled")
    assert stalled["reason"] == "CheckpointTruncated"
    assert adapted.served() == before
    adapted.publish("10", rollbackTo="10")
    adapted.wait_ready()


def test_a_restarted_worker_is_admitted_only_with_its_adapter(
    adapted: AdapterFleet, tmp_path: Path
) -> None:
    adapted.write(20)
    adapted.roll_out(20)
    before = adapted.restarts()

    def kill_and_wait() -> None:
        signal_worker(adapted, f"{NAME}-0", "worker", "SIGKILL")
        adapted.eventually(lambda: adapted.restarts() > before, "its container starts again")
        adapted.wait_served()

    samples = adapted.while_sampling(tmp_path / "replies.jsonl", kill_and_wait, model=ADAPTER)

    # Clients met a closed latch or no worker, never a worker without the adapter.
    assert not [why for why in samples.reasons if "404" in why]
    assert labels(tmp_path / "replies.jsonl") <= {("base", "20")}


def test_other_files_under_a_served_version_are_reported_and_never_served(
    adapted: AdapterFleet, tmp_path: Path
) -> None:
    folder = adapted.write(30)
    adapted.roll_out(30)
    (pin,) = [
        p for p in adapted.get(f"ifl/{NAME}")["status"]["pinnedAdapters"] if p["version"] == "30"
    ]
    kept = tmp_path / "kept"
    shutil.copytree(folder, kept)
    shutil.rmtree(folder)
    write_adapter(folder, seed=31)

    signal_worker(adapted, f"{NAME}-0", "worker", "SIGKILL")

    stalled = adapted.eventually(lambda: adapted.condition("Stalled"), "Stalled", seconds=120)
    assert stalled["reason"] == "VersionReused"
    assert adapted.get(f"ifl/{NAME}")["status"]["workers"]["serving"] == 0
    shutil.rmtree(folder)
    shutil.copytree(kept, folder)
    adapted.wait_whole()
    again = adapted.get(f"ifl/{NAME}")["status"]["pinnedAdapters"]
    assert [p["digest"] for p in again if p["version"] == "30"] == [pin["digest"]]


def test_files_written_over_while_no_operator_runs_are_compared_before_ready(
    adapted: AdapterFleet, tmp_path: Path
) -> None:
    folder = adapted.write(40)
    adapted.roll_out(40)
    kept = tmp_path / "kept"
    shutil.copytree(folder, kept)

    with without_operator(adapted.cluster):
        shutil.rmtree(folder)
        write_adapter(folder, seed=41)
        adapted.recreate()
    stalled = adapted.eventually(lambda: adapted.condition("Stalled"), "Stalled", seconds=120)

    assert stalled["reason"] == "VersionReused"
    samples = adapted.while_sampling(tmp_path / "replies.jsonl", lambda: None, model=ADAPTER)
    assert samples.lost == []
    assert labels(tmp_path / "replies.jsonl") <= {("base", "40")}
    judged = audit(tmp_path / "replies.jsonl", {"base": adapted.weights / "base"}, {"40": kept})
    assert judged.returncode == 0, judged.stdout + judged.stderr
    shutil.rmtree(folder)
    shutil.copytree(kept, folder)
    adapted.wait_whole()


def test_without_its_weight_version_an_adapter_leaves(adapted: AdapterFleet) -> None:
    pointer = stack.weights_manifest("second", fleet=NAME, version="1")
    pointer["spec"] |= {"adapter": "other", "source": {"path": "/weights/sql_{version}"}}
    adapted.kubectl("apply", "-f", "-", stdin=json.dumps(pointer))
    stalled = adapted.eventually(lambda: adapted.condition("Stalled", "wv/second"), "Stalled")
    assert stalled["reason"] == "NoRoomForAdapters"

    manifest = adapted.get(f"wv/{NAME}")
    adapted.kubectl("delete", "wv", NAME)
    adapted.wait_ready("wv/second")
    adapted.kubectl("delete", "wv", "second")

    kept = {
        "apiVersion": manifest["apiVersion"],
        "kind": manifest["kind"],
        "spec": manifest["spec"],
    }
    again = kept | {"metadata": {"name": NAME}}
    adapted.kubectl("apply", "-f", "-", stdin=json.dumps(again))
    adapted.wait_ready()
