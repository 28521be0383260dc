"""The pods of trainers in the demo and the tests have all that the client imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from stack.trainer import client_packages


def test_a_trainers_pod_imports_the_client_from_what_it_gets(tmp_path: Path) -> None:
    archive = tmp_path / "rlfleet.zip"
    archive.write_bytes(client_packages())
    program = (
        f"import sys; sys.path.insert(0, {str(archive)!r}); import rlfleet; print(rlfleet.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"PYTHONSAFEPATH": "1"},
    )
    assert done.stdout.startswith(str(archive)), done.stderr
