"""The trainer: a pod of the worker's image, which writes real checkpoints to the shared volume and
publishes them with `rlfleet.Weights`, as a training loop does. It has an account with a trainer's rights.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.place import FLEET, NAMESPACE, TRAINER, WEIGHTS, CommandError, Place, apply, kubectl
from stack.trainer import CODE, trainer_account, trainer_pod
from stack.volumes import CLAIM

_PROGRAM = "trainer_pod.py"


@dataclass(frozen=True)
class Outcome:
    """The end of a call of `rlfleet.Weights`.

    Fields:
        refused: the reason, if it raised `Refused`.
        message: of the refusal.
        total_seconds / max_worker_pause_seconds: of the rollout; zeros without waiting.
    """

    refused: str = ""
    message: str = ""
    total_seconds: float = 0.0
    max_worker_pause_seconds: float = 0.0


class Trainer:
    """Writes checkpoints and publishes them. One call at a time."""

    def __init__(self, place: Place, image: str) -> None:
        here = Path(__file__).parent
        files = {file.name: file.read_text() for file in (here / _PROGRAM, _CHECKPOINTS)}
        volume = {"persistentVolumeClaim": {"claimName": CLAIM}}
        account = trainer_account(TRAINER, [WEIGHTS], FLEET)
        apply(place, [*account, *trainer_pod(TRAINER, image, volume, files)])
        ready = ("wait", "--for=condition=Ready", f"pod/{TRAINER}", "--timeout=120s")
        if kubectl(place, *ready, check=False).returncode:
            events = kubectl(place, "describe", f"pod/{TRAINER}").stdout.partition("Events:")[2]
            raise CommandError(f"the trainer's pod does not start:{events}")
        command = ["kubectl", "-n", NAMESPACE, "exec", "-i", TRAINER, "--", "env"]
        self._shell = subprocess.Popen(
            [*command, f"WEIGHT_VERSION={WEIGHTS}", "python3", f"{CODE}/{_PROGRAM}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=place.environment,
        )

    def write(self, number: int, *, truncated: bool = False) -> None:
        """Write the checkpoint of one step; blocks until it is on the volume."""
        self._ask("truncated" if truncated else "step", str(number))

    def publish(self, version: str) -> Outcome:
        """Ask the fleet for a version, and wait."""
        return Outcome(**self._ask("publish", version))

    def ask(self, version: str) -> None:
        """Ask the fleet for a version without waiting."""
        self._ask("ask", version)

    def wait(self) -> Outcome:
        """Wait for the version of `ask`."""
        return Outcome(**self._ask("wait"))

    def close(self) -> None:
        """End the process in the pod."""
        self._shell.terminate()
        self._shell.wait()

    def _ask(self, *words: str) -> dict[str, Any]:
        assert self._shell.stdin is not None  # noqa: S101 - for the type
        assert self._shell.stdout is not None  # noqa: S101 - for the type
        self._shell.stdin.write(" ".join(words) + "\n")
        self._shell.stdin.flush()
        line = self._shell.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "its process has ended"}
        if "error" in answer:
            raise CommandError(f"the trainer's {' '.join(words)}: {answer['error']}")
        return answer


_CHECKPOINTS = Path(__file__).parent.parent / "checkpoints.py"
