"""The worker's environment without a cluster: writing checkpoints and auditing replies."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import envs

AUDIT_SECONDS = 3 * 3600
"""A million tokens of tiny models take five minutes on one core."""

WRITE_SECONDS = 900
"""A thousand tiny checkpoints take about a minute."""

WRITE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from checkpoints import Shape, write_checkpoint
for target, options in json.load(sys.stdin).items():
    shape = Shape(**options.pop("shape", {}))
    write_checkpoint(target, shape=shape, **options)
"""
"""Writes the checkpoints of standard input. Its argument is the folder of `checkpoints.py`."""


def environment() -> dict[str, str]:
    """Our own package as an image would hold it, and nothing of the caller's settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RLFLEET_", "VLLM_", "HF_"))}
    own = {"PYTHONPATH": str(envs.app_folder()), "PYTHONSAFEPATH": "1", "TZ": "UTC"}
    return kept | own


def as_input(wanted: Mapping[Path, Mapping[str, Any]]) -> str:
    """The standard input of `WRITE`: directory → arguments of `checkpoints.write_checkpoint`."""
    return json.dumps({str(target): dict(options) for target, options in wanted.items()})


def write_checkpoints(wanted: Mapping[Path, Mapping[str, Any]]) -> None:
    """Write tiny checkpoints: directory → arguments of `checkpoints.write_checkpoint`."""
    todo = as_input(wanted)
    command = [str(envs.interpreter_of("worker")), "-c", WRITE, str(envs.REPOSITORY / "tools")]
    # By standard input: one argument holds 128 KiB at most, which is about 1,600 checkpoints.
    subprocess.run(
        command, input=todo, text=True, check=True, timeout=WRITE_SECONDS, env=environment()
    )


def audit(
    file: Path,
    checkpoints: Mapping[str, Path],
    adapters: Mapping[str, Path] | None = None,
    model: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Audit a file of replies. Both maps: `[run/]version` → directory, in the order of the run.

    `model`: the fleet's model, to whose types workers cast tensors.
    """
    named = [f"{version}={directory}" for version, directory in checkpoints.items()]
    if adapters:
        named += ["--adapters", *(f"{v}={directory}" for v, directory in adapters.items())]
    if model is not None:
        named += ["--against", str(model)]
    python = str(envs.interpreter_of("worker"))
    return subprocess.run(
        [python, "-m", "fleet_worker", "audit", str(file), "--checkpoints", *named],
        capture_output=True,
        text=True,
        check=False,
        timeout=AUDIT_SECONDS,
        env=environment(),
    )
