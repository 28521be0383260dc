"""A version with the files of an earlier one is reported from the digests alone."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.builders import (
    WorkerBuilder,
    make_fleet,
    make_weights,
    make_worker,
)
from tests.support.identities import D1, D2, asks, decided, fleet_of, has, holds, pin, served

from fleet_operator.api.weights import WeightsSpec
from fleet_operator.core.decision import Decision
from fleet_operator.core.events import weights_events
from fleet_worker.protocol import AdapterSlots, AdapterState, Source, Staged
from rlfleet_resources.conditions import Condition, condition_of
from rlfleet_resources.fleet_status import FleetStatus, PinnedAdapter, PinnedWeights
from rlfleet_resources.reasons import ConditionType
from rlfleet_resources.source import WeightSource
from rlfleet_resources.weights_status import WeightsStatus

PATH = "/weights/step_13"
RUN = "run-7"
SAME = "SameFiles"


def warning(decision: Decision) -> Condition | None:
    (status,) = decision.weights.values()
    return condition_of(status.conditions, ConditionType.WEIGHTS_UNCHANGED)


def reason(decision: Decision) -> str | None:
    found = warning(decision)
    return found.reason if found else None


def staged(
    version: str, digest: str, *, run: str | None, serves: str = "13"
) -> list[WorkerBuilder]:
    """Workers that serve version 13, and hold another one."""
    return [
        holds(has(make_worker(n).serving(serves), PATH, D1, run), version, PATH, digest, run)
        for n in range(2)
    ]


def pinned(*pins: PinnedWeights, applied: str = "13", run: str | None = None) -> FleetStatus:
    return served(applied, PATH, D1, run).model_copy(update={"pinned": pins})


def twin(version: str, of: str, run: str | None = None) -> PinnedWeights:
    return pin(version, PATH, D1, run).model_copy(update={"same_as": of})


@pytest.mark.parametrize("run", [None, RUN])
def test_files_of_another_version_of_the_run_are_reported_before_they_are_loaded(run):
    wants = asks("15", PATH, **({"runID": run} if run else {}))
    status = served("13", PATH, D1, run)
    decision = decided(fleet_of(*staged("15", D1, run=run), wants=wants, status=status))
    found = warning(decision)

    assert found is not None
    assert (found.status, found.reason) == ("True", SAME)
    assert "version 13 " in found.message
    assert decision.fleet.pinned[0].same_as == "13"
    (status_now,) = decision.weights.values()
    posted = [(e.type, e.reason) for e in weights_events(WeightsStatus(), status_now)]
    assert ("Warning", "WeightsUnchanged") in posted


@pytest.mark.parametrize(
    ("known", "digest", "run"),
    [
        pytest.param(pin("13", PATH, D1), D2, None, id="other files"),
        pytest.param(pin("13", PATH, D1, "run-6"), D1, RUN, id="those of another run"),
        pytest.param(pin("13", PATH, D1), D1, RUN, id="those of no run"),
    ],
)
def test_other_files_and_those_of_another_run_are_an_update(known, digest, run):
    wants = asks("15", PATH, **({"runID": run} if run else {}))
    workers = [
        holds(has(make_worker(n).serving("13"), PATH, D1, known.run_id), "15", PATH, digest, run)
        for n in range(2)
    ]
    status = pinned(known, run=known.run_id)
    decision = decided(fleet_of(*workers, wants=wants, status=status))

    assert reason(decision) is None
    assert decision.fleet.pinned[0].same_as is None


def test_a_run_without_a_name_may_begin_with_the_model_that_the_fleet_starts_with():
    workers = [
        holds(has(make_worker(n).serving("base"), "/models/base", D1), "0", PATH, D1, None)
        for n in range(2)
    ]
    status = served("base", "/models/base", D1)
    first = decided(fleet_of(*workers, wants=asks("0", PATH), status=status))
    loaded = [
        has(make_worker(n).serving("0").changed(0.0, since="base", digest=D1), PATH, D1)
        for n in range(2)
    ]
    then = decided(fleet_of(*loaded, wants=asks("0", PATH), status=first.fleet))

    assert [p.same_as for p in first.fleet.pinned] == [None, None]
    assert (reason(first), reason(then)) == (None, None)


def test_a_version_without_a_source_of_its_own_has_the_files_of_the_model():
    """A patch has changed `spec.version` alone."""
    path = "/models/base"
    workers = [
        holds(has(make_worker(n).serving("base"), path, D1), "1", path, D1, None) for n in range(2)
    ]
    status = served("base", path, D1)
    decision = decided(fleet_of(*workers, wants=asks("1", path), status=status))

    assert [(p.version, p.same_as) for p in decision.fleet.pinned] == [
        ("1", "base"),
        ("base", None),
    ]
    assert reason(decision) == SAME


def test_the_first_version_with_the_files_is_named():
    status = pinned(twin("14", "13"), pin("13", PATH, D1))
    decision = decided(fleet_of(*staged("15", D1, run=None), wants=asks("15", PATH), status=status))

    assert [p.same_as for p in decision.fleet.pinned] == ["13", "13", None]


def test_pins_that_were_made_apart_are_compared_too():
    """The operator that made the newer one could not read the other, or another operator has made it since."""
    status = pinned(pin("15", PATH, D1), pin("13", PATH, D1), applied="15")
    workers = [has(make_worker(n).serving("15"), PATH, D1) for n in range(2)]
    decision = decided(fleet_of(*workers, wants=asks("15", PATH), status=status))

    assert [p.same_as for p in decision.fleet.pinned] == ["13", None]
    assert reason(decision) == SAME


def test_the_first_version_stays_the_first_when_the_fleet_has_gone_back_to_it():
    status = pinned(pin("13", PATH, D1), twin("15", "13"), applied="13")
    workers = [has(make_worker(n).serving("13"), PATH, D1) for n in range(2)]
    decision = decided(fleet_of(*workers, wants=asks("13", PATH), status=status))

    assert [p.same_as for p in decision.fleet.pinned] == [None, "13"]


def test_two_versions_that_are_seen_at_once_are_compared_too():
    status = pinned(applied="13")
    decision = decided(fleet_of(*staged("15", D1, run=None), wants=asks("15", PATH), status=status))

    assert {p.version: p.same_as for p in decision.fleet.pinned} == {"15": "13", "13": None}


@pytest.mark.parametrize(
    ("version", "warned"),
    [
        pytest.param("13", None, id="the one that had the files first"),
        pytest.param("15", SAME, id="the other one"),
    ],
)
def test_a_way_back_is_judged_by_what_its_version_was(version, warned):
    """Also where a worker finds that nothing has changed."""
    other = {"13": "15", "15": "13"}[version]
    status = pinned(twin("15", "13"), pin("13", PATH, D1), applied=other)
    workers = [
        has(make_worker(n).serving(version).changed(0.0, since=other, digest=D1), PATH, D1)
        for n in range(2)
    ]
    wants = asks(version, PATH, rollbackTo=version)

    assert reason(decided(fleet_of(*workers, wants=wants, status=status))) == warned


def test_the_digest_says_more_than_what_workers_measured():
    workers = [
        has(make_worker(n).serving("15").changed(0.0, since="13", digest=D1), PATH, D1)
        for n in range(2)
    ]
    status = pinned(twin("15", "13"), pin("13", PATH, D1), applied="15")

    assert reason(decided(fleet_of(*workers, wants=asks("15", PATH), status=status))) == SAME


def test_other_files_that_change_nothing_are_reported_as_such():
    workers = [
        has(make_worker(n).serving("15").changed(0.0, since="13", digest=D2), PATH, D2)
        for n in range(2)
    ]
    status = pinned(pin("15", PATH, D2), pin("13", PATH, D1), applied="15")
    decision = decided(fleet_of(*workers, wants=asks("15", PATH), status=status))

    assert reason(decision) == "NoParameterChanged"


def adapter_fleet(*, version: str, status: FleetStatus) -> Decision:
    def holding(worker: WorkerBuilder) -> WorkerBuilder:
        held = Staged(
            version=version, source=Source(path=PATH), digest=D1, size_bytes=1, in_memory=True
        )
        state = AdapterState(name="sql", version=None, staged=held)
        slots = AdapterSlots(total=3, used=1, max_rank=16)
        return worker.reporting(adapters=(state,), adapter_slots=slots)

    spec: dict[str, Any] = {"fleetRef": {"name": "policy"}, "version": version, "adapter": "sql"}
    wants = make_weights(
        version, spec=WeightsSpec.model_validate(spec | {"source": {"path": PATH}})
    )
    workers = [holding(has(make_worker(n).serving("base"), "/models/base", D1)) for n in range(2)]
    return decided(make_fleet(*workers, wants=wants, status=status, adapters={"max": 2}))


@pytest.mark.parametrize(("adapter", "warned"), [("sql", SAME), ("math", None)])
def test_the_versions_of_each_adapter_are_compared_with_each_other(adapter, warned):
    status = pinned_adapters((adapter, "6"))
    decision = adapter_fleet(version="7", status=status)

    assert reason(decision) == warned
    assert decision.fleet.pinned_adapters[0].same_as == ("6" if warned else None)


def test_pins_of_an_adapter_that_another_operator_made_are_compared_and_stored():
    decision = adapter_fleet(version="7", status=pinned_adapters(("sql", "7"), ("sql", "6")))

    assert [p.same_as for p in decision.fleet.pinned_adapters] == ["6", None]


def pinned_adapters(*known: tuple[str, str]) -> FleetStatus:
    pins = tuple(
        PinnedAdapter(
            adapter=name,
            version=version,
            digest=D1,
            source=WeightSource(path=f"/weights/{version}"),
        )
        for name, version in known
    )
    return served("base", "/models/base", D1).model_copy(update={"pinned_adapters": pins})


def test_one_warning_is_posted_for_each_version_of_each_run():
    def status_of(version: str, run: str) -> WeightsStatus:
        made = asks(version, PATH, runID=run)
        known = pinned(twin(version, "13", run), pin("13", PATH, D1, run), run=run)
        fleet = fleet_of(*staged(version, D1, run=run), wants=made, status=known)
        (status,) = decided(fleet).weights.values()
        return status

    first = status_of("15", "run-7")
    reasons = [
        [e.reason for e in weights_events(first, after)].count("WeightsUnchanged")
        for after in (first, status_of("15", "run-8"), status_of("16", "run-7"))
    ]

    assert reasons == [0, 1, 1]
