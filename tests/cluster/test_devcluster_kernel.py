"""The preflight's facts about the kernel, and the place of a cluster's control groups."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from devcluster import cgroups, machine, preflight
from devcluster.cgroups import Hierarchy, read_hierarchies
from devcluster.errors import DevclusterError
from devcluster.paths import cache_folder

_MOUNTED_ALONE = "\n".join(
    f"4{number} 23 0:3{number} {root} /sys/fs/cgroup/{name} rw,relatime shared:{number} - cgroup "
    f"cgroup rw,{name}"
    for number, (name, root) in enumerate(
        [("cpu", "/"), ("cpuacct", "/"), ("cpuset", "/"), ("memory", "/outer"), ("pids", "/")]
    )
)
_UNIFIED = "40 23 0:30 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"


def test_each_controller_of_version_1_has_its_own_group() -> None:
    own = "9:cpu:/\n8:cpuacct:/a\n7:cpuset:/\n6:memory:/outer/inner\n5:pids:/\n0::/"

    found = {h.controllers: str(h.caller) for h in read_hierarchies(_MOUNTED_ALONE, own)}

    assert found == {
        "cpu": "/sys/fs/cgroup/cpu",
        "cpuacct": "/sys/fs/cgroup/cpuacct/a",
        "cpuset": "/sys/fs/cgroup/cpuset",
        "memory": "/sys/fs/cgroup/memory/inner",
        "pids": "/sys/fs/cgroup/pids",
    }


def test_controllers_that_are_mounted_together_count_for_each() -> None:
    line = "41 23 0:31 / /sys/fs/cgroup/cpu,cpuacct rw shared:1 - cgroup cgroup rw,cpu,cpuacct"
    others = _MOUNTED_ALONE.splitlines()[2:]
    own = "9:cpu,cpuacct:/x\n7:cpuset:/\n6:memory:/outer\n5:pids:/\n0::/"

    found = read_hierarchies("\n".join([line, *others]), own)

    assert [str(h.caller) for h in found if "cpu," in h.controllers] == [
        "/sys/fs/cgroup/cpu,cpuacct/x"
    ]


def test_the_unified_tree_is_used_where_version_1_is_not_mounted() -> None:
    found = read_hierarchies(_UNIFIED, "0::/user.slice/user-0.slice/session-1.scope")

    top = Path("/sys/fs/cgroup")
    assert found == (Hierarchy("", top / "user.slice/user-0.slice/session-1.scope", top),)


def test_version_1_wins_where_the_unified_tree_is_only_an_addition() -> None:
    own = "9:cpu:/\n8:cpuacct:/\n7:cpuset:/\n6:memory:/outer\n5:pids:/\n0::/"
    beside = _UNIFIED.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified")

    found = read_hierarchies(f"{beside}\n{_MOUNTED_ALONE}", own)

    assert {h.controllers for h in found} == {"cpu", "cpuacct", "cpuset", "memory", "pids"}


class _Tree:
    """A tree of version 2 in plain files, refusing what the kernel would refuse."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.top = top
        self.busy: set[Path] = set()
        write = Path.write_text

        def guarded(path: Path, text: str) -> int:
            if path.name == "cgroup.subtree_control" and path.parent in self.busy:
                raise OSError(16, "Device or resource busy")
            return write(path, text.replace("+", ""))

        monkeypatch.setattr(Path, "write_text", guarded)

    def group(self, name: str, *, processes: bool = False, controllers: str = "") -> Path:
        folder = self.top / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.controllers").touch()
        (folder / "cgroup.procs").touch()
        (folder / "cgroup.subtree_control").write_text(controllers)
        if processes:
            self.busy.add(folder)
        return folder


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Tree:
    return _Tree(tmp_path / "cgroup", monkeypatch)


def _caller_is(monkeypatch: pytest.MonkeyPatch, tree: _Tree, group: Path) -> None:
    monkeypatch.setattr(cgroups, "own_hierarchies", lambda: (Hierarchy("", group, tree.top),))


def test_version_2_goes_below_the_nearest_group_that_can_hand_controllers_on(
    tree: _Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.group("", controllers="cpu cpuset memory pids")
    slice_ = tree.group("user.slice", controllers="memory pids")
    session = tree.group("user.slice/session.scope", processes=True)
    _caller_is(monkeypatch, tree, session)

    groups = cgroups.create("rlfleet-x-1")

    assert groups == (slice_ / "rlfleet-x-1",)
    assert groups[0].is_dir()
    assert (slice_ / "cgroup.subtree_control").read_text() == "cpu cpuset memory pids"


def test_version_2_moves_the_nodes_own_processes_out_of_the_way(
    tree: _Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = tree.group("service", controllers="cpu cpuset memory pids")
    _caller_is(monkeypatch, tree, caller)
    tree.group("service/rlfleet-x-1")
    (caller / "rlfleet-x-1/cgroup.procs").write_text("4711\n")

    cgroups.hand_on(cgroups.create("rlfleet-x-1"))

    group = caller / "rlfleet-x-1"
    assert (group / "node/cgroup.procs").read_text() == "4711"
    assert (group / "cgroup.subtree_control").read_text() == "cpu cpuset memory pids"


def test_version_2_says_so_when_no_group_can_hand_controllers_on(
    tree: _Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    _caller_is(monkeypatch, tree, tree.group("", processes=True))

    with pytest.raises(DevclusterError, match="no control group above this process") as caught:
        cgroups.create("rlfleet-x-1")

    assert "Delegate=yes" in caught.value.remedy


def test_this_machine_passes_the_checks_of_the_kernel(
    devcluster_node_possible: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The other test processes probe in the cache folder. This test looks in one of its own, on the
    # same file system.
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix="tmp-") as own:
        monkeypatch.setenv("RLFLEET_CACHE", own)

        assert list(preflight._groups("node")) == []
        assert list(preflight._kernel("node")) == []
        assert list(cache_folder().iterdir()) == []


def test_namespaces_that_cannot_be_made_are_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLFLEET_CACHE", str(tmp_path))
    refusing = tmp_path / "bin"
    refusing.mkdir()
    (refusing / "unshare").write_text("#!/bin/sh\necho unshare: not permitted >&2\nexit 1\n")
    (refusing / "unshare").chmod(0o755)
    monkeypatch.setenv("PATH", str(refusing))

    (problem,) = preflight._kernel("node")

    assert problem.what == "namespaces cannot be made: unshare: not permitted"
    assert "privileged" in problem.remedy


@pytest.mark.parametrize(
    ("said", "fits"),
    [
        pytest.param("go1.26.6 local", True, id="just recent enough"),
        pytest.param("go1.27 local", True, id="newer"),
        pytest.param("go1.26.5 local", False, id="a patch too old"),
        pytest.param("go1.22.1 auto", True, id="old, but fetches a newer one itself"),
        pytest.param("go1.19.8 auto", False, id="too old to fetch"),
    ],
)
def test_go_is_judged_by_its_version_and_by_whether_it_fetches_newer_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, fits: bool
) -> None:
    version, toolchain = said.split()
    noted = tmp_path / "noted"
    script = f"#!/bin/sh\necho {version}\necho {toolchain}\nenv > {noted}\n"
    (tmp_path / "go").write_text(script)
    (tmp_path / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("RLFLEET_CACHE", str(tmp_path / "cache"))

    assert machine.go_is_fit((1, 26, 6)) is fits
    # The mere question has Go count its use, below the cache folder instead of the user's home.
    assert f"TEST_TELEMETRY_DIR={tmp_path}/cache/" in noted.read_text()
