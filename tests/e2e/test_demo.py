"""The demo is a test of its own: it ends with 0 only if everything it shows held."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from devcluster import preflight

pytestmark = pytest.mark.long


def test_the_demo_shows_what_it_promises():
    found = preflight.problems("node")
    if found and not os.environ.get("CI"):
        pytest.skip(preflight.describe(found))
    command = [sys.executable, "-m", "demo", "--id", f"demo-{os.getpid()}"]

    done = subprocess.run(command, capture_output=True, text=True, timeout=550, check=False)

    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-4000:]
    assert '>>> weights.publish("2")' in done.stdout, "its trainer imports the client"
    assert "Refused, CheckpointTruncated" in done.stdout
    assert "Everything held." in done.stdout
    assert " 0 lost," in done.stdout
