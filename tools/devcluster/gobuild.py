"""Builds one part with Go, keeping everything that Go writes below the cache folder."""

from __future__ import annotations

import os
import selectors
import shutil
import subprocess
from collections import deque
from pathlib import Path

from devcluster.errors import BuildError
from devcluster.parts import Part
from devcluster.paths import cache_folder
from devcluster.processes import kill_group
from devcluster.progress import Progress

_LAST_LINES = 25


def go_folder() -> Path:
    """Go's module and build caches: about 6 GB after a build, removed when it succeeded."""
    return cache_folder() / "go"


def go_environment() -> dict[str, str]:
    """The environment of every `go` command here.

    The user's settings of proxies and checksums (GOPROXY, GOFLAGS, GONOSUMDB, …) stay as they are.
    """
    folder = go_folder()
    for name in ("mod", "build", "tmp", "telemetry"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    unwanted = {"GOOS", "GOARCH", "GOBIN"}
    environment = {key: value for key, value in os.environ.items() if key not in unwanted}
    return environment | {
        "GOPATH": str(folder),
        "GOMODCACHE": str(folder / "mod"),
        "GOCACHE": str(folder / "build"),
        "GOTMPDIR": str(folder / "tmp"),
        # Go counts its own use in the user's configuration folder; this is the only variable that
        # moves the counters without also hiding the user's `go env -w` settings.
        "TEST_TELEMETRY_DIR": str(folder / "telemetry"),
        "GOWORK": "off",
    }


def build(
    part: Part,
    target: Path,
    progress: Progress,
    *,
    keep_open: int,
    extra_environment: dict[str, str] | None = None,
) -> None:
    """Build the part's programs into the existing folder `target`.

    `keep_open` is the descriptor of the build lock. Go inherits it, so that the lock outlives a
    builder that was killed while its `go build` still writes to the caches.

    Errors:
        BuildError: with the last lines Go said.
    """
    environment = go_environment() | {"CGO_ENABLED": "1" if part.cgo else "0"}
    command = ["go", "build", "-v", "-modcacherw", "-trimpath", f"-ldflags={' '.join(part.link)}"]
    if part.tags:
        command.append(f"-tags={','.join(part.tags)}")
    output = target if not part.names else target / part.name
    command += ["-o", f"{output}{'/' if output is target else ''}", *part.packages]
    process = subprocess.Popen(
        command,
        cwd=part.module,
        env=environment | (extra_environment or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=(keep_open,),
        start_new_session=True,
    )
    try:
        last_lines = _follow(process, part, progress)
        code = process.wait()
    except BaseException:
        kill_group(process)
        raise
    if code != 0:
        said = "\n".join(f"  {line}" for line in last_lines)
        raise BuildError(
            f"go build of {part.name} failed:\n{said}",
            remedy="Go fetches its modules as GOPROXY says (`go env GOPROXY`); a build that was "
            "interrupted continues where it stopped",
        )
    for name in part.names:
        (target / name).symlink_to(part.name)


def _follow(process: subprocess.Popen[bytes], part: Part, progress: Progress) -> deque[str]:
    """Show what Go does until it closes its output; the last lines, for the error."""
    assert process.stdout is not None  # noqa: S101 - for the type checker; stdout is a pipe
    lines: deque[str] = deque(maxlen=_LAST_LINES)
    fetched = compiled = 0
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if selector.select(timeout=1.0):
                chunk = os.read(process.stdout.fileno(), 65536)
                if not chunk:
                    process.stdout.close()
                    return lines
                *whole, pending = (pending + chunk).split(b"\n")
                for raw in whole:
                    line = raw.decode(errors="replace")
                    lines.append(line)
                    fetched += line.startswith("go: downloading ")
                    compiled += " " not in line
            doing = f"{fetched} modules fetched, {compiled} packages compiled"
            progress.update(f"building {part.name}: {doing}")


def remove_go_caches() -> None:
    """Give the 6 GB back, unless the user wants to keep them for the next change of a pin."""
    if os.environ.get("RLFLEET_KEEP_GO_CACHE") != "1":
        shutil.rmtree(go_folder(), ignore_errors=True)
