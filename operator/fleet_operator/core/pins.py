"""Pins: the digest of each version of a run, recorded when the fleet first sees the version.

A path can be rewritten, a WeightVersion recreated, the directory of a model replaced. So the status of
the fleet records the first digest that a worker reports for a version of a run. From then on the
version means these bytes: workers stage them, start on them, and are admitted only with them.

A record of applied weights names the pinned digest, too. It stays where the pin is lost: an adapter's record is
in another object, which a former leader may still write after the pin was dropped. So a recorded version gets its
pin from the record, whatever workers report.

The pin is stored first. No worker loads, applies, resumes or is admitted before its pin is stored: an
operator that dies in between leaves either no token or a pin. This costs one write of the status in
a rollout, while the workers pause or stage.

Each adapter has pins of its own, by the same rules (`lora_pins`). In External fleets a trainer names
directories, not runs, and may start from 0 again: see `external_pins`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.dropped_pins import (
    has_lost_its_place,
    highest_dropped,
    may_be_dropped,
    within_bounds,
)
from fleet_operator.core.facts import Workers, source_of
from fleet_operator.core.identity import Named, file_digest
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.unread_pins import NO_UNREAD_PINS, UnreadPins, unread_pins_of
from fleet_operator.core.worker_view import Standing
from fleet_worker import protocol
from rlfleet_resources.fleet_status import DroppedPins, PinnedWeights
from rlfleet_resources.source import SourceKey, WeightSource

_Key = tuple[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """The pins of a fleet.

    Fields:
        entries: newest first, at most 100; pins in use stay. A version that the fleet serves again is newer
            than the one that it served until then.
        stored: digests by version and run that are known to be stored in the status.
        unread: pins that cannot be read.
        dropped: pins that `entries` has no room for any more.
        memory: the marks of those that were dropped before.
        adapter: whose pins these are; empty for the base weights.
    """

    entries: tuple[PinnedWeights, ...] = ()
    stored: Mapping[_Key, str] = field(default_factory=dict)
    unread: UnreadPins = NO_UNREAD_PINS
    dropped: tuple[PinnedWeights, ...] = ()
    memory: DroppedPins | None = None
    adapter: str = ""
    by_key: Mapping[_Key, PinnedWeights] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Of two pins of one version the newest counts.
        object.__setattr__(self, "by_key", {_key(e): e for e in reversed(self.entries)})

    def of(self, weights: protocol.Named) -> PinnedWeights | None:
        """The pin of a version of a run; None if it has none."""
        return self.by_key.get((weights.version, weights.run_id))

    def is_unread(self, weights: protocol.Named) -> bool:
        """Whether a version has no pin that can be read, and may have another one."""
        return self.unread.may_name(weights) and self.of(weights) is None

    def resolved(self, target: Checkpoint) -> Checkpoint:
        """The target with the pinned digest, and with the commit of its revision."""
        pin = self.of(target)
        if pin is None:
            return target
        source = _committed(target.source, pin)
        if target.digest:
            return target if source is target.source else replace(target, source=source)
        return replace(target, source=source, digest=pin.digest, pinned=True)

    def may_be_dropped(self, weights: protocol.Named) -> bool:
        """Whether a version without a pin may have had one, so that it may have named other files."""
        return may_be_dropped(self.memory, weights, adapter=self.adapter)

    def has_lost_the_run_of(self, weights: protocol.Named) -> bool:
        """Whether each number of its run may have been dropped, also a new one."""
        return has_lost_its_place(self.memory, weights, adapter=self.adapter)

    def last_number_before(self, weights: protocol.Named) -> str | None:
        """The last version with a number that its run had in use before this one; None without one.

        The pins in front of its own are of versions that were only staged. If no number has a pin, the
        highest one counts whose pin was dropped.
        """
        versions = [e.version for e in self.entries if e.run_id == weights.run_id]
        if weights.version in versions:
            del versions[: versions.index(weights.version)]
        numbers = (v for v in versions if protocol.number_of(v) is not None)
        dropped = highest_dropped(self.memory, weights.run_id, adapter=self.adapter)
        return next(numbers, None if dropped is None else str(dropped))

    def in_order_of_use(
        self, applied: protocol.Named, before: protocol.Named | None
    ) -> tuple[PinnedWeights, ...]:
        """The entries, those of the applied weights before those of the weights that were applied `before`.

        The fleet may have seen the applied weights first, and have gone back to them. A version that is
        staged stays the newest one.
        """
        new = self.of(applied)
        old = self.of(before) if before is not None else None
        if new is None or old is None or new is old:
            return self.entries
        place = self.entries.index(old)
        if self.entries.index(new) < place:
            return self.entries
        others = [e for e in self.entries if e is not new]
        return (*others[:place], new, *others[place:])

    def is_stored(self, weights: Named) -> bool:
        """Whether the status holds the pin of a version of a run, so that workers may load it."""
        pin = self.of(weights)
        return pin is not None and self.stored.get((pin.version, pin.run_id)) == pin.digest

    def allows(self, weights: Named) -> bool:
        """Whether these weights may serve: their digest is that of their stored pin, or unknown."""
        pin = self.of(weights)
        named = pin is not None and pin.digest == weights.digest
        return weights.digest is None or (named and self.is_stored(weights))


def served_by(observed: FleetObserved) -> tuple[Checkpoint, ...]:
    """The weights that a fleet starts with and those that it serves."""
    model, applied = observed.spec.model, observed.status.applied
    found = [Checkpoint(version=model.version, source=model.source)]
    if applied is not None:
        found.append(Checkpoint.recorded(applied))
    return tuple(found)


def pins_of(
    observed: FleetObserved,
    known: Sequence[Checkpoint],
    wanted: Checkpoint | None,
    *,
    start: Checkpoint | None = None,
    adapter: str = "",
) -> Pins:
    """The pins of a fleet, with new ones from its records and from the reports of its workers.

    Args:
        observed: The fleet, with the pins of the base weights or of one adapter.
        known: The weights in use: recorded ones, and those that the fleet starts with.
        wanted: The desired ones. Their digest is the trainer's word, and makes no pin.
        start: The weights that the fleet starts with.
        adapter: Whose pins these are; empty for the base weights.
    """
    unread = unread_pins_of(observed.status, adapter)
    digests = {_key(e): e.digest for e in reversed(observed.stored_status.pinned)}  # as `Pins.of`
    pins = Pins(
        entries=observed.status.pinned,
        stored=digests,
        unread=unread,
        memory=observed.status.dropped_pins,
        adapter=adapter,
    )
    used = [*known, *filter(None, [wanted])]
    asked: dict[_Key, Checkpoint] = {}
    for target in used:
        if pins.of(target) is None and not unread.may_name(target):
            asked.setdefault((target.version, target.run_id), target)
    added = _new_pins(observed.workers, asked, recorded=_digests_of(known)) if asked else ()
    found = (*reversed(added), *pins.entries)
    # A pin that cannot be read has its place before another one, which it names as that is stored.
    compared = len(found) if unread is NO_UNREAD_PINS else len(added)
    entries = _with_twins(found, start, compared)
    if entries == pins.entries:
        return pins
    kept = {(t.version, t.run_id) for t in used}
    # Those of adapters are bounded together, where the status is made.
    places = 0 if adapter else observed.status.unread.count_in("pinned")
    bounded = within_bounds(entries, lambda e: (e.version, e.run_id) in kept, unread=places)
    return replace(pins, entries=bounded.kept, dropped=bounded.dropped)


def _with_twins(
    pins: tuple[PinnedWeights, ...], start: Checkpoint | None, compared: int
) -> tuple[PinnedWeights, ...]:
    """The pins, newest first, of which the first `compared` name the version of their run that had their files
    first.

    All are compared, not only new ones: another operator may have made some, or one could not be read before.
    A run may begin with the files of the model, in a directory of its own.
    """
    begins = (start.version, start.run_id) if start is not None else None
    older: dict[tuple[str, str | None], list[PinnedWeights]] = {}
    named: list[PinnedWeights] = []
    for place, pin in reversed(tuple(enumerate(pins))):
        alike = older.setdefault((pin.digest, pin.run_id), [])
        is_open = pin.same_as is None and place < compared
        same_as = _first_of(pin, alike, begins) if is_open else pin.same_as
        known = same_as == pin.same_as
        named.append(pin if known else pin.model_copy(update={"same_as": same_as}))
        alike.append(named[-1])
    return tuple(reversed(named))


def _first_of(pin: PinnedWeights, alike: list[PinnedWeights], begins: _Key | None) -> str | None:
    """The version that had the files of a pin first; None if its own did. `alike`: older pins with its digest."""
    twins = [e for e in alike if e.source == pin.source or begins not in {_key(e), _key(pin)}]
    if any(e.same_as == pin.version for e in twins):
        return None
    first = min(twins, key=lambda e: e.same_as is not None, default=None)
    return first.version if first is not None else None


def _key(pin: PinnedWeights) -> _Key:
    return pin.version, pin.run_id


def _digests_of(known: Iterable[Checkpoint]) -> dict[_Key, str]:
    """The digests of files that records name."""
    found = (((w.version, w.run_id), file_digest(w.digest)) for w in known if not w.is_transferred)
    return {key: digest for key, digest in found if digest is not None}


def _new_pins(
    workers: Workers, asked: Mapping[_Key, Checkpoint], *, recorded: Mapping[_Key, str]
) -> tuple[PinnedWeights, ...]:
    """New pins of versions that have none, in the order of `asked`: the recorded digests, and else those that
    workers report.

    The digest that most open workers serve wins over one that is only staged. A pin has the source that
    its digest comes from: the spec may have named another one since.
    """
    votes: dict[_Key, Counter[str]] = {}
    sources: dict[tuple[_Key, str], list[SourceKey]] = {}
    many = 1_000_000
    for worker, number in workers.kinds.items():
        loaded_from, staged_from = worker.sources
        reports = [
            (worker.loaded, loaded_from, many if worker.standing is Standing.OPEN else 1),
            (worker.staged, staged_from, 1),
        ]
        for weights, source, weight in reports:
            digest = file_digest(weights.digest) if weights is not None else None
            if weights is None or digest is None or weights[:2] not in asked:
                continue
            votes.setdefault(weights[:2], Counter())[digest] += number * weight
            if source is not None:
                sources.setdefault((weights[:2], digest), []).append(source)
    reported = {key: counted.most_common(1)[0][0] for key, counted in votes.items()}
    found = reported | dict(recorded)
    return tuple(
        _pin_from(target, found[key], sources.get((key, found[key]), ()))
        for key, target in asked.items()
        if key in found
    )


def _pin_from(target: Checkpoint, digest: str, reported: Sequence[SourceKey]) -> PinnedWeights:
    """A new pin. `reported`: where workers have read files with this digest."""
    named = target.source
    fitting = next(filter(named.key().covers, reported), None)
    source, commit = named, ""
    if fitting is not None:
        commit = fitting.revision if fitting != named.key() else ""
    elif reported:
        # These are not the files that the spec names, so the digest is not theirs.
        source = next(filter(None, map(source_of, reported)), named)
    return PinnedWeights(
        version=target.version, run_id=target.run_id, digest=digest, source=source, commit=commit
    )


def _committed(source: WeightSource, pin: PinnedWeights) -> WeightSource:
    """The source with the pinned commit instead of a revision that may move, such as a branch."""
    return source.at(pin.commit) if pin.commit and source == pin.source else source
