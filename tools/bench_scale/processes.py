"""Our own programs as processes, and the resource use of any, as the kernel says it. Source: proc(5)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import envs

_KEPT = ("PATH", "HOME", "LANG", "TMPDIR")
_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")
_USER_FIELD = 11
"""`utime` counted from the field behind the name, which may hold anything."""


def start(program: str, *options: str, kubeconfig: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start one of our programs from the working tree. Its output goes to the end of the log."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    paths = ":".join(f"{envs.REPOSITORY}/{part}" for part in ("client", "operator", "worker"))
    own = {"KUBECONFIG": str(kubeconfig), "PYTHONPATH": paths}
    own |= {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    with log.open("ab") as sink:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", program, *options],
            env=kept | own,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end, and make it end after 20 s."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def cpu_seconds(pid: int) -> float:
    """Processor time of all threads of a process."""
    fields = _stat(pid)
    return (int(fields[_USER_FIELD]) + int(fields[_USER_FIELD + 1])) / _TICKS


def peak_memory_bytes(pid: int) -> int:
    """The most memory that a process has had."""
    lines = (_PROC / str(pid) / "status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def control_plane(run: Path) -> dict[str, int]:
    """Process ids of the API server of a cluster and of its etcd, by name.

    Args:
        run: The cluster's folder, which the API server's command line names.
    """
    found: dict[str, int] = {}
    (server,) = (pid for pid in _pids() if _is(pid, "kube-apiserver", str(run)))
    found["kube-apiserver"] = server
    for pid in _pids():
        if _is(pid, "etcd", "") and _parent(pid) == _parent(server):
            found["etcd"] = pid
    return found


def forwarder(run: Path) -> int:
    """Process id of the cluster's keeper, through which the machine reaches the API server. `run`: as above."""
    python = Path(sys.executable).name
    (keeper,) = (pid for pid in _pids() if _is(pid, python, f"devcluster.keeper\0{run}"))
    return keeper


def machine_seconds() -> float:
    """Processor time that all processors of the machine have worked."""
    _, *ticks = (_PROC / "stat").read_text().splitlines()[0].split()
    user, nice, system, _idle, _iowait, *others = map(int, ticks[:8])
    return (user + nice + system + sum(others)) / _TICKS


def _is(pid: int, program: str, word: str) -> bool:
    try:
        line = (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return False
    return Path(line.split("\0")[0]).name == program and word in line


def _parent(pid: int) -> str:
    try:
        return _stat(pid)[1]
    except OSError:
        return ""


def _pids() -> list[int]:
    return [int(entry.name) for entry in _PROC.glob("[0-9]*")]


def _stat(pid: int) -> list[str]:
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
