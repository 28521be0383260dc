"""Templates of pods are recorded once for each revision of a fleet's spec, and read from then on."""

from __future__ import annotations

import pytest
from tests.support.builders import make_fleet, make_worker
from tests.support.fake_kube import FakeCluster, FakeKube
from tests.support.present import present

from fleet_operator.core.manifests import pods, revisions
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.pod_waits import Awaited, PodWait
from fleet_operator.errors import NameTaken, Retryable, Terminal
from fleet_operator.runtime.templates import Templates

REVISIONS = "/apis/apps/v1/namespaces/rl/controllerrevisions"


@pytest.fixture
def kube() -> FakeKube:
    return FakeCluster().client()


def path_of(observed: FleetObserved) -> str:
    return f"{REVISIONS}/policy-{revisions.revision_of(observed)}"


def image_in(templates: Templates, observed: FleetObserved) -> str:
    recorded = present(templates.known(observed))
    return str(recorded.pod["spec"]["containers"][0]["image"])


async def test_the_first_operator_records_and_the_next_one_reads(kube):
    fleet = make_fleet(replicas=1)
    first, second = Templates(kube, "worker:1"), Templates(kube, "worker:2")
    await first.ensure(fleet, ())
    await second.ensure(fleet, ())

    assert image_in(first, fleet) == image_in(second, fleet) == "worker:1"
    (stored,) = kube.cluster.below(REVISIONS)
    assert stored["metadata"]["ownerReferences"][0]["uid"] == fleet.uid


async def test_pods_that_a_queue_holds_back_are_recorded_with_the_template(kube):
    gate = PodWait(awaited=Awaited.GATE, reason="SchedulingGated")
    spec = {"update": {"restartedAt": "now"}, "replicas": 4}
    revision = revisions.revision_of(make_fleet(**spec))
    ours = make_worker(2).not_running().awaiting(gate).of_revision(revision)
    before = [make_worker(n).not_running().awaiting(gate) for n in (0, 1)]
    fleet = make_fleet(*before, ours, make_worker(3), **spec)
    first, second = Templates(kube, "worker:1"), Templates(kube, "worker:1")
    await first.ensure(fleet, {revision})
    await second.ensure(make_fleet(**spec), {revision})

    for templates in (first, second):
        recorded = present(templates.known(fleet))
        assert recorded.held_back == 2, "without the change's own successor"


@pytest.mark.parametrize("held_back", [None, -1, True, "3", 1.5, []])
async def test_a_record_without_a_sound_number_holds_nothing_back(kube, held_back):
    fleet = make_fleet(replicas=1)
    await Templates(kube, "worker:1").ensure(fleet, ())
    (stored,) = kube.cluster.below(REVISIONS)
    data = {k: v for k, v in stored["data"].items() if k != "heldBack"}
    if held_back is not None:
        data["heldBack"] = held_back
    await kube.delete(path_of(fleet), uid=stored["metadata"]["uid"])
    fresh = {k: v for k, v in stored["metadata"].items() if k not in ("uid", "resourceVersion")}
    await kube.create(REVISIONS, stored | {"metadata": fresh, "data": data})
    second = Templates(kube, "worker:1")
    await second.ensure(fleet, {revisions.revision_of(fleet)})

    recorded = present(second.known(fleet))
    assert recorded.held_back == 0


async def test_another_spec_is_recorded_by_the_first_operator_that_sees_it(kube):
    before, after = make_fleet(replicas=1), make_fleet(update={"restartedAt": "now"}, replicas=1)
    await Templates(kube, "worker:1").ensure(before, ())
    second = Templates(kube, "worker:2")
    assert second.known(after) is None
    await second.ensure(after, {revisions.revision_of(before)})

    assert image_in(second, after) == "worker:2"
    assert second.known(before) is None
    assert len(kube.cluster.below(REVISIONS)) == 2


async def test_records_that_no_pod_has_go_when_another_is_made(kube):
    specs = [make_fleet(update={"restartedAt": str(n)}, replicas=1) for n in range(3)]
    templates = Templates(kube, "worker:1")
    await templates.ensure(specs[0], ())
    await templates.ensure(specs[1], {revisions.revision_of(specs[0])})
    await templates.ensure(specs[2], {revisions.revision_of(specs[1])})

    left = {f"{REVISIONS}/{o['metadata']['name']}" for o in kube.cluster.below(REVISIONS)}
    assert left == {path_of(specs[1]), path_of(specs[2])}


def asked(restarted_at: str, generation: int) -> FleetObserved:
    return make_fleet(update={"restartedAt": restarted_at}, replicas=1, generation=generation)


async def test_a_spec_that_comes_again_is_recorded_as_its_pods_are_made_today(kube):
    first, between, again = asked("x", 1), asked("y", 2), asked("x", 3)
    await Templates(kube, "worker:1").ensure(first, ())
    templates = Templates(kube, "worker:2")
    await templates.ensure(between, {revisions.revision_of(first)})
    await templates.ensure(again, {revisions.revision_of(between)})

    assert image_in(templates, again) == "worker:2"
    assert len(kube.cluster.below(REVISIONS)) == 2

    await Templates(kube, "worker:3").ensure(asked("x", 4), ())
    other = Templates(kube, "worker:3")
    await other.ensure(asked("x", 4), ())
    assert image_in(other, again) == "worker:2"  # no other spec has come since


async def test_a_spec_that_goes_back_to_what_pods_still_have_goes_back_to_their_template(kube):
    first, between, again = asked("x", 1), asked("y", 2), asked("x", 3)
    await Templates(kube, "worker:1").ensure(first, ())
    templates = Templates(kube, "worker:2")
    await templates.ensure(between, {revisions.revision_of(first)})
    await templates.ensure(again, {revisions.revision_of(first), revisions.revision_of(between)})

    assert image_in(templates, again) == "worker:1"


async def test_the_record_of_a_fleet_without_pods_is_read_by_the_next_release(kube):
    before, now = asked("x", 1), asked("y", 2)
    await Templates(kube, "worker:1").ensure(before, ())
    await Templates(kube, "worker:1").ensure(now, {revisions.revision_of(before)})
    templates = Templates(kube, "worker:2")
    await templates.ensure(now, ())

    assert image_in(templates, now) == "worker:1"


async def test_the_record_of_an_earlier_fleet_of_this_name_is_waited_out(kube):
    fleet = make_fleet(replicas=1)
    owner = pods.owner_reference(fleet) | {"uid": "of-before"}
    kube.cluster.put(path_of(fleet), {"metadata": {"name": "x", "ownerReferences": [owner]}})

    with pytest.raises(Retryable):
        await Templates(kube, "worker:1").ensure(fleet, ())


async def test_the_record_of_something_else_is_left_alone(kube):
    fleet = make_fleet(replicas=1)
    kube.cluster.put(path_of(fleet), {"metadata": {"name": "x"}})

    with pytest.raises(NameTaken):
        await Templates(kube, "worker:1").ensure(fleet, ())


@pytest.mark.parametrize("data", [None, {}, {"release": "1", "template": {"spec": {}}}])
async def test_a_record_without_a_template_is_refused(kube, data):
    fleet = make_fleet(replicas=1)
    owners = [pods.owner_reference(fleet)]
    stored = {"metadata": {"name": "x", "ownerReferences": owners}, "data": data}
    kube.cluster.put(path_of(fleet), stored)
    templates = Templates(kube, "worker:1")

    with pytest.raises(Terminal):
        await templates.ensure(fleet, ())
    assert templates.known(fleet) is None
