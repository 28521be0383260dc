"""Pins: the digest of each version of a run, recorded when the fleet first sees the version.

A path can be rewritten, a WeightVersion recreated, the directory of a model replaced. So the status of
the fleet records the first digest that a worker reports for a version of a run. From then on the
version means these bytes: workers stage them, start on them, and are admitted only with them.

The pin is stored first. No worker loads, applies, resumes or is admitted before its pin is stored: an
operator that dies in between leaves either no token or a pin. This costs one write of the status in
a rollout, while the workers pause or stage.

External fleets have no pins: a trainer names directories, not runs, and may start from 0 again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from fleet_operator.api.fleet import Rollout
from fleet_operator.api.fleet_status import MAX_PINNED, PinnedWeights
from fleet_operator.api.source import WeightSource
from fleet_operator.api.weights import RolloutPhase
from fleet_operator.core import worker_calls
from fleet_operator.core.actions import Admit, Apply, Load, Pause, Quarantine, Resume, WorkerCall
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.facts import Facts, Workers
from fleet_operator.core.identity import Named
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.precedence import called_only_by
from fleet_operator.core.strategies.base import Step
from fleet_operator.core.worker_view import Standing, WorkerView

_Key = tuple[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """The pins of a fleet.

    Fields:
        entries: newest first, at most 100; pins in use stay.
        stored: digests by version and run that are known to be stored in the status.
    """

    entries: tuple[PinnedWeights, ...] = ()
    stored: Mapping[_Key, str]

    def of(self, weights: Named) -> PinnedWeights | None:
        """The pin of a version of a run; None if it has none."""
        key = (weights.version, weights.run_id)
        return next((e for e in self.entries if (e.version, e.run_id) == key), None)

    def resolved(self, target: Checkpoint) -> Checkpoint:
        """The target with the pinned digest, and with the commit of its revision."""
        pin = self.of(target)
        if pin is None:
            return target
        found = replace(target, source=_committed(target.source, pin))
        return found if target.digest else replace(found, digest=pin.digest, pinned=True)

    def gate(self, step: Step, held: Collection[WorkerView]) -> tuple[Step, bool]:
        """The step without calls for weights whose pin is not stored, or that differ from their pin.

        Pauses wait for the pin, too: otherwise workers would stay paused for as long as the API
        server accepts no write.

        Args:
            step: The step of the strategy.
            held: Members that are paused already; their pauses are renewed.

        Returns: the step, and whether it waits for a pin to be stored.
        """
        uids = {w.pod.uid for w in held}
        pins = {(e.version, e.run_id): e for e in reversed(self.entries)}  # the newest counts
        kept: list[WorkerCall | Quarantine] = []
        waits = False
        for action in step.actions:
            named: Named | None = None
            if isinstance(action, Load | Apply | Resume | Admit):
                named = action
            elif isinstance(action, Pause) and action.pod_uid not in uids:
                named = step.goal
            pin = pins.get((named.version, named.run_id)) if named is not None else None
            if named is None or pin is None:
                kept.append(action)
            elif named.digest in {None, pin.digest}:
                stored = self.stored.get((pin.version, pin.run_id)) == pin.digest
                waits = waits or not stored
                kept += [action] if stored else []
        if len(kept) == len(step.actions):
            return step, waits
        early = waits and step.phase is RolloutPhase.PAUSING and not held
        phase = RolloutPhase.STAGING if early else step.phase
        return replace(step, actions=tuple(kept), phase=phase), waits

    def expel_others(self, step: Step, members: Workers, how: Rollout) -> Step:
        """The step, with calls that close members whose digest differs from the pin of their version."""
        pinned = {(e.version, e.run_id): e.digest for e in self.entries}

        def differs(worker: Facts) -> bool:
            loaded = worker.loaded
            if loaded is None or loaded.digest is None:
                return False
            return pinned.get((loaded.version, loaded.run_id), loaded.digest) != loaded.digest

        others = {m.pod.uid: m for m in members.where(differs)}
        if not others:
            return step
        reason = "the digest of its weights differs from the pin of their version"
        expelled = (
            worker_calls.drain_out_of_service(m, how, reason=reason)
            for m in others.values()
            if not m.is_doing("fence")
        )
        return replace(step, actions=called_only_by(others, expelled, step.actions))


def pins_of(observed: FleetObserved, wanted: Checkpoint | None) -> Pins:
    """The pins of a fleet, with new ones from the reports of its workers. `wanted`: the desired weights."""
    stored = observed.status.pinned if observed.stored_pins is None else observed.stored_pins
    digests = {(e.version, e.run_id): e.digest for e in stored}
    if observed.is_external:
        return Pins(stored=digests)
    model = observed.spec.model
    used = [Checkpoint(version=model.version, source=model.source)]
    if observed.status.applied is not None:
        used.append(Checkpoint.recorded(observed.status.applied))
    if wanted is not None:
        used.append(wanted)
    known = {(e.version, e.run_id) for e in observed.status.pinned}
    asked: dict[_Key, Checkpoint] = {}
    for target in used:
        if (target.version, target.run_id) not in known:
            asked.setdefault((target.version, target.run_id), target)
    added = _first_reports(observed.workers, asked) if asked else ()
    if not added:
        return Pins(entries=observed.status.pinned, stored=digests)
    entries = (*added, *observed.status.pinned)
    kept = {(t.version, t.run_id) for t in used}
    return Pins(entries=_bounded(entries, kept), stored=digests)


def _first_reports(workers: Workers, asked: Mapping[_Key, Checkpoint]) -> tuple[PinnedWeights, ...]:
    """New pins of versions that have none, from the reports of workers.

    The digest that most open workers serve wins over one that is only staged.
    """
    votes: dict[_Key, Counter[str]] = {}
    commits: dict[_Key, str] = {}
    many = 1_000_000
    for worker, number in workers.kinds.items():
        loaded_from, staged_from = worker.sources
        reports = [
            (worker.loaded, loaded_from, many if worker.standing is Standing.OPEN else 1),
            (worker.staged, staged_from, 1),
        ]
        for weights, source, weight in reports:
            if weights is None or weights.digest is None or weights[:2] not in asked:
                continue
            votes.setdefault(weights[:2], Counter())[weights.digest] += number * weight
            _, repository = source or (None, None)
            if repository is not None:
                commits.setdefault(weights[:2], repository.revision)
    return tuple(
        PinnedWeights(
            version=key[0],
            run_id=key[1],
            digest=counted.most_common(1)[0][0],
            source=asked[key].source,
            commit=_other_revision(asked[key].source, commits.get(key, "")),
        )
        for key, counted in votes.items()
    )


def _other_revision(source: WeightSource, reported: str) -> str:
    return reported if source.revision not in {None, reported} else ""


def _committed(source: WeightSource, pin: PinnedWeights) -> WeightSource:
    """The source with the pinned commit instead of a revision that may move, such as a branch."""
    repository = source.hugging_face
    if not pin.commit or repository is None or source != pin.source:
        return source
    return WeightSource(hugging_face=repository.model_copy(update={"revision": pin.commit}))


def _bounded(entries: tuple[PinnedWeights, ...], kept: set[_Key]) -> tuple[PinnedWeights, ...]:
    room = MAX_PINNED - sum((e.version, e.run_id) in kept for e in entries)
    found = []
    for entry in entries:
        if (entry.version, entry.run_id) in kept:
            found.append(entry)
        elif room > 0:
            found.append(entry)
            room -= 1
    return tuple(found)
