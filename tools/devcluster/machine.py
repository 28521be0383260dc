"""Finds programs on this machine that cannot be built with Go alone."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
from pathlib import Path

from devcluster.errors import CommandError
from devcluster.gobuild import go_environment
from devcluster.processes import run

_RUNC_AT_LEAST = (1, 2)
_GO_AT_LEAST_FOR_TOOLCHAINS = (1, 21)


def find_program(name: str) -> Path | None:
    """A program on PATH or in the folders for root, which a plain PATH may lack."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])
    found = shutil.which(name, path=path)
    return Path(found) if found else None


@functools.cache
def fitting_runc() -> Path | None:
    """The machine's runc, if it is recent enough and can apply seccomp profiles."""
    runc = find_program("runc")
    if runc is None:
        return None
    try:
        version = re.search(r"runc version (\d+)\.(\d+)", run([runc, "--version"]).stdout)
        features = json.loads(run([runc, "features"]).stdout)
    except (CommandError, ValueError):
        return None
    recent = version is not None and (int(version[1]), int(version[2])) >= _RUNC_AT_LEAST
    seccomp = features.get("linux", {}).get("seccomp", {}).get("enabled", False)
    return runc if recent and seccomp else None


@functools.cache
def fitting_nft() -> Path | None:
    """The machine's nft, if it runs."""
    nft = find_program("nft")
    if nft is None:
        return None
    try:
        run([nft, "--version"])
    except CommandError:
        return None
    return nft


def has_seccomp_headers() -> bool:
    """Whether a C compiler finds libseccomp's header and static library."""
    try:
        library = run(["gcc", "-print-file-name=libseccomp.a"]).stdout.strip()
        run(["gcc", "-E", "-"], stdin="#include <seccomp.h>\n")
    except CommandError:
        return False
    return Path(library).is_absolute()


def available_memory_bytes() -> int:
    """Memory that programs can still use without swapping."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines)
    return int(values["MemAvailable"].split()[0]) * 1024


def go_is_fit(needed: tuple[int, ...]) -> bool:
    """Whether `go` is there and is, or fetches by itself, the version that is needed."""
    try:
        # Even this would write to the user's configuration folder without our environment.
        question = ["go", "env", "GOVERSION", "GOTOOLCHAIN"]
        said = run(question, cwd=Path("/"), environment=go_environment()).stdout.split()
    except CommandError:
        return False
    version = tuple(int(number) for number in re.findall(r"\d+", said[0])[:3])
    fetches = version >= _GO_AT_LEAST_FOR_TOOLCHAINS and not said[1].startswith("local")
    return version >= needed or fetches
