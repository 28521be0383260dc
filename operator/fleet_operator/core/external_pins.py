"""Pins of External fleets: the digest of each version from each directory that workers have served.

A trainer names directories and no runs there, and may start from 0 again in another directory. A worker
refuses other files from the same directory under the same version, but its memory ends with its
process. So the fleet's status remembers them, and the operator reports `VersionReused`.

The trainer drives admitted workers. If most of them serve the other files, the operator takes none
from it and admits no worker meanwhile. A minority leaves the Service, as one with another version does.

A pin with a run was made while the operator drove the fleet. It says nothing about directories.
"""

from __future__ import annotations

from collections import Counter

from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.dropped_pins import Bounded, within_bounds
from fleet_operator.core.facts import Facts, Workers
from fleet_operator.core.identity import WeightsId, file_digest, short_digest
from fleet_operator.core.messages import some
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.strategies.base import RolloutProblem
from fleet_operator.core.unread_pins import unread_pins_of
from fleet_operator.core.worker_view import Standing
from fleet_operator.counts import agree
from rlfleet_resources.fleet_status import MAX_PINNED, PinnedWeights
from rlfleet_resources.reasons import ConditionReason
from rlfleet_resources.source import DIRECTORY, SourceKey, WeightSource

_SERVES = frozenset({Standing.OPEN, Standing.HELD})
_Key = tuple[str, str]
"""A version and its directory."""
_STAYS = "Workers keep their weights, and no worker joins."
_LEAVES = "Such workers leave the Service, and join again with the weights of the others."


def external_pins_of(observed: FleetObserved) -> Bounded[PinnedWeights]:
    """Returns the pins, newest first, with new ones for what workers serve; those in use stay.

    Of several digests at first sight, the one counts that most workers serve.
    """
    before = observed.status.pinned
    known, unread = _digests(before), unread_pins_of(observed.status)
    votes: dict[_Key, Counter[str]] = {}
    for worker, number in observed.workers.kinds.items():
        named = _served_by(worker)
        if named is not None:
            key, digest = named
            votes.setdefault(key, Counter())[digest] += number
    added = [
        pin
        for key, counted in votes.items()
        if key not in known
        and not unread.may_name(WeightsId(key[0]))
        and (pin := _pin_of(key, counted.most_common(1)[0][0])) is not None
    ]
    if not added:
        return Bounded(before)
    places = observed.status.unread.count_in("pinned")
    found = within_bounds((*added, *before), lambda pin: _key_of(pin) in votes, unread=places)
    # Workers may report more than a status can hold.
    return Bounded(found.kept[:MAX_PINNED], (*found.kept[MAX_PINNED:], *found.dropped))


def reused_by_trainer(
    workers: Workers, pinned: tuple[PinnedWeights, ...], *, stay: bool
) -> RolloutProblem | None:
    """The problem that workers serve other files than before, from one directory under one version.

    `stay`: the operator calls no worker until the trainer has acted.
    """
    digests = _digests(pinned)

    def differs(worker: Facts) -> bool:
        named = _served_by(worker)
        return named is not None and digests.get(named[0], named[1]) != named[1]

    others = workers.where(differs)
    named = next(map(_served_by, others.kinds), None)
    if named is None:
        return None
    (version, path), digest = named
    message = (
        f"{some(others)} {agree(len(others), 'serves', 'serve')} version {version} from {path} with "
        f"digest {short_digest(digest)}, and workers have served it with digest "
        f"{short_digest(digests[version, path])} before. {_STAYS if stay else _LEAVES} The trainer "
        "must write a new checkpoint to another directory, or under another version, and update all "
        "workers."
    )
    return RolloutProblem(reason=ConditionReason.VERSION_REUSED, message=message, halt=False)


def is_reused(weights: Checkpoint, pinned: tuple[PinnedWeights, ...]) -> bool:
    """Whether a version from a directory has been served from other files before."""
    key = (weights.version, weights.source.key().place)
    return _digests(pinned).get(key, weights.digest) != weights.digest


def _served_by(worker: Facts) -> tuple[_Key, str] | None:
    """Version, directory and digest of what a worker serves, if it came from a directory."""
    loaded, (source, _) = worker.loaded, worker.sources
    path = source.place if source is not None and source.kind == DIRECTORY else None
    digest = file_digest(loaded.digest) if loaded is not None else None
    if worker.standing not in _SERVES or loaded is None or digest is None or path is None:
        return None
    return (loaded.version, path), digest


def _digests(pinned: tuple[PinnedWeights, ...]) -> dict[_Key, str]:
    """The digest of each version from each directory; of several, the newest one."""
    return {_key_of(pin): pin.digest for pin in reversed(pinned) if pin.run_id is None}


def _key_of(pin: PinnedWeights) -> _Key:
    return pin.version, pin.source.key().place


def _pin_of(key: _Key, digest: str) -> PinnedWeights | None:
    try:
        source = WeightSource.of(SourceKey(DIRECTORY, key[1]))
        return PinnedWeights(version=key[0], digest=digest, source=source)
    except ValueError:
        return None  # no resource could have this source
