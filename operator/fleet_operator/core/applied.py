"""Which weights the fleet serves, or served last.

Read off the workers where they can tell, else from the status. Versions are opaque: two labels do
not say which of them is the older one, so that what a single worker holds proves nothing about the
fleet.
"""

from __future__ import annotations

from fleet_operator.api.source import from_protocol
from fleet_operator.core.actions import Admit, Resume
from fleet_operator.core.identity import Named, WeightsId, fold, same_weights
from fleet_operator.core.observed import FleetObserved, Standing, Target, WorkerView
from fleet_operator.core.step import Step


def applied_of(
    observed: FleetObserved,
    members: tuple[WorkerView, ...],
    wanted: Target | None,
    *,
    one_voice: bool,
) -> Target:
    """What the fleet served last.

    `one_voice`: the strategy never lets versions mix, so that members which generate the same say
    what the fleet serves even if the status is older, unless most members have something else: then
    they are strays. So are a few of the replicas with something that is known to have been served
    before: they hung while the others went on. Members that are held tell nothing: they have loaded
    what nobody has served yet, or are left over from before; nor does one that is being set apart.
    Where versions may mix, one that is left over may agree with itself on something old; there only
    the wanted version is believed, and of N of N workers; a pod behind a scheduling gate does not count.
    """
    model = observed.spec.model
    recorded = observed.status.applied
    known = [Target(version=model.version, source=model.source)]
    if recorded is not None:
        known.insert(0, Target.recorded(recorded))
    voice = _voice_of(members)
    if voice is None:
        return known[0]
    alike = [m for m in members if m.has_loaded(voice)]
    is_wanted = wanted is not None and same_weights(voice, wanted)
    if one_voice:
        few = 2 * len(alike) <= observed.spec.replicas
        left_over = few and not is_wanted and came_before(observed, voice, known[0])
        believed = 2 * len(alike) > len(members) and not left_over
    else:
        everybody = len(members) >= observed.expected_workers
        believed = len(alike) == len(members) and ((is_wanted and everybody) or recorded is None)
    if not believed:
        return known[0]
    if wanted is not None and is_wanted:
        return wanted
    told = next((m.state.source for m in alike if m.state and m.state.source), None)
    same = next((k for k in known if same_weights(k, voice)), None)
    if same is None and told is not None:
        return Target.passing(voice, from_protocol(told))
    return same or known[0]


def _voice_of(members: tuple[WorkerView, ...]) -> WeightsId | None:
    """What all members that generate have; None if none does, or if they differ."""
    voices = (m for m in members if m.standing is Standing.OPEN)
    loaded = set(fold({m.loaded for m in voices if not m.operation.startswith("fence")}))
    return loaded.pop() if len(loaded) == 1 else None


def came_before(observed: FleetObserved, weights: Named, other: Named) -> bool:
    """Whether the history of the rollouts, newest first, says that these weights are the older."""
    steering = observed.base_weights
    ended = [(e.version, e.run_id) for e in steering.status.history] if steering else []
    one, two = (weights.version, weights.run_id), (other.version, other.run_id)
    if one not in ended:
        return False
    return two not in ended or ended.index(two) < ended.index(one)


def opened_by(step: Step, members: tuple[WorkerView, ...], applied: Target) -> Target:
    """The weights that the fleet serves from now on.

    Written down with the calls that open workers, not after their answers: a worker may serve and
    die before anybody has heard from it, and the fleet must not go back behind what it served.
    """
    opened = (a for a in step.actions if isinstance(a, Resume | Admit))
    opens = any(same_weights(a, step.goal) for a in opened)
    whole = opens and all(m.has_loaded(step.goal) for m in members)
    return step.goal if whole else applied
