"""Makes an environment in which the newest declared vLLM runs without a GPU.

    python3 tools/vllm_next.py    print the environment's interpreter, make it first

No build of it for CPUs exists. So its Python files, from the wheel that `requirements/vllm-next.txt` pins, get the
kernels and all other files of the vLLM for CPUs that `requirements/worker.txt` pins. That works as long as the two
agree on the kernels' parameters. All other packages are those of the worker's environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from envs import cache_folder, interpreter_of
from vllm_names import pinned, sources

CHOICE = "RLFLEET_VLLM"
"""The variable that makes tests use it, with the value `next`."""
_METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"
"""vLLM takes the platform of CPUs from the version."""


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
