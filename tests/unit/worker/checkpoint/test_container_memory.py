"""The memory that a container has left, and the checkpoints that fit into it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any

import pytest
from tests.support.tiny import write_tiny
from tests.support.worker_harness import WorkerHarness

from fleet_worker.checkpoint import memory
from fleet_worker.checkpoint.opening import open_checkpoint

MIB = 1 << 20
RESERVE = 512 * MIB
V2, V1 = "/sys/fs/cgroup", "/sys/fs/cgroup/memory"
NO_LIMIT_V1 = "9223372036854771712"

Container = Callable[[Mapping[str, Any]], None]


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Container:
    """A machine of 64 GiB, 40 of them available, and the files of a container on it."""

    def make(files: Mapping[str, Any]) -> None:
        meminfo = "MemTotal:       67108864 kB\nMemFree: 1 kB\nMemAvailable:   41943040 kB\n"
        for name, content in {"/proc/meminfo": meminfo, **files}.items():
            file = tmp_path / name.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(str(content))

    monkeypatch.setattr(memory, "Path", lambda *parts: tmp_path / str(PurePath(*parts)).lstrip("/"))
    return make


LIMITS = [
    pytest.param({}, 65536, id="no control group"),
    pytest.param({f"{V2}/memory.max": "max\n"}, 65536, id="no limit"),
    pytest.param({f"{V2}/memory.max": f"{8192 * MIB}\n"}, 8192, id="a limit"),
    pytest.param({f"{V2}/memory.max": 1 << 59}, 65536, id="a limit beyond the machine"),
    pytest.param({f"{V1}/memory.limit_in_bytes": 4096 * MIB}, 4096, id="a limit of version 1"),
    pytest.param({f"{V1}/memory.limit_in_bytes": NO_LIMIT_V1}, 65536, id="none of version 1"),
]


@pytest.mark.parametrize(("files", "mebibytes"), LIMITS)
def test_the_limit_is_the_containers_or_the_machines(
    container: Container, files: Mapping[str, Any], mebibytes: int
) -> None:
    container(files)

    assert memory.memory_limit() == mebibytes * MIB
    assert memory.default_budget() == mebibytes * MIB // 4


def group(limit: int, used: int, stat: str | None = None) -> dict[str, Any]:
    """Files of a control group of version 2, in MiB."""
    files = {f"{V2}/memory.max": limit * MIB, f"{V2}/memory.current": used * MIB}
    return files | ({f"{V2}/memory.stat": stat} if stat is not None else {})


def group_of_version_1(limit: int, used: int, stat: str) -> dict[str, Any]:
    """The same of version 1."""
    files = {f"{V1}/memory.limit_in_bytes": limit * MIB, f"{V1}/memory.usage_in_bytes": used * MIB}
    return files | {f"{V1}/memory.stat": stat}


CACHE_V1 = f"inactive_file 1\ntotal_inactive_file {600 * MIB}\ntotal_active_file {200 * MIB}\n"
CACHE = f"anon 5\nfile {900 * MIB}\ninactive_file {600 * MIB}\nactive_file {200 * MIB}\nshmem 7\n"


@pytest.mark.parametrize(
    ("files", "mebibytes"),
    [
        pytest.param({}, 40960, id="what the machine has available"),
        pytest.param(group(8192, 1000), 7192, id="what the container has not taken"),
        pytest.param(group(8192, 1000, CACHE), 7992, id="the kernel gives cached pages back"),
        pytest.param(group_of_version_1(8192, 1000, CACHE_V1), 7992, id="so it does in version 1"),
        pytest.param(group(8192, 1000, "anon 5\n"), 7192, id="nothing is cached"),
        pytest.param(group(65536, 0), 40960, id="the machine has less than the limit"),
        pytest.param(group(1024, 1000), 512, id="nearly full: less than the reserve"),
        pytest.param(group(1024, 1024), 512, id="full"),
        pytest.param({f"{V2}/memory.max": 8192 * MIB}, 40960, id="without a figure of use"),
        pytest.param({f"{V2}/memory.max": "max", f"{V2}/memory.current": 1}, 40960, id="no limit"),
    ],
)
def test_the_headroom_leaves_a_reserve_for_engine_and_page_cache(
    container: Container, files: Mapping[str, Any], mebibytes: int
) -> None:
    container(files)

    assert memory.memory_left() == max(0, mebibytes * MIB - RESERVE)


# --- what fits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("spare", [-1, 0, 1])
@pytest.mark.parametrize("scarce", ["budget", "memory"])
def test_a_checkpoint_is_held_up_to_the_last_byte_of_headroom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scarce: str, spare: int
) -> None:
    checkpoint = open_checkpoint(str(write_tiny(tmp_path / "1")), None)
    room = {"budget": 1 << 40, "memory": 1 << 40, scarce: checkpoint.size_bytes + spare}
    monkeypatch.setattr(memory, "memory_left", lambda: room["memory"])
    held = checkpoint.read_all(budget=room["budget"], check_cancelled=lambda: None)

    assert held is (spare >= 0)
    assert set(checkpoint.held) == ({"model.safetensors"} if held else set())
    checkpoint.close()


def _budget(harness: WorkerHarness, size: int) -> None:
    rules = harness.agent.staging.rules
    object.__setattr__(rules, "budget_bytes", size)


@pytest.mark.parametrize(("budget", "kept"), [(2, True), (-1, False)], ids=["two fit", "one less"])
async def test_the_last_good_version_is_held_while_both_fit(
    serving: WorkerHarness, budget: int, kept: bool
) -> None:
    await serving.stage("1")
    await serving.apply("1")
    size = serving.agent.good.checkpoint.size_bytes if serving.agent.good.checkpoint else 0
    _budget(serving, 2 * size if budget == 2 else 2 * size - 1)
    await serving.stage("2")

    assert serving.agent.good.in_memory is kept
    staged = serving.state.staged
    assert staged is not None
    assert staged.in_memory, "the version to come goes before the one to go back to"


async def test_the_remaining_budget_is_never_negative(serving: WorkerHarness) -> None:
    await serving.stage("1")
    size = serving.agent.staging.staged.checkpoint.size_bytes if serving.agent.staging.staged else 0
    for budget, left in ((3 * size, 2 * size), (size, 0), (size - 1, 0), (0, 0)):
        _budget(serving, budget)
        assert serving.agent.memory_left() == left
