"""A chronicle is the lines of one fleet: each action, its reason, and the states of the workers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from tests.model.simulator import Entry, Simulation

from fleet_worker.protocol import Phase

Story = Callable[[], "Chronicle"]


class Chronicle:
    """A fleet that is settled on version 1, and what happens to it from now on."""

    def __init__(self, **given: object) -> None:
        self.fleet = Simulation(seed=1, **given)
        self.fleet.shuffles = False
        self.fleet.settle()
        self.fleet.log.clear()
        self.began = self.fleet.now
        self.shown = self._standings()

    def go(self, steps: int, *, seconds: float = 1.0) -> None:
        """The operator reconciles this number of times, with some time in between."""
        for _ in range(steps):
            self.fleet.reconcile()
            self.show()
            self.fleet.tick(seconds)
            self.show()

    def until(self, condition: Callable[[], object], *, seconds: float = 0.1) -> None:
        """Continue until a condition holds."""
        for _ in range(200):
            if condition():
                return
            self.go(1, seconds=seconds)
        raise AssertionError(f"the condition was never met\n{self.fleet.story()}")

    def end(self) -> Chronicle:
        """End the faults and let the fleet converge."""
        self.fleet.mend()
        self.until(lambda: self.fleet.converged() and not self.fleet.leader.todo, seconds=1.0)
        return self

    def all_are(self, phase: Phase) -> bool:
        return all(w.phase is phase for w in self.fleet.workers.values())

    def holds_staged(self, adapter: str, version: str) -> bool:
        """Whether all workers hold a version of an adapter that they do not serve."""
        held = (w.staged_adapters.get(adapter) for w in self.fleet.workers.values())
        return all(h is not None and h.version == version for h in held)

    def lines(self) -> Iterator[str]:
        """The story; one line for the same action on several workers for one reason."""
        alike = itertools.groupby(self.fleet.log, key=_likeness)
        for _, group in alike:
            entries = list(group)
            first = entries[0]
            what, _, whom = first.what.partition(" on policy-")
            if whom:
                what += f" on {', '.join('policy-' + e.what.rpartition('-')[2] for e in entries)}"
            why = f": {first.why}" if first.why else ""
            yield f"{first.at - self.began:8.2f}  {first.who:<9} {what}{why}"

    def show(self) -> None:
        """Log the states of the workers that have changed."""
        standings = self._standings()
        changed = [now for name, now in standings.items() if self.shown.get(name) != now]
        gone = [f"{name} is gone" for name in self.shown if name not in standings]
        if changed or gone:
            self.fleet.note("", "    " + " · ".join([*changed, *gone]))
        self.shown = standings

    def _standings(self) -> dict[str, str]:
        standings = {}
        for pod in sorted(self.fleet.pods.values(), key=lambda p: p.ordinal):
            worker = pod.worker
            words = [pod.name, str(worker.phase)]
            words += [str(worker.label)] if worker.phase is not Phase.STARTING else []
            words += [f"(holds {worker.staged})"] if worker.staged else []
            words += ["(hangs)"] if worker.hung else []
            words += ["(going)"] if pod.deleted_at is not None else []
            words += ["(quarantined)"] if pod.quarantine else []
            standings[pod.name] = " ".join(words)
        return standings


def _likeness(entry: Entry) -> tuple[object, ...]:
    what, on, _ = entry.what.partition(" on policy-")
    apart = None if on else entry.what
    return (entry.who, round(entry.at, 2), what, entry.why, apart)


def text_of(story: Story) -> str:
    """One story as text: its title and its lines."""
    assert story.__doc__
    return "\n".join([story.__doc__, "", *story().lines(), ""])
