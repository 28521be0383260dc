"""Run a command in a container by kubectl, which has the streams that this package lacks."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from rlfleet.errors import Forbidden, NotConfigured, NotFound, RlfleetError, Unavailable

_ERRORS: dict[str, type[RlfleetError]] = {
    "(Forbidden)": Forbidden,
    "(NotFound)": NotFound,
    "Unable to connect to the server": Unavailable,
}
_RIGHT = "; the account needs create on pods/exec"


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended."""

    code: int
    output: str
    errors: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster that the user has named, for kubectl."""

    context: str | None
    kubeconfig: str | None

    def exec(self, namespace: str, pod: str, container: str, command: Sequence[str]) -> Ended:
        """Run a command in a container. Errors: NotConfigured if there is no kubectl."""
        named = {"--kubeconfig": self.kubeconfig, "--context": self.context}
        options = [f"{name}={value}" for name, value in named.items() if value]
        options += [f"--namespace={namespace}", f"--container={container}"]
        return run(["exec", pod, *options, "--", *command])


def run(arguments: Sequence[str]) -> Ended:
    """Run kubectl. Errors: NotConfigured if it is missing."""
    program = shutil.which("kubectl")
    if program is None:
        raise NotConfigured("kubectl is not in PATH, and this command needs it; install kubectl")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)  # noqa: S603 - no shell
    return Ended(done.returncode, done.stdout, done.stderr)


def failure(ended: Ended, pod: str) -> RlfleetError:
    """The error of a command without a result."""
    lines = [line.strip() for line in ended.errors.splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith("command terminated")]
    last = said[-1] if said else f"kubectl ended with code {ended.code} and printed nothing"
    kind = next((e for text, e in _ERRORS.items() if text in last), RlfleetError)
    return kind(f"pod {pod}: {last}{_RIGHT if kind is Forbidden else ''}")
