"""Which weights the fleet serves, or served last.

Read off the workers where they can tell, else from the status. Versions are opaque: of two labels
nobody can say which is the older one, so that what a single worker holds proves nothing about the
fleet.
"""

from __future__ import annotations

from fleet_operator.api.source import from_protocol
from fleet_operator.core.actions import Admit, Resume
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
    the wanted version is believed, and of N of N workers.
    """
    model = observed.spec.model
    recorded = observed.status.applied
    known = [Target(version=model.version, source=model.source)]
    if recorded is not None:
        known.insert(0, Target.recorded(recorded))
    version = _voice_of(members)
    if version is None:
        return known[0]
    alike = [m for m in members if m.version == version]
    is_wanted = wanted is not None and version == wanted.version
    if one_voice:
        few = 2 * len(alike) <= observed.spec.replicas
        left_over = few and not is_wanted and came_before(observed, version, known[0].version)
        believed = 2 * len(alike) > len(members) and not left_over
    else:
        everybody = len(members) >= observed.spec.replicas
        believed = len(alike) == len(members) and ((is_wanted and everybody) or recorded is None)
    if not believed:
        return known[0]
    if wanted is not None and is_wanted:
        return wanted
    told = next((m.state.source for m in alike if m.state and m.state.source), None)
    same = next((k for k in known if k.version == version), None)
    if same is None and told is not None:
        return known[0].passing(version, from_protocol(told), to=wanted)
    return same or known[0]


def _voice_of(members: tuple[WorkerView, ...]) -> str | None:
    """What all members that generate have; None if nobody does, or if they differ."""
    voices = (m for m in members if m.standing is Standing.OPEN)
    versions = {m.version for m in voices if not m.operation.startswith("fence")}
    return versions.pop() if len(versions) == 1 else None


def came_before(observed: FleetObserved, version: str | None, other: str) -> bool:
    """Whether the history of the rollouts, newest first, says that this version is the older one."""
    weights = observed.base_weights
    ended = [entry.version for entry in weights.status.history] if weights else []
    if version not in ended:
        return False
    return other not in ended or ended.index(other) < ended.index(version)


def opened_by(step: Step, members: tuple[WorkerView, ...], applied: Target) -> Target:
    """The weights that the fleet serves from now on.

    Written down with the calls that open workers, not after their answers: a worker may serve and
    die before anybody has heard from it, and the fleet must not go back behind what it served.
    """
    opens = {a.version for a in step.actions if isinstance(a, Resume | Admit)}
    whole = all(m.version == step.goal.version for m in members)
    return step.goal if whole and step.goal.version in opens else applied
