"""External: a trainer updates the workers. The operator handles joining workers and differences.

    workers                                     next
    some are held, or have an operation         wait: an update is in progress
    all report one version                      joining workers are updated to it and admitted
    a minority reports another version          it is fenced, and joins at the version of the majority
    no version has a majority                   no call; Stalled reports it
    none is admitted, all have a newer version  they are admitted: the trainer has updated them all

The operator never pauses, loads or resumes an admitted worker. The applied version is the one that
the workers report.
"""

from __future__ import annotations

from collections import Counter

from fleet_operator.core import worker_calls
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.facts import Facts, Workers, reported_source
from fleet_operator.core.identity import WeightsId, fill_digests, same_weights, short_digest
from fleet_operator.core.joining import Admission
from fleet_operator.core.messages import pod_names, some
from fleet_operator.core.strategies.base import RolloutProblem, RolloutView, Step
from fleet_operator.core.strategies.shared import with_joiners
from fleet_operator.core.worker_view import PROBE_SECONDS, Standing, WorkerView
from fleet_operator.counts import agree, counted
from fleet_worker.protocol import Phase
from rlfleet_resources.reasons import ConditionReason
from rlfleet_resources.source import TRANSFERRED
from rlfleet_resources.weights_status import RolloutPhase


def step(view: RolloutView) -> Step:
    """Decide the calls to joining workers and to workers that differ."""
    # The update of a worker that is silent for longer may have ended since.
    updating = view.members.where(_is_in_update)
    at_work = [m for m in updating if m.silent_seconds < PROBE_SECONDS]
    if at_work:
        return Step(
            goal=view.applied,
            phase=RolloutPhase.LOADING,
            note=f"the trainer updates {some(at_work)}",
            holds_requests=True,
        )
    admitted = _maybe_admitted(view)
    if not admitted:
        taken = Step(goal=view.applied, phase=RolloutPhase.PENDING, note="no worker is admitted")
        return with_joiners(view, taken, _open_at(view.applied))
    common = majority(view)
    if common is None:
        return _split(view)
    version = common.version
    differing = admitted.where(lambda f: not f.has_loaded(common) and f.standing is Standing.OPEN)
    alike = len(admitted) - len(differing)
    described = _described(WeightsId.of(common))
    reason = f"most workers serve {described}, and it serves other weights"
    taken = Step(
        goal=common,
        phase=RolloutPhase.APPLIED,
        actions=tuple(worker_calls.take_out_of_service(m, reason=reason) for m in differing),
        note=f"{counted(alike, 'worker')} {agree(alike, 'serves', 'serve')} {version}",
        failed=pod_names(differing),
    )
    return with_joiners(view, taken, _open_at(common))


def sent_to_all(view: RolloutView, model: str) -> Checkpoint | None:
    """The weights that a trainer has loaded into every worker while none was admitted; None otherwise.

    The files of the applied version may be gone for good. Every process must report a load: a worker
    starts on what its ConfigMap names, and that may lag behind the applied version. `model`: the version
    of the model's own weights, which count as no update.
    """
    if view.members or len(view.joining) < view.replicas:
        return None
    if view.joining.any(lambda f: f.busy or not f.has_effect):
        return None
    loaded = set(fill_digests(f.loaded for f in view.joining.kinds))
    weights = loaded.pop() if len(loaded) == 1 else None
    if weights is None or weights.version == model or same_weights(weights, view.applied):
        return None
    return _reported(view.joining, weights)


def _is_in_update(worker: Facts) -> bool:
    """Whether the trainer updated the worker when it answered last."""
    return worker.busy or worker.phase in {Phase.PAUSING, Phase.PAUSED, Phase.LOADING}


def _open_at(target: Checkpoint) -> Admission:
    return Admission(goal=target, fallback=target, open_now=True)


def _maybe_admitted(view: RolloutView) -> Workers:
    """The members without those that were not admitted when they answered last. A silent one of these is
    a member only because the Service may still send requests to it. Its weights are not the fleet's.
    """
    return view.members.where(lambda f: f.admitted or f.phase is None)


def majority(view: RolloutView) -> Checkpoint | None:
    """The weights that more than half of the admitted members serve; None without a majority. Members
    that have never answered count against it. So do those that became silent in an update: they may
    have its weights.

    A trainer names directories and no runs. So two versions with the same name and different digests
    differ, and weights that came over a collective differ from files.
    """
    admitted = _maybe_admitted(view)
    counts = Counter(fill_digests(map(_vote, admitted)))
    for weights, count in counts.most_common(1):
        if weights is not None and 2 * count > len(admitted):
            return _reported(admitted, weights)
    return None


def _vote(worker: WorkerView) -> WeightsId | None:
    unknown = worker.standing is Standing.UNKNOWN and _is_in_update(worker.facts)
    return None if unknown else worker.loaded


def _described(weights: WeightsId) -> str:
    return f"{weights} ({short_digest(weights.digest)})" if weights.digest else str(weights)


def _reported(workers: Workers, weights: WeightsId) -> Checkpoint:
    """These weights with the source that the workers report. Without a usable one no other worker can
    load them.
    """
    sources = (reported_source(w.state.source) for w in workers if w.state and w.loaded == weights)
    return Checkpoint.passing(weights, next(filter(None, sources), TRANSFERRED))


def _differ_by_group(view: RolloutView) -> bool:
    """Whether workers have one version of several runs: of process groups without a common text."""
    runs: dict[str, set[str]] = {}
    for member in view.members:
        if member.loaded is not None and member.loaded.run_id is not None:
            runs.setdefault(member.loaded.version, set()).add(member.loaded.run_id)
    return any(len(found) > 1 for found in runs.values())


def _split(view: RolloutView) -> Step:
    loaded = ((m.pod.name, m.loaded) for m in view.members[:10])
    found = ", ".join(f"{name}: {_described(w) if w else 'no weights'}" for name, w in loaded)
    group = " join a group with the same join_id in its call to each worker, and then"
    message = (
        f"workers serve different versions and none has a majority ({found}). The trainer must"
        f"{group if _differ_by_group(view) else ''} update all workers; joining workers wait until then."
    )
    problem = RolloutProblem(reason=ConditionReason.VERSIONS_DIFFER, message=message, halt=False)
    return Step(
        goal=view.applied,
        phase=RolloutPhase.APPLIED,
        note="versions differ",
        problem=problem,
        holds_requests=True,
    )
