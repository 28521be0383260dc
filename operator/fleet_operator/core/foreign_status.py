"""Takes over what another operator process has recorded in the status of a fleet.

A leader that froze can write its status once more, after its successor has read the status and before the
successor has written. This status names applied weights and pins that workers have obeyed. The successor
must not overwrite them with what it read before. Otherwise the fleet would go back behind a version that
it served, and a version of a run could get a second digest.

All other fields follow from what the leader observes. It computes them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from fleet_operator.core.dropped_pins import Bounded, joined, with_marks, within_bounds
from fleet_operator.core.pins import Pins
from rlfleet_resources.fleet_status import AppliedWeights, FleetStatus, PinnedAdapter, PinnedWeights

_Key = tuple[str, str | None]
P = TypeVar("P", bound=PinnedWeights)


def with_record_of(theirs: FleetStatus, *, ours: FleetStatus, base: FleetStatus) -> FleetStatus:
    """Returns our status with the applied weights and the pins that another process has recorded, and with
    what cannot be read of theirs.

    Their applied weights count if ours are still those of `base`, and if they are newer by the order of
    their pins.

    `base`: the status from which ours was computed, and which they have overwritten.
    """
    changed = _named(ours.applied) != _named(base.applied)
    applied = theirs if not changed and _is_newer(theirs, base) else ours
    used = _named(applied.applied)
    weights = _joined(
        theirs.pinned,
        ours.pinned,
        key=_key,
        is_used=lambda e: _key(e) == used,
        unread=theirs.unread.count_in("pinned"),
    )
    pinned = weights.kept
    if changed and ours.applied is not None:
        pinned = Pins(entries=pinned).in_order_of_use(ours.applied, base.applied)
    adapters = _joined(
        theirs.pinned_adapters,
        ours.pinned_adapters,
        key=_adapter_key,
        is_used=lambda _: False,
        unread=theirs.unread.count_in("pinnedAdapters"),
    )
    in_use = {
        ("", ours.desired_run_id),
        *(("", each.applied.run_id) for each in [applied] if each.applied is not None),
        *{e.adapter: e.run_id for e in reversed(adapters.kept)}.items(),
    }
    return ours.model_copy(
        update={
            "applied": applied.applied,
            "applied_version": applied.applied_version,
            "transition": ours.transition
            if ours.transition != base.transition
            else theirs.transition,
            "pinned": pinned,
            "pinned_adapters": adapters.kept,
            "dropped_pins": with_marks(
                joined(theirs.dropped_pins, ours.dropped_pins, in_use=in_use),
                (*weights.dropped, *adapters.dropped),
                in_use=in_use,
            ),
            "unread": theirs.unread,
        }
    )


def _is_newer(theirs: FleetStatus, base: FleetStatus) -> bool:
    """Whether their applied weights are newer than those of `base`, by the order of their pins."""
    order = [_key(e) for e in theirs.pinned]
    applied, before = _named(theirs.applied), _named(base.applied)
    if applied not in order:
        return False
    if before in order:
        return order.index(applied) < order.index(before)
    return before not in {_key(e) for e in base.pinned}


def _joined(
    theirs: Sequence[P],
    ours: Sequence[P],
    *,
    key: Callable[[P], tuple[str | None, ...]],
    is_used: Callable[[P], bool],
    unread: int,
) -> Bounded[P]:
    """The pins of both, newest first. Theirs are stored, so they come first for a version that both name.

    The pins that only we have are newer if they come before all common ones. Others are the oldest. In
    External fleets several pins have one version, each with its own directory.
    """
    stored = {key(e) for e in theirs}
    common = next((n for n, e in enumerate(ours) if key(e) in stored), len(ours))
    newer = ours[:common]
    files = {(key(e), e.source) for e in theirs}
    oldest = [e for e in ours[common:] if (key(e), e.source) not in files]
    kept = (*newer, *theirs, *oldest)
    return within_bounds(kept, lambda e: e in newer or is_used(e), unread=unread)


def _named(applied: AppliedWeights | None) -> _Key | None:
    return None if applied is None else (applied.version, applied.run_id)


def _key(pin: PinnedWeights) -> _Key:
    return pin.version, pin.run_id


def _adapter_key(pin: PinnedAdapter) -> tuple[str | None, ...]:
    return pin.adapter, pin.version, pin.run_id
