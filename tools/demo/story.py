"""The acts of the demo. Every act ends with a check."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from demo.place import FLEET, CommandError, Place, kubectl
from demo.sampler import Samples
from demo.screen import Screen
from demo.trainer import Outcome, Trainer
from demo.watch import Snapshot

VERSIONS = 5
BETWEEN_SECONDS = 1.5
LIMIT_SECONDS = 120.0


class DemoFailedError(Exception):
    """Something that must hold did not."""


class Story:
    """The acts, in order."""

    def __init__(
        self, place: Place, trainer: Trainer, snapshot: Snapshot, samples: Samples, screen: Screen
    ) -> None:
        self._place = place
        self._trainer = trainer
        self._snapshot = snapshot
        self._samples = samples
        self._screen = screen
        self.pauses: list[float] = []
        self.rollouts = 0
        self.version = 1
        self.good = [1]

    async def tell(self) -> None:
        """Play all acts.

        Errors: DemoFailedError at the first thing that does not hold.
        """
        await self._five_versions()
        await self._truncated_checkpoint()
        await self._killed_worker()
        await self._killed_operator()

    async def _five_versions(self) -> None:
        self._screen.act(f"a trainer publishes {VERSIONS} versions while clients generate")
        for _ in range(VERSIONS):
            await self._publish_good()
            await asyncio.sleep(BETWEEN_SECONDS)

    async def _truncated_checkpoint(self) -> None:
        self._screen.act("the trainer publishes a checkpoint that was cut off")
        good = self._snapshot.applied
        self.version += 1
        bad = str(self.version)
        await asyncio.to_thread(self._trainer.write, self.version, truncated=True)
        outcome = await self._publish(bad)
        self._screen.say(f"Refused, {outcome.refused}: {outcome.message[:160]} …", "red")
        self._must(outcome.refused == "CheckpointTruncated", "the reason is CheckpointTruncated")
        await self._until(lambda: self._snapshot.condition("Stalled") is not None, "Stalled")
        before = self._samples.tokens[good]
        await self._until(lambda: self._samples.tokens[good] > before, f"tokens of {good}")
        self._must(self._samples.tokens[bad] == 0, f"no token was made by version {bad}")
        self._screen.say(f"version {good} keeps serving", "green")
        await self._publish_good()
        self._must(self._snapshot.condition("Stalled") is None, "Stalled is gone")

    async def _killed_worker(self) -> None:
        name = f"{FLEET}-1"
        self._screen.act(f"the engine of {name} is killed")
        worker = self._snapshot.workers[name]
        restarts = worker.restarts
        await asyncio.to_thread(signal_engine, self._place, name, "SIGKILL")
        await self._until(lambda: not worker.admitted, f"{name} is out of service")
        self._screen.say(f"{name} is out of service; the others keep serving", "yellow")
        await self._until(lambda: worker.restarts > restarts, f"{name} starts again")
        self._must(not worker.admitted, f"{name} comes back with its latch closed")
        self._screen.say(f"{name} has come back with its latch closed", "cyan")
        applied = self._snapshot.applied
        await self._until(lambda: worker.admitted, f"{name} is admitted")
        self._must(worker.version == applied, f"{name} is admitted at {applied} only")
        self._screen.say(f"{name} is admitted at version {worker.version}", "green")
        await self._until(self._snapshot.is_ready, "the fleet is ready again")

    async def _killed_operator(self) -> None:
        frozen = f"{FLEET}-0"
        self._screen.act("the operator is killed in the middle of a rollout")
        await asyncio.to_thread(self._trainer.write, self.version + 1)
        await asyncio.to_thread(signal_engine, self._place, frozen, "SIGSTOP")
        try:
            self.version += 1
            self._screen.say(f'>>> weights.publish("{self.version}", wait=False)')
            await asyncio.to_thread(self._trainer.ask, str(self.version))
            others = [w for n, w in self._snapshot.workers.items() if n != frozen]
            # The next operator knows the beginning of a rollout from the status.
            await self._until(
                lambda: self._is_shown() and all(w.phase == "paused" for w in others),
                "the others are paused",
            )
            told = await asyncio.to_thread(self._place.kill_operator)
            self._screen.say(f"{told}, with two workers paused and one that hangs", "red")
        finally:
            await asyncio.to_thread(signal_engine, self._place, frozen, "SIGCONT")
        self._screen.say(">>> weights.wait()")
        outcome = await asyncio.to_thread(self._trainer.wait)
        await self._count_rollout(outcome, "the next operator has finished the rollout")

    async def _publish_good(self) -> None:
        self.version += 1
        await asyncio.to_thread(self._trainer.write, self.version)
        outcome = await self._publish(str(self.version))
        await self._count_rollout(outcome, f"version {self.version} is applied")

    async def _publish(self, version: str) -> Outcome:
        self._screen.say(f'>>> weights.publish("{version}")')
        return await asyncio.to_thread(self._trainer.publish, version)

    async def _count_rollout(self, outcome: Outcome, text: str) -> None:
        self._must(not outcome.refused, f"{text}: {outcome.refused}, {outcome.message}")
        await self._until(self._is_applied, f"version {self.version} is applied")
        self.good.append(self.version)
        self.rollouts += 1
        self.pauses.append(outcome.max_worker_pause_seconds)
        self._screen.say(
            f"{text}: {outcome.total_seconds:.2f} s in all, no worker paused longer than "
            f"{outcome.max_worker_pause_seconds:.3f} s",
            "green",
        )

    def _is_shown(self) -> bool:
        return self._snapshot.weights.get("desiredVersion") == str(self.version)

    def _is_applied(self) -> bool:
        return self._snapshot.desired == str(self.version) and self._snapshot.is_ready()

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        limit = time.monotonic() + LIMIT_SECONDS
        while not holds():
            if time.monotonic() > limit:
                raise DemoFailedError(f"after {LIMIT_SECONDS:.0f} s still not: {what}")
            await asyncio.sleep(0.05)

    @staticmethod
    def _must(holds: object, what: str) -> None:
        if not holds:
            raise DemoFailedError(f"does not hold: {what}")


def signal_engine(place: Place, pod: str, name: str) -> None:
    """Send a signal to the process that holds the engine of a pod. Errors: CommandError without one."""
    done = kubectl(place, "exec", pod, "--", "python3", "-c", _SIGNAL, name)
    if not done.stdout.strip():
        raise CommandError(f"no engine process was found in {pod}")


# Runs in a worker's container: signals the process that holds the engine, and says which it was.
_SIGNAL = """
import os, signal, sys
from pathlib import Path
for entry in Path("/proc").glob("[0-9]*"):
    try:
        line = (entry / "cmdline").read_bytes()
    except OSError:
        continue
    if b"EngineCore" in line and int(entry.name) != os.getpid():
        os.kill(int(entry.name), getattr(signal, sys.argv[1]))
        print(entry.name)
"""
