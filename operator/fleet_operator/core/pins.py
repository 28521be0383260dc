"""Pins: the digest that each version of a run has stood for since the fleet first saw it.

A path can be rewritten, a WeightVersion deleted and made again, a model's directory replaced. So the
first digest that a worker reports for a version of a run is written down in the fleet's status, and
from then on that version means these bytes: workers stage them, start on them, and are opened on
nothing else.

The pin comes first. No worker is asked to load, to apply, to resume or to admit weights before the
pin is stored: an operator that dies in between leaves either no token or a pin. It costs one write of
the status in a rollout, while the workers pause or stage.

External fleets have no pins: a trainer names directories, not runs, and may count from 0 again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from fleet_operator.api.fleet import MAX_PINNED, PinnedWeights, Rollout
from fleet_operator.api.source import WeightSource, from_protocol
from fleet_operator.api.weights import RolloutPhase
from fleet_operator.core import calls
from fleet_operator.core.actions import Admit, Apply, Load, Pause, Quarantine, Resume, WorkerCall
from fleet_operator.core.identity import Named
from fleet_operator.core.observed import FleetObserved, Standing, Target, WorkerView
from fleet_operator.core.step import Step

_Key = tuple[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """What versions stand for.

    Fields:
        entries: newest first, at most 100; those that are in use stay.
        stored: digests by version and run, as far as they are known to be stored.
    """

    entries: tuple[PinnedWeights, ...] = ()
    stored: Mapping[_Key, str]

    def of(self, weights: Named) -> PinnedWeights | None:
        """The pin of a version of a run, if it has one."""
        key = (weights.version, weights.run_id)
        return next((e for e in self.entries if (e.version, e.run_id) == key), None)

    def resolved(self, target: Target) -> Target:
        """The target with the pinned digest, and with the commit that its revision stood for."""
        pin = self.of(target)
        if pin is None:
            return target
        found = replace(target, source=_committed(target.source, pin))
        return found if target.digest else replace(found, digest=pin.digest, pinned=True)

    def gate(self, step: Step, held: Collection[WorkerView]) -> tuple[Step, bool]:
        """The step without calls that would load or open weights before their pin is stored, or
        that are not the pinned ones. Nor are workers paused for weights whose pin is not stored:
        they would hold their requests for as long as the API server cannot be written to.

        Args:
            step: What the strategy asks for.
            held: Members that hold their requests already; their pauses are renewed.

        Returns: the step, and whether it waits for a pin to be stored.
        """
        uids = {w.pod.uid for w in held}
        kept: list[WorkerCall | Quarantine] = []
        waits = False
        for action in step.actions:
            named: Named | None = None
            if isinstance(action, Load | Apply | Resume | Admit):
                named = action
            elif isinstance(action, Pause) and action.pod_uid not in uids:
                named = step.goal
            pin = self.of(named) if named is not None else None
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

    def expel_others(self, step: Step, members: Iterable[WorkerView], how: Rollout) -> Step:
        """The step, with members closed that have other bytes than the pin of their version."""
        pinned = {(e.version, e.run_id): e.digest for e in self.entries}
        others = {}
        for member in members:
            loaded = member.loaded
            if loaded is None or loaded.digest is None:
                continue
            if pinned.get((loaded.version, loaded.run_id), loaded.digest) != loaded.digest:
                others[member.pod.uid] = member
        if not others:
            return step
        reason = "it has other bytes than those that its version stands for"
        expelled = (
            calls.set_apart(m, how, reason=reason)
            if m.standing is Standing.OPEN
            else calls.expel(m, reason=reason)
            for m in others.values()
            if not m.operation.startswith("fence")
        )
        kept = (a for a in step.actions if getattr(a, "pod_uid", "") not in others)
        return replace(step, actions=(*kept, *expelled))


def pins_of(observed: FleetObserved, wanted: Target | None) -> Pins:
    """The pins of a fleet, with those that its workers' reports add now. `wanted`: as asked for."""
    stored = observed.status.pinned if observed.stored_pins is None else observed.stored_pins
    digests = {(e.version, e.run_id): e.digest for e in stored}
    if observed.is_external:
        return Pins(stored=digests)
    model = observed.spec.model
    used = [Target(version=model.version, source=model.source)]
    if observed.status.applied is not None:
        used.append(Target.recorded(observed.status.applied))
    if wanted is not None:
        used.append(wanted)
    known = {(e.version, e.run_id) for e in observed.status.pinned}
    asked: dict[_Key, Target] = {}
    for target in used:
        if (target.version, target.run_id) not in known:
            asked.setdefault((target.version, target.run_id), target)
    added = _first_reports(observed.workers, asked) if asked else ()
    if not added:
        return Pins(entries=observed.status.pinned, stored=digests)
    entries = (*added, *observed.status.pinned)
    kept = {(t.version, t.run_id) for t in used}
    return Pins(entries=_bounded(entries, kept), stored=digests)


def _first_reports(
    workers: Iterable[WorkerView], asked: Mapping[_Key, Target]
) -> tuple[PinnedWeights, ...]:
    """What workers report of versions that have no pin yet. What most of those that serve have counts
    more than what one has staged.
    """
    votes: dict[_Key, Counter[str]] = {}
    commits: dict[_Key, str] = {}
    many = 1_000_000
    for worker in workers:
        state = worker.state
        if state is None:
            continue
        loaded, staged = worker.loaded, worker.staged
        reports = [
            (loaded, state.source, many if worker.standing is Standing.OPEN else 1),
            (staged, state.staged.source if state.staged else None, 1),
        ]
        for weights, source, weight in reports:
            if weights is None or weights.digest is None or weights[:2] not in asked:
                continue
            votes.setdefault(weights[:2], Counter())[weights.digest] += weight
            if source is not None and source.hugging_face is not None:
                commits.setdefault(weights[:2], from_protocol(source).revision or "")
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
    """The source, with the commit in place of a revision that may move."""
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
