"""How many processors a pass may use."""

from __future__ import annotations

import os
from pathlib import Path, PurePath

import pytest

from fleet_worker.checkpoint import reading

V2 = "/sys/fs/cgroup/cpu.max"
QUOTA, PERIOD = "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, 64, id="no control group"),
        pytest.param({V2: "max 100000\n"}, 64, id="no limit"),
        pytest.param({V2: "400000 100000\n"}, 4, id="a limit"),
        pytest.param({V2: "250000 100000\n"}, 3, id="a part of a processor"),
        pytest.param({V2: "50000 100000\n"}, 1, id="less than one"),
        pytest.param({V2: "9900000 100000\n"}, 64, id="more than the node has"),
        pytest.param({QUOTA: "200000\n", PERIOD: "100000\n"}, 2, id="a limit of version 1"),
        pytest.param({QUOTA: "-1\n", PERIOD: "100000\n"}, 64, id="none of version 1"),
    ],
)
def test_the_limit_of_the_container_counts_and_not_the_nodes_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: int
) -> None:
    for name, content in files.items():
        file = tmp_path / name.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    monkeypatch.setattr(
        reading, "Path", lambda *parts: tmp_path / str(PurePath(*parts)).lstrip("/")
    )
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))

    assert reading.processors() == expected
