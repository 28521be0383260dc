"""Make the Python environments that the project runs in, from the pinned requirement files.

    python3 tools/envs.py dev|operator|worker|…   print the environment's interpreter, make it first
    python3 tools/envs.py app                     print the folder with our own unpacked wheel
    python3 tools/envs.py lock                    pin the requirement files anew

Environments are in the cache folder, one per content of its requirement file. A change of pins makes a
new one, and an unchanged one is ready at once. An environment without the marker, which is written last,
is deleted and made again.

Standard library only: this runs on whatever Python the machine has.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
REQUIREMENTS = REPOSITORY / "requirements"
UV_VERSION = "0.13.8"
SUPPORTED_PYTHONS = (
    "/usr/bin/python3.11",
    "python3.11",
    "/usr/bin/python3.12",
    "python3.12",
    "python3",
)
ENVIRONMENTS = {
    "dev": "operator and test tools",
    "operator": "what the operator's image holds",
    "worker": "vLLM for CPU; about 6 GB on disk",
    "clients": "trainers' clients of today, for the conformance tests",
    "clients-legacy": "the same of the generation before",
    "trainers": "trainers' packages without their dependencies; with vLLM their HTTP clients run",
    "recipes": "trainers whose parsers read the recipes of examples/; about 600 MB on disk",
    "router": "the router that fleets can have in front of them",
    "fuzz": "what makes requests from the RL API's OpenAPI document",
    "lua": "a Lua interpreter for the health scripts of Argo CD",
    "docs": "what builds the site of docs/",
    "browser": "what drives chromium through the site",
    "dashboards": "what writes the chart's dashboards",
    "workflows": "what audits the workflows of .github",
    "sbom": "what lists the packages of the images for a release",
    "profile": "what draws flame graphs of the operator",
}


def cache_folder() -> Path:
    """The one folder outside the repository that anything here writes to."""
    if named := os.environ.get("RLFLEET_CACHE"):
        return Path(named).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().resolve() / "rlfleet"


def interpreter_of(name: str) -> Path:
    """Path of the environment's interpreter, making the environment first if need be."""
    requirements = REQUIREMENTS / f"{name}.txt"
    base = _base_python()
    key = hashlib.sha256(requirements.read_bytes() + base.encode()).hexdigest()[:12]
    folder = cache_folder() / "env" / f"{name}-{key}"
    with _lock(folder):
        if not (folder / ".ready").exists():
            _make(name, folder, requirements, base)
    return folder / "bin" / "python"


def app_folder() -> Path:
    """Folder with our own wheels, unpacked: what an image holds, with the metadata of its plugins.

    Built again when a source file changed. hatchling takes about a second.
    """
    python = interpreter_of("dev")
    sources = [REPOSITORY / "pyproject.toml", REPOSITORY / "client/pyproject.toml"]
    packages = [f"operator/fleet_{name}" for name in ("api", "collector", "operator")]
    packages.append("worker/fleet_worker")
    for root in (*packages, "client/rlfleet", "client/rlfleet_resources"):
        sources += [f for f in (REPOSITORY / root).rglob("*") if f.suffix != ".pyc" and f.is_file()]
    digest = hashlib.sha256()
    for source in sorted(sources):
        digest.update(str(source.relative_to(REPOSITORY)).encode() + source.read_bytes())
    key = digest.hexdigest()[:12]
    folder = REPOSITORY / "build" / f"app-{key}"
    with _lock(folder):
        if not folder.exists():
            _say("building our wheels")
            wheels = folder.with_suffix(".wheel")
            shutil.rmtree(wheels, ignore_errors=True)
            build: list[str | Path] = [
                python,
                "-m",
                "hatchling",
                "build",
                "-t",
                "wheel",
                "-d",
                wheels,
            ]
            for project in (REPOSITORY, REPOSITORY / "client"):
                _run(build, cwd=project)
            for wheel in wheels.glob("*.whl"):
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(wheels / "app")
            for old in folder.parent.glob("app-*"):
                if old.is_dir() and old not in (folder, wheels) and _older_than(old, seconds=3600):
                    shutil.rmtree(old, ignore_errors=True)
            (wheels / "app").rename(folder)
            shutil.rmtree(wheels)
    return folder


def lock() -> None:
    """Write the requirement files from pyproject.toml, with hashes and without addresses."""
    uv = _uv()
    overrides = REQUIREMENTS / "worker-overrides.txt"
    constraints = REQUIREMENTS / "worker-constraints.txt"
    common = ["--python-version", "3.11", "--generate-hashes", "--no-header", "--no-emit-index-url"]
    project: list[str | Path] = ["pyproject.toml"]  # and what it needs itself
    chosen: dict[str, list[str | Path]] = {
        "build": ["--group", "build"],
        "operator": [*project, "--extra", "operator", "--extra", "tracing"],
        "dev": [*project, "--extra", "operator", "--extra", "tracing", "--group", "dev"],
        "worker": [*project, "--extra", "worker-cpu", "--override", overrides],
        # The image for GPUs holds these. They are not an environment of this file.
        "worker-cuda": [*project, "--extra", "worker", "--constraint", constraints],
        "clients": [*project, "--group", "clients"],
        "clients-legacy": [*project, "--group", "clients-legacy"],
        "trainers": ["--no-deps", "--group", "trainers"],
        "recipes": ["--no-deps", "--group", "recipes"],
        "router": ["--group", "router"],
        "fuzz": ["--group", "fuzz"],
        "lua": ["--group", "lua"],
        "docs": ["--group", "docs"],
        "browser": ["--group", "browser"],
        "dashboards": ["--group", "dashboards"],
        "workflows": ["--group", "workflows"],
        "sbom": ["--group", "sbom"],
        "profile": ["--group", "profile"],
    }
    for name, arguments in chosen.items():
        target = REQUIREMENTS / f"{name}.txt"
        _run([uv, "pip", "compile", "-q", *common, *arguments, "-o", target])


def _make(name: str, folder: Path, requirements: Path, base: str) -> None:
    _say(f"making the {name} environment ({ENVIRONMENTS[name]}); this is done once")
    started = time.monotonic()
    uv = _uv()
    shutil.rmtree(folder, ignore_errors=True)
    _run([uv, "venv", "-q", "--python", base, folder])
    python = folder / "bin" / "python"
    # Bytecode is compiled here, once: without it every start of vLLM takes 20 s longer, and
    # containers see the folder read-only.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    sync = [str(uv), "pip", "sync", "-q", "--python", str(python), "--require-hashes"]
    _run([*sync, "--compile-bytecode", requirements], environment)
    (folder / ".ready").touch()
    _say(f"the {name} environment is ready after {time.monotonic() - started:.0f} s")


def pip() -> list[str]:
    """The command of a pip: that of the environment that uv comes from."""
    return [str(_uv().parent / "python"), "-m", "pip"]


def _uv() -> Path:
    """The uv program at our version, from its wheel in an environment of its own."""
    folder = cache_folder() / f"uv-{UV_VERSION}"
    with _lock(folder):
        if not (folder / ".ready").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _run([_base_python(), "-m", "venv", folder])
            pip = [str(folder / "bin" / "python"), "-m", "pip"]
            _run([*pip, "install", "-q", "--no-cache-dir", f"uv=={UV_VERSION}"])
            (folder / ".ready").touch()
    return folder / "bin" / "uv"


def _base_python() -> str:
    """The real path of a Python that fits, so that containers can be given its folder.

    The distribution's comes before a version manager's of the same version. Like the one of the
    images it is built with profile-guided optimization, and makes decisions 1.2 times as fast.
    """
    named = os.environ.get("RLFLEET_PYTHON")
    # On Debian, venv makes no environment without the package python3-venv, which has ensurepip.
    probe = "import sys, ensurepip; print(sys.executable if sys.version_info >= (3, 11) else '')"
    for candidate in (named,) if named else SUPPORTED_PYTHONS:
        found = shutil.which(str(candidate))
        if found is None:
            continue
        # Through the interpreter itself: what `which` finds may be a version manager's script.
        answer = subprocess.run([found, "-c", probe], capture_output=True, text=True, check=False)
        if answer.returncode == 0 and answer.stdout.strip():
            return str(Path(answer.stdout.strip()).resolve())
    sys.exit(
        "envs: no Python of version 3.11 or newer with the venv module was found. Install one "
        "(Debian: python3 python3-venv) or name one with RLFLEET_PYTHON=/path/to/python3."
    )


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Two runs at once must not make the same folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _older_than(folder: Path, *, seconds: float) -> bool:
    return time.time() - folder.stat().st_mtime > seconds


def _run(
    command: Sequence[str | Path],
    environment: dict[str, str] | None = None,
    *,
    cwd: Path = REPOSITORY,
) -> None:
    environment = dict(environment or os.environ) | {"UV_CACHE_DIR": str(cache_folder() / "uv")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        sys.exit(f"envs: failed with exit code {done.returncode}: {' '.join(map(str, command))}")


def _say(text: str) -> None:
    print(f"envs: {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Read the command line and print the requested path."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=[*ENVIRONMENTS, "app", "lock"])
    what = parser.parse_args().what
    if what == "lock":
        lock()
    elif what == "app":
        print(app_folder())
    else:
        print(interpreter_of(what))


if __name__ == "__main__":
    main()
