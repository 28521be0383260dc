"""Chooses the workers beyond the replicas, and those of them that stay during a template change."""

from __future__ import annotations

from fleet_operator.core.draining import Leaving, is_marked, may_serve
from fleet_operator.core.facts import NO_WORKERS, Facts, Workers
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.percentages import unavailable_and_surge
from fleet_operator.core.worker_view import Standing, WorkerView
from fleet_operator.counts import counted

OUTDATED = "its template is out of date"
_ADMITTED = frozenset({Standing.OPEN, Standing.HELD})


def kept_and_extra(
    observed: FleetObserved, sound: Workers, revision: str
) -> tuple[Workers, Workers]:
    """Splits the workers into those that fill the replicas, and the rest."""
    replicas = observed.spec.replicas
    if observed.is_external:
        highest = max((w.pod.ordinal for w in sound), default=-1)
        if highest < replicas:
            return sound, NO_WORKERS
        return (
            Workers([w for w in sound if w.pod.ordinal < replicas]),
            Workers([w for w in sound if w.pod.ordinal >= replicas]),
        )
    if len(sound) <= replicas:
        return sound, NO_WORKERS

    def goes_sooner(worker: WorkerView) -> tuple[bool, bool, bool, bool, bool, int, int]:
        pod = worker.pod
        outdated = pod.revision != revision
        return (
            # One that was admitted in its last answer may be silent and out of the Service since.
            *(is_marked(worker), not pod.ready),
            # One that has just opened serves before its probe shows that.
            *(worker.standing not in _ADMITTED, outdated, not pod.running),
            *(-worker.requests, pod.ordinal),
        )

    kept = {w.pod.uid for w in sorted(sound, key=goes_sooner)[:replicas]}
    return (
        Workers([w for w in sound if w.pod.uid in kept]),
        Workers([w for w in sound if w.pod.uid not in kept]),
    )


def dropped_workers(
    observed: FleetObserved, sound: Workers, failed: Workers, last: int
) -> list[WorkerView]:
    """Returns failed workers that the fleet does not need, highest ordinal first."""
    in_order = sorted(failed, key=lambda w: -w.pod.ordinal)
    if observed.is_external:
        return [w for w in in_order if w.pod.ordinal >= last]
    return in_order[: max(0, len(sound) + len(failed) - last)]


def leaving_surplus(
    observed: FleetObserved, kept: Workers, extra: Workers, revision: str
) -> list[Leaving]:
    """Returns the workers beyond the replicas, except those that bridge a template change."""
    if not extra:
        return []
    in_order = sorted(extra, key=lambda w: -w.pod.ordinal)
    bridging = {w.pod.uid for w in _bridges(observed, kept, in_order, revision)}
    held = observed.spec.update.is_held
    return [
        Leaving(
            worker=w,
            reason=scaled_reason(observed) if held or w.pod.revision == revision else OUTDATED,
        )
        for w in in_order
        if is_marked(w) or w.pod.uid not in bridging
    ]


def _bridges(
    observed: FleetObserved, kept: Workers, extra: list[WorkerView], revision: str
) -> list[WorkerView]:
    """Returns the workers beyond the replicas that stay during a template change: up to `maxSurge`,
    while kept workers do not serve with the current template.

    A serving one fills in for a kept worker; one that starts with the current template will take the
    place of an outdated worker. An update that is held, or whose template is not recorded, replaces no
    worker and has no bridges. More than `maxSurge` workers come from scaling down, so all of them go. In an
    External fleet only as many stay as there are kept workers to fill in for.
    """
    replicas = observed.spec.replicas
    _, surge = unavailable_and_surge(observed.spec.update, replicas)
    waits_for = replicas - kept.count(lambda f: _serves(f) and f.pod.revision == revision)
    if observed.spec.update.is_held or observed.template is None or waits_for <= 0:
        return []
    outdated = kept.any(lambda f: f.pod.revision != revision)
    serving = [w for w in extra if may_serve(w)]
    starting = [w for w in extra if outdated and w.pod.revision == revision and w not in serving]
    bridges = [*serving, *starting]
    if observed.is_external:
        in_order = sorted(bridges, key=lambda w: (not w.pod.ready, w.pod.ordinal))
        return in_order[: min(surge, waits_for)]
    return bridges if len(bridges) <= surge else []


def _serves(worker: Facts) -> bool:
    """Whether clients get tokens from it now. A pod that holds its requests is ready, but does not."""
    return worker.pod.ready and worker.standing is not Standing.HELD


def scaled_reason(observed: FleetObserved) -> str:
    """Returns why a worker beyond the replicas goes."""
    return f"the fleet has {counted(observed.spec.replicas, 'replica')} now"
