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
    they are strays. Members that are held tell nothing: they have loaded what nobody has served
    yet, or are left over from before; nor does one that is being set apart. Where versions may mix, one that is left over may agree with
    itself on something old; there only the wanted version is believed, and of N of N workers.
    """
    model = observed.spec.model
    recorded = observed.status.applied
    known = [Target(version=model.version, source=model.source)]
    if recorded is not None:
        known.insert(0, Target.recorded(recorded))
    voices = (m for m in members if m.standing is Standing.OPEN)
    versions = {m.version for m in voices if not m.operation.startswith("fence")}
    if len(versions) != 1 or (version := versions.pop()) is None:
        return known[0]
    alike = [m for m in members if m.version == version]
    if 2 * len(alike) <= len(members) or not (one_voice or len(alike) == len(members)):
        return known[0]
    is_wanted = wanted is not None and version == wanted.version
    everybody = len(members) >= observed.spec.replicas
    if not (one_voice or (is_wanted and everybody) or recorded is None):
        return known[0]
    told = next((m.state.source for m in alike if m.state and m.state.source), None)
    if wanted is not None and is_wanted:
        return wanted
    same = next((k for k in known if k.version == version), None)
    if same is None and told is not None:
        return known[0].passing(version, from_protocol(told), to=wanted)
    return same or known[0]


def opened_by(step: Step, members: tuple[WorkerView, ...], applied: Target) -> Target:
    """The weights that the fleet serves from now on.

    Written down with the calls that open workers, not after their answers: a worker may serve and
    die before anybody has heard from it, and the fleet must not go back behind what it served.
    """
    opens = {a.version for a in step.actions if isinstance(a, Resume | Admit)}
    whole = all(m.version == step.goal.version for m in members)
    return step.goal if whole and step.goal.version in opens else applied
