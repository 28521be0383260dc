"""Named stories of LoRA adapters; `stories.STORIES` names them all."""

from __future__ import annotations

from tests.model.chronicle import Chronicle, Story
from tests.model.fake_state import FakeAdapter, digest_of
from tests.model.faults import Faults

from rlfleet_resources.fleet_status import FleetStatus

_SHORT = {"timeouts": {"stageSeconds": 30, "loadSeconds": 20}}


def an_adapter_that_is_rewritten_before_a_recreation() -> Chronicle:
    """The files of a served adapter are rewritten, its WeightVersion is recreated: not Ready until restored"""
    its = Chronicle()
    its.fleet.publish_adapter("lora", "3")
    its.until(lambda: its.fleet.adapters("lora") == ["3~lora"] * 3)
    its.go(10)
    its.fleet.rewrite("/weights/lora/step_3")
    its.fleet.delete_adapter("lora")
    its.fleet.publish_adapter("lora", "3")
    its.until(lambda: its.fleet.stalled_adapter("lora"))
    its.fleet.restore("/weights/lora/step_3")
    return its.end()


def an_adapter_whose_weightversion_names_another_path_first() -> Chronicle:
    """A served adapter is rewritten, its new WeightVersion names another path, then the rewritten one"""
    its = Chronicle()
    its.fleet.publish_adapter("lora", "3")
    its.until(lambda: its.fleet.adapters("lora") == ["3~lora"] * 3)
    its.go(10)
    its.fleet.rewrite("/weights/lora/step_3")
    its.fleet.delete_adapter("lora")
    its.fleet.publish_adapter("lora", "3", source={"path": "/weights/other/step_3"})
    its.until(lambda: its.fleet.stalled_adapter("lora"))
    its.fleet.publish_adapter("lora", "3", source={"path": "/weights/lora/step_3"})
    its.go(3)
    its.fleet.restore("/weights/lora/step_3")
    return its.end()


def an_adapter_that_is_rewritten_before_its_pin_is_stored() -> Chronicle:
    """No status can be written, and the files of an adapter are rewritten: no worker has served them"""
    its = Chronicle()
    its.fleet.note("fault", "nothing can be written")
    its.fleet.faults = Faults(status_unwritten=1.0)
    its.fleet.publish_adapter("lora", "3")
    its.go(6)
    its.fleet.rewrite("/weights/lora/step_3")
    for ordinal in range(3):
        its.fleet.kill(its.fleet.pod(ordinal))
    its.fleet.faults = Faults()
    its.fleet.start_operator()
    its.until(lambda: its.fleet.adapters("lora") == ["3~lora~rewritten"] * 3)
    return its


def an_adapter_whose_pin_is_lost() -> Chronicle:
    """A fleet's status is lost, an adapter rewritten, and all workers restart: its record names its files"""
    its = Chronicle()
    its.fleet.publish_adapter("lora", "3")
    its.until(lambda: its.fleet.adapters("lora") == ["3~lora"] * 3)
    its.go(10)
    its.fleet.rewrite("/weights/lora/step_3")
    for ordinal in range(3):
        its.fleet.kill(its.fleet.pod(ordinal))
    its.fleet.note("fault", "the status of the fleet is lost")
    its.fleet.fleet_stored = FleetStatus()
    its.fleet.start_operator()
    its.until(lambda: its.fleet.stalled_adapter("lora"))
    its.go(3)
    its.fleet.restore("/weights/lora/step_3")
    its.until(lambda: its.fleet.adapters("lora") == ["3~lora"] * 3)
    return its.end()


def an_adapter_with_a_digest_of_other_files() -> Chronicle:
    """A closed worker holds other files of an adapter, and spec.digest names them: it is not admitted"""
    its = Chronicle()
    its.fleet.publish_adapter("lora", "3")
    its.until(lambda: its.fleet.adapters("lora") == ["3~lora"] * 3)
    its.go(2)
    pod = its.fleet.pod(1)
    its.fleet.kill(pod)
    other = FakeAdapter("3", None, "/weights/lora/step_3", "3~lora~rewritten")
    its.fleet.note("fault", f"{pod.name} serves other files of adapter lora")
    pod.worker.adapters["lora"] = other
    its.fleet.publish_adapter("lora", "3", digest=digest_of(other.weights))
    its.go(12)
    its.fleet.publish_adapter("lora", "3", digest=None)
    its.until(lambda: its.fleet.adapters("lora") == ["3~lora"] * 3)
    return its.end()


def two_adapters_that_one_worker_refuses() -> Chronicle:
    """One worker refuses the files of two adapters: it rests after each refusal, and both are reported"""
    its = Chronicle()
    pod = its.fleet.pod(1)
    for name in ("lora", "math"):
        its.fleet.spoil_path(f"/weights/{name}/step_1", pod)
        its.fleet.publish_adapter(name, "1")
    its.until(lambda: all(map(its.fleet.stalled_adapter, ("lora", "math"))), seconds=1.0)
    for _ in range(12):
        its.go(1)
        if not all(map(its.fleet.stalled_adapter, ("lora", "math"))):
            its.fleet.fail(6, "an adapter is refused, and its WeightVersion is not stalled")
    its.fleet.repair()
    return its.end()


def a_staged_adapter_that_is_not_wanted_any_more() -> Chronicle:
    """A trainer goes back to the served version while a newer one is staged: no copy takes the room"""
    its = Chronicle()
    for pod in its.fleet.pods.values():
        its.fleet.leave_room_for_adapters(pod, 3)
    for name in ("lora", "math"):
        its.fleet.publish_adapter(name, "1")
    its.until(lambda: its.fleet.adapters("math") == ["1~math"] * 3, seconds=1.0)
    its.fleet.note("fault", "nothing can be written")
    its.fleet.faults = Faults(status_unwritten=1.0)
    for version in ("2", "3"):
        its.fleet.publish_adapter("lora", version)
        its.until(lambda: its.holds_staged("lora", version), seconds=1.0)  # noqa: B023 - at once
    its.fleet.publish_adapter("lora", "1")
    its.fleet.faults = Faults()
    its.fleet.publish_adapter("math", "2")
    its.fleet.until(lambda: its.fleet.adapters("math") == ["2~math"] * 3)
    return its.end()


def a_staged_adapter_whose_weightversion_is_deleted() -> Chronicle:
    """The WeightVersion of an adapter is deleted before a worker serves it: its copies are dropped"""
    its = Chronicle()
    its.fleet.note("fault", "nothing can be written")
    its.fleet.faults = Faults(status_unwritten=1.0)
    its.fleet.publish_adapter("lora", "1")
    its.until(lambda: its.holds_staged("lora", "1"), seconds=1.0)
    its.fleet.delete_adapter("lora")
    its.fleet.faults = Faults()
    its.fleet.until(its.fleet.converged)
    return its.end()


def an_adapter_with_the_models_name() -> Chronicle:
    """An adapter has the name of the base model: it is refused, and another one gets the only place"""
    its = Chronicle(replicas=2, adapters={"max": 1})
    its.fleet.publish_adapter("m", "1")
    its.go(3)
    its.fleet.publish_adapter("sql", "1")  # later, and later in the order of names
    its.go(6)
    if its.fleet.adapters("sql") != ["1~sql"] * 2:
        its.fleet.fail(6, "an adapter that no fleet can serve takes the place of another")
    its.fleet.delete_adapter("m")
    return its.end()


def an_adapter_whose_trainer_dies_while_it_writes() -> Chronicle:
    """A trainer dies before it completes an adapter: the wait is reported in time, and ends by itself"""
    its = Chronicle(replicas=2, rollout=_SHORT)
    its.fleet.publish_adapter("lora", "1")
    its.until(lambda: its.fleet.adapters("lora") == ["1~lora"] * 2)
    its.fleet.leave_unfinished("/weights/lora/step_2")
    its.fleet.publish_adapter("lora", "2")
    its.go(24, seconds=6.0)
    if not its.fleet.stalled_adapter("lora"):
        its.fleet.fail(6, "workers wait for an adapter, and its WeightVersion is not stalled")
    its.fleet.finish("/weights/lora/step_2")
    return its.end()


def an_adapter_that_a_joining_worker_finds_unfinished() -> Chronicle:
    """A served adapter loses its last file, and a worker restarts: its wait is reported in time"""
    its = Chronicle(replicas=2, rollout=_SHORT)
    its.fleet.publish_adapter("lora", "1")
    its.until(lambda: its.fleet.adapters("lora") == ["1~lora"] * 2)
    its.fleet.leave_unfinished("/weights/lora/step_1")
    its.fleet.kill(its.fleet.pod(1))
    its.go(14, seconds=6.0)
    if not its.fleet.stalled_adapter("lora"):
        its.fleet.fail(6, "a worker cannot join, and the WeightVersion is not stalled")
    its.fleet.finish("/weights/lora/step_1")
    return its.end()


def slots_for_adapters_that_held_workers_do_not_have() -> Chronicle:
    """A fleet reserves slots while updates are paused: an adapter reports the pods without slots"""
    its = Chronicle(replicas=2, adapters={"max": 0}, update={"paused": True})
    its.fleet.change_fleet("reserves slots for adapters", adapters={"max": 2})
    its.go(3)
    its.fleet.publish_adapter("lora", "1")
    its.go(3)
    if not its.fleet.stalled_adapter("lora"):
        its.fleet.fail(6, "workers have no slots for an adapter, and this is not reported")
    its.fleet.change_fleet("lets the operator replace pods", update={"paused": False})
    return its.end()


STORIES: list[Story] = [
    an_adapter_that_is_rewritten_before_a_recreation,
    an_adapter_whose_weightversion_names_another_path_first,
    an_adapter_that_is_rewritten_before_its_pin_is_stored,
    an_adapter_whose_pin_is_lost,
    an_adapter_with_a_digest_of_other_files,
    two_adapters_that_one_worker_refuses,
    a_staged_adapter_that_is_not_wanted_any_more,
    a_staged_adapter_whose_weightversion_is_deleted,
    an_adapter_with_the_models_name,
    an_adapter_whose_trainer_dies_while_it_writes,
    an_adapter_that_a_joining_worker_finds_unfinished,
    slots_for_adapters_that_held_workers_do_not_have,
]
