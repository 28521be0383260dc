"""Makes an environment in which the newest declared vLLM runs without a GPU.

    python3 tools/vllm_next.py    print the environment's interpreter, make it first

No build of it for CPUs exists. So its Python files, from the wheel that `requirements/vllm-next.txt` pins, get the
kernels and all other files of the vLLM for CPUs that `requirements/worker.txt` pins. That works as long as the two
agree on the kernels' parameters. All other packages are those of the worker's environment.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from envs import REQUIREMENTS, cache_folder, interpreter_of, pip

PINS = REQUIREMENTS / "vllm-next.txt"
PLATFORM = ("--platform=manylinux_2_28_x86_64", "--python-version=3.11")
_METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"
"""vLLM takes the platform of CPUs from the version."""


def pinned() -> tuple[str, str]:
    """The package, e.g. `vllm==0.33.0`, and the SHA-256 of its wheel."""
    text = PINS.read_text()
    requirement = re.search(r"^(vllm==\S+)", text, re.MULTILINE)
    digest = re.search(r"--hash=sha256:([0-9a-f]{64})", text)
    if requirement is None or digest is None:
        sys.exit(f"vllm_next: {PINS} pins no wheel")
    return requirement[1], digest[1]


def sources() -> Path:
    """Folder with the Python files of the pinned package; fetches its wheel once (336 MB)."""
    requirement, digest = pinned()
    folder = cache_folder() / "sources" / f"{requirement.replace('==', '-')}-{digest[:12]}"
    if folder.exists():
        return folder
    wheels = folder.with_suffix(".wheel")
    shutil.rmtree(wheels, ignore_errors=True)
    command = [*pip(), "download", "-q", "--no-deps", "--no-cache-dir", "--require-hashes"]
    command += ["--only-binary=:all:", *PLATFORM, "-r", str(PINS), "-d", str(wheels)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    (wheel,) = wheels.glob("*.whl")
    with wheel.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != digest:
            sys.exit(f"vllm_next: {wheel.name} is not the wheel that {PINS} pins")
    with zipfile.ZipFile(wheel) as archive:
        python = [name for name in archive.namelist() if name.endswith(".py")]
        archive.extractall(wheels / "sources", python)
    (wheels / "sources").rename(folder)
    shutil.rmtree(wheels)
    return folder


def interpreter() -> Path:
    """Path of the environment's interpreter, making the environment first if need be."""
    worker = interpreter_of("worker")
    folder = cache_folder() / "env" / f"vllm-next-{pinned()[1][:12]}-{worker.parents[1].name}"
    if not folder.exists():
        made = folder.with_suffix(f".{os.getpid()}")
        _make(made, worker)
        try:
            made.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(made)
    return folder / "bin" / "python"


def _make(folder: Path, worker: Path) -> None:
    subprocess.run([worker, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = (folder / "lib").glob("python3*/site-packages")
    (older,) = (worker.parents[1] / "lib").glob("python3*/site-packages")
    shutil.copytree(sources() / "vllm", packages / "vllm")
    for file in (older / "vllm").rglob("*"):
        target = packages / file.relative_to(older)
        if file.is_file() and file.suffix not in {".py", ".pyc"} and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)
    version = pinned()[0].partition("==")[2]
    metadata = packages / f"vllm-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(_METADATA.format(version=version))
    (packages / "worker.pth").write_text(f"{older}\n")  # its packages come after these
    compiled: list[str | Path] = [worker, "-m", "compileall", "-q", "-j2", packages / "vllm"]
    # A file of another Python may not compile.
    subprocess.run(compiled, check=False, stdout=sys.stderr)


if __name__ == "__main__":
    print(interpreter())
