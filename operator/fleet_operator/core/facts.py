"""Groups equal workers, so that a planner looks at each group once.

Thousands of workers are in a handful of states. `Facts` holds what planners ask of a worker, without
its name and without ages. Equal workers share one `Facts` object, and `Workers` counts them by it: a
question is answered once for each group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING

from fleet_operator.core.identity import TRANSFERRED_DIGEST, Named, WeightsId, same_weights
from fleet_operator.core.work import Work, WorkKind
from fleet_worker.protocol import (
    PROTOCOL_VERSION,
    Operation,
    Phase,
    Source,
    WorkerState,
)
from rlfleet_resources.source import SourceKey, WeightSource

if TYPE_CHECKING:
    from fleet_operator.core.worker_view import Standing, WorkerView

KNOWN_AT_MOST = 4096
"""Size of the caches. Facts beyond it are built again, and their workers form separate groups."""

_Name = tuple[str, str | None, str | None]


@dataclass(frozen=True, slots=True, eq=False)
class PodFacts:
    """The facts of a pod. Compared by identity, like `Facts`.

    Fields:
        drains: the pod is marked to be deleted when its requests have ended.
        blocked: the cluster reports why the pod does not run, or what it waits for.
        ended: the phase is `Failed` or `Succeeded`.
        owned: the pod has a controller.
    """

    revision: str
    ready: bool
    running: bool
    deleting: bool
    drains: bool
    gated: bool
    blocked: bool
    quarantined: bool
    ended: bool
    owned: bool


pod_facts_of = lru_cache(maxsize=KNOWN_AT_MOST)(PodFacts)
"""Returns the same object for the same values, as long as the cache holds it."""


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """The facts of a worker. Compared by identity: equal workers share one object.

    Fields:
        phase: None if the worker has not answered yet.
        sources: of the loaded and of the staged weights.
        call: the work that the call in flight asks for; None without one.
        operation: the work that the worker reports; None without any. A phase that this release does not
            know counts as an operation.
        silent: the worker does not answer.
        paused_unchanged: the worker is paused and has loaded nothing since. When its lease ends, it
            generates again; a worker that has loaded other weights closes its latch.
        refuses: the worker reports a failure with some weights, or ignores calls to take them.
        other_protocol: the worker's protocol version differs from the operator's.
        may_open: an admission is in flight, or one that got no answer may arrive late.
        busy: the worker reports an operation, or a call to it is in flight.
    """

    standing: Standing
    pod: PodFacts
    phase: Phase | str | None
    admitted: bool
    loaded: WeightsId | None
    staged: WeightsId | None
    sources: tuple[SourceKey | None, SourceKey | None]
    operation: Work | None
    call: Work | None
    silent: bool
    may_open: bool
    paused_unchanged: bool
    refuses: bool
    has_lora: bool
    has_effect: bool
    has_remarks: bool
    other_protocol: bool
    busy: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "busy", bool(self.call or self.operation))

    def has_loaded(self, weights: Named) -> bool:
        """Whether these weights are in its engine."""
        return self.loaded is not None and same_weights(self.loaded, weights)

    def has_staged(self, weights: Named) -> bool:
        """Whether it holds the bytes of these weights, ready to load."""
        return self.staged is not None and same_weights(self.staged, weights)

    def is_doing(self, kind: WorkKind, weights: Named | None = None) -> bool:
        """Whether the worker reports this kind of operation, with these weights if any are given.

        Digests are not compared: they are known only when the files have been read.
        """
        work = self.operation
        if work is None or work.kind != kind:
            return False
        return weights is None or (
            work.version == weights.version and work.run_id == weights.run_id
        )

    def is_called_to(self, kind: WorkKind) -> bool:
        """Whether a call for this kind of work is in flight to the worker."""
        return self.call is not None and self.call.kind == kind

    def is_loading(self, weights: Named) -> bool:
        """Whether it is loading these weights into its engine."""
        return self.is_doing("load", weights) or self.is_doing("apply", weights)

    def is_called_to_load(self, weights: Named) -> bool:
        """Whether a call to load these weights into its engine is in flight."""
        call = self.call
        if call is None or call.kind not in {"load", "apply"}:
            return False
        return (call.version, call.run_id) == (weights.version, weights.run_id)

    def loads_others_than(self, weights: Named) -> bool:
        """Whether it is loading other weights into its engine."""
        loads = self.is_doing("load") or self.is_doing("apply")
        return loads and not self.is_loading(weights)

    def has_bytes(self, weights: Named) -> bool:
        """Whether it holds the bytes of these weights, or is loading them into its engine."""
        return self.has_staged(weights) or self.is_loading(weights)


def facts_in(
    state: WorkerState | None,
    standing: Standing,
    pod: PodFacts,
    call: Work | None,
    *,
    silent: bool,
    may_open: bool,
    ignores: bool = False,
) -> Facts:
    """Returns the facts of a worker. `state`: its last answer. `ignores`: it ignores calls to take weights."""
    if state is None:
        unknown = (None, False, None, None, None, None, None)
        return _facts_of(standing, pod, call, silent, may_open, *unknown, *(False,) * 6)
    version, staged, work, timings = state.version, state.staged, state.operation, state.timings
    # Plain tuples are fast: this runs for each answer of each worker.
    return _facts_of(
        standing,
        pod,
        call,
        silent,
        may_open,
        state.phase,
        state.admitted,
        None if version is None else (version, state.run_id, _digest_of(state)),
        None if state.source is None else state.source.key(),
        None if staged is None else (staged.version, staged.run_id, staged.digest),
        None if staged is None or staged.source is None else staged.source.key(),
        _operation_of(state.phase, work),
        # Timings begin again with every pause.
        state.phase is Phase.PAUSED and (timings is None or timings.load_seconds is None),
        bool(ignores or state.stage_failure or state.load_failure or state.earlier_stage_failures),
        bool(state.adapters),
        state.effect is not None,
        bool(state.remarks),
        state.protocol != PROTOCOL_VERSION,
    )


@lru_cache(maxsize=KNOWN_AT_MOST)
def _facts_of(
    standing: Standing,
    pod: PodFacts,
    call: Work | None,
    silent: bool,  # noqa: FBT001 - keyword arguments would cost more than the rest of this function
    may_open: bool,  # noqa: FBT001 - as above
    phase: Phase | str | None,
    admitted: bool,  # noqa: FBT001 - as above
    loaded: _Name | None,
    loaded_from: SourceKey | None,
    staged: _Name | None,
    staged_from: SourceKey | None,
    operation: Work | None,
    *marks: bool,
) -> Facts:
    """Returns the same object for the same values, as long as the cache holds it."""
    paused_unchanged, refuses, has_lora, has_effect, has_remarks, other_protocol = marks
    return Facts(
        standing=standing,
        pod=pod,
        phase=phase,
        admitted=admitted,
        loaded=None if loaded is None else WeightsId(*loaded),
        staged=None if staged is None else WeightsId(*staged),
        sources=(loaded_from, staged_from),
        operation=operation,
        call=call,
        silent=silent,
        may_open=may_open,
        paused_unchanged=paused_unchanged,
        refuses=refuses,
        has_lora=has_lora,
        has_effect=has_effect,
        has_remarks=has_remarks,
        other_protocol=other_protocol,
    )


def _operation_of(phase: Phase | str, work: Operation | None) -> Work | None:
    if work is not None:
        return Work(work.kind, work.version, work.run_id)
    return None if isinstance(phase, Phase) else Work(phase)


def _digest_of(state: WorkerState) -> str | None:
    """The digest of the loaded weights. A worker names no source of weights that came over a collective."""
    return TRANSFERRED_DIGEST if state.source is None and state.digest is None else state.digest


def source_of(key: SourceKey) -> WeightSource | None:
    """Returns the source that a worker reports; None if no resource could have it."""
    try:
        return WeightSource.of(key)
    except ValueError:
        return None


def reported_source(source: Source | None) -> WeightSource | None:
    """Returns the source of a worker's answer; None without one, or if no resource could have it."""
    return None if source is None else source_of(source.key())


class Workers(tuple["WorkerView", ...]):  # noqa: SLOT001 - caches its counts
    """Workers of a fleet in order of ordinal, grouped by their facts."""

    @classmethod
    def of(cls, workers: Iterable[WorkerView]) -> Workers:
        """Returns these workers as `Workers`; the same object, with its counts, if they are already."""
        return workers if isinstance(workers, cls) else cls(workers)

    @cached_property
    def kinds(self) -> Mapping[Facts, int]:
        """Returns the number of workers of each group, in the order of the groups' first workers."""
        return Counter(map(attrgetter("facts"), self))

    def any(self, holds: Callable[[Facts], bool]) -> bool:
        """Whether the condition holds for at least one worker."""
        return any(map(holds, self.kinds))

    def all(self, holds: Callable[[Facts], bool]) -> bool:
        """Whether the condition holds for every worker."""
        return all(map(holds, self.kinds))

    def count(self, holds: Callable[[Facts], bool]) -> int:
        """Returns for how many workers the condition holds."""
        found = 0
        for facts, number in self.kinds.items():
            if holds(facts):
                found += number
        return found

    def plus(self, others: Workers) -> Workers:
        """Returns these workers and others, in this order. No worker is among both."""
        if not self or not others:
            return self or others
        return Workers((*self, *others))

    def where(self, holds: Callable[[Facts], bool]) -> Workers:
        """Returns the workers for which the condition holds."""
        kept = {facts: number for facts, number in self.kinds.items() if holds(facts)}
        if len(kept) == len(self.kinds):
            return self
        if not kept:
            return NO_WORKERS
        found = Workers([w for w in self if w.facts in kept])
        found.__dict__["kinds"] = kept  # fills the cached property
        return found


NO_WORKERS = Workers()
