"""Programs are built once, completely or not at all. A fake `go` keeps this quick."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devcluster import machine, parts, programs
from devcluster.errors import BuildError
from devcluster.paths import SOURCES, TOOLS, cache_folder, programs_folder
from devcluster.progress import Progress
from devcluster.waiting import wait_until

# Writes the requested program, records its environment, and waits or fails on request.
_GO = """#!/bin/sh
env | sort > "$CALLS.environment"
echo "go: downloading example.org/module v1.0.0" >&2
echo "example.org/package" >&2
echo "$$ $*" >> "$CALLS"  # last: a signal would end it if its builder ended before it has written
while [ -e "$CALLS.hold" ]; do sleep 0.05; done
if [ -e "$CALLS.fail" ]; then echo "example.org/module: no such host" >&2; exit 1; fi
while [ "$1" != "-o" ]; do shift; done
case "$2" in
*/) touch "$2containerd" "$2coredns" "$2certs" ;;
*) touch "$2" ;;
esac
"""


@pytest.fixture(autouse=True)
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which the fake records its calls; its cache folder is empty."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/go").write_text(_GO)
    (tmp_path / "bin/go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("RLFLEET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.delenv("RLFLEET_KEEP_GO_CACHE", raising=False)
    monkeypatch.delenv(parts.CHOICE, raising=False)
    monkeypatch.setattr(machine, "fitting_runc", lambda: Path("/usr/bin/runc"))
    monkeypatch.setattr(machine, "fitting_nft", lambda: Path("/usr/sbin/nft"))
    return tmp_path / "calls"


def _progress() -> Progress:
    return Progress(io.StringIO())


Builder = Callable[[], subprocess.Popen[bytes]]


@pytest.fixture
def builder(calls: Path) -> Iterator[Builder]:
    """Starts builders, and ends those that a failed test leaves."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        program = "from devcluster import programs; programs.ensure('api')"
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONPATH": str(TOOLS)},
            stderr=subprocess.DEVNULL,
        )
        started.append(process)
        return process

    yield start
    Path(f"{calls}.hold").unlink(missing_ok=True)
    for process in started:
        process.kill()
        process.wait()


def test_missing_programs_are_built_once(calls: Path) -> None:
    assert programs.missing("api") == ("kube", "certs")

    found = programs.ensure("api", _progress())

    assert programs.missing("api") == ()
    assert found.path("kubectl").resolve().name == "kube"
    assert found.path("certs").is_file()
    built = calls.read_text()
    programs.ensure("api", _progress())
    assert calls.read_text() == built


def test_the_oldest_kubernetes_is_built_when_it_is_chosen_and_its_servers_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(parts.CHOICE, "oldest")
    assert programs.missing("api") == ("kube-oldest", "kube", "certs")

    found = programs.ensure("api", _progress())

    made = {name: found.path(name).resolve().name for name in ("kube-apiserver", "etcd", "kubectl")}
    assert made == {"kube-apiserver": "kube-oldest", "etcd": "kube", "kubectl": "kube"}


def test_a_failed_build_reports_the_output_of_go_and_leaves_nothing_that_looks_finished(
    calls: Path,
) -> None:
    Path(f"{calls}.fail").touch()
    with pytest.raises(BuildError, match=r"example\.org/module: no such host") as caught:
        programs.ensure("api", _progress())
    assert "GOPROXY" in caught.value.remedy
    assert programs.missing("api") == ("kube", "certs")

    Path(f"{calls}.fail").unlink()
    programs.ensure("api", _progress())
    assert programs.missing("api") == ()
    assert not list(programs_folder().glob(".unfinished-*"))


def test_a_killed_builder_leaves_nothing_that_looks_finished_and_its_go_keeps_the_lock(
    calls: Path, builder: Builder
) -> None:
    hold = Path(f"{calls}.hold")
    hold.touch()
    first = builder()
    # The shell makes the file before it writes the line.
    wait_until(lambda: calls.exists() and calls.read_text(), 60.0, "the first build to start")
    orphan = int(calls.read_text().split()[0])
    first.kill()
    first.wait()
    assert programs.missing("api") == ("kube", "certs")

    second = builder()
    # The orphaned `go` still writes to the caches: the next build waits for its end.
    wait_until(lambda: _waits_for_a_lock(second.pid), 60.0, "the second builder to wait")
    assert len(calls.read_text().splitlines()) == 1
    os.kill(orphan, signal.SIGKILL)  # first: without the file it may end before the signal comes
    hold.unlink()

    assert second.wait(timeout=60) == 0
    assert programs.missing("api") == ()


def _waits_for_a_lock(pid: int) -> bool:
    return any(f"-> FLOCK  ADVISORY  WRITE {pid} " in line for line in _locks())


def _locks() -> list[str]:
    return Path("/proc/locks").read_text().splitlines()


def test_go_writes_below_the_cache_folder_and_keeps_the_users_settings(
    calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOPROXY", "https://proxy.example.org")
    monkeypatch.setenv("GOFLAGS", "-buildvcs=false")
    monkeypatch.setenv("GOOS", "plan9")

    programs.ensure("api", _progress())

    noted = Path(f"{calls}.environment").read_text().splitlines()
    environment = dict(line.split("=", 1) for line in noted if "=" in line)
    own = ("GOPATH", "GOMODCACHE", "GOCACHE", "GOTMPDIR", "TEST_TELEMETRY_DIR")
    assert all(Path(environment[name]).is_relative_to(cache_folder()) for name in own)
    assert environment["GOPROXY"] == "https://proxy.example.org"
    assert environment["GOFLAGS"] == "-buildvcs=false"
    assert "GOOS" not in environment
    assert "-modcacherw" in calls.read_text()


@pytest.mark.parametrize("name", ["go.mod", "go.sum", "certs/main.go"])
def test_a_change_of_any_source_changes_the_key(tmp_path: Path, name: str) -> None:
    module = tmp_path / "runtime"
    (module / "certs").mkdir(parents=True)
    for source in ("go.mod", "go.sum", "certs/main.go"):
        (module / source).write_bytes((SOURCES / "runtime" / source).read_bytes())
    part = parts.Part("certs", module, ("./certs",))
    before = part.key()

    with (module / name).open("a") as source_file:
        source_file.write("\n")

    assert part.key() != before
