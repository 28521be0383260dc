"""A pin that the status has no room for leaves a mark, and its version needs `spec.digest` from then on."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.builders import make_worker, texts_of
from tests.support.identities import (
    D1,
    D2,
    asks,
    decided,
    fleet_of,
    has,
    holds,
    pin,
    served,
    verdicts,
)
from tests.support.present import present

from fleet_operator.core.decision import Decision
from fleet_operator.core.dropped_pins import joined, may_be_dropped, with_marks
from fleet_operator.core.foreign_status import with_record_of
from fleet_operator.core.identity import WeightsId
from fleet_worker.protocol import number_of
from rlfleet_resources.conditions import condition_of
from rlfleet_resources.fleet_status import (
    MAX_DROPPED_RUNS,
    MAX_PINNED,
    MAX_PINNED_ADAPTERS,
    DroppedPins,
    DroppedRun,
    FleetStatus,
    PinnedAdapter,
    PinnedWeights,
)
from rlfleet_resources.reasons import ConditionType
from rlfleet_resources.source import WeightSource

NEW = "/weights/new"


def adapter_pin(name: str, version: str, run: str | None = None) -> PinnedAdapter:
    source = WeightSource(path="/weights/a")
    return PinnedAdapter(adapter=name, version=version, run_id=run, digest=D1, source=source)


def marks(*names: tuple[str, str | None]) -> DroppedPins:
    found = with_marks(None, [pin(version, "/weights/x", D1, run) for version, run in names])
    assert found is not None
    return found


def fleet_after(marked: DroppedPins | None, version: str, **spec: str) -> tuple[str, str | None]:
    """The reasons of Ready and Stalled when the trainer asks a fleet at version 200 for another one."""
    status = served("200", "/weights/200", D1).model_copy(update={"dropped_pins": marked})
    workers = [has(make_worker(n).serving("200"), "/weights/200", D1) for n in range(2)]
    wants = asks(version, NEW, rollbackTo=version, **spec)
    decision = decided(fleet_of(*workers, wants=wants, status=status))
    assert (texts_of(decision.worker_calls) == []) is (verdicts(decision)[1] is not None)
    return verdicts(decision)


def message_after(marked: DroppedPins | None, version: str, **spec: str) -> str:
    """The message of `Stalled` then."""
    status = served("200", "/weights/200", D1).model_copy(update={"dropped_pins": marked})
    workers = [has(make_worker(n).serving("200"), "/weights/200", D1) for n in range(2)]
    wants = asks(version, NEW, rollbackTo=version, **spec)
    (weights,) = decided(fleet_of(*workers, wants=wants, status=status)).weights.values()
    stalled = present(condition_of(weights.conditions, ConditionType.STALLED))
    return stalled.message


def test_the_pin_that_makes_room_for_a_new_one_leaves_a_mark_in_the_same_status():
    old = [pin(str(n), f"/weights/{n}", D1) for n in range(300, 300 - MAX_PINNED, -1)]
    status = served("300", "/weights/300", D1).model_copy(update={"pinned": tuple(old)})
    workers = [
        holds(has(make_worker(n).serving("300"), "/weights/300", D1), "301", NEW, D2, None)
        for n in range(2)
    ]
    found = decided(fleet_of(*workers, wants=asks("301", NEW), status=status)).fleet

    assert len(found.pinned) == MAX_PINNED
    assert [(r.run_id, r.up_to) for r in present(found.dropped_pins).runs] == [(None, 201)]


@pytest.mark.parametrize("version", ["41", "7", "step_41"])
def test_a_version_at_or_below_the_mark_of_its_run_needs_a_digest(version):
    assert fleet_after(marks(("41", None)), version) == ("DigestRequired", "DigestRequired")


def test_the_message_names_what_goes_back_to_such_a_version():
    """The digest alone is `RewindRefused`, and `rollbackTo` alone `DigestRequired`."""
    message = message_after(marks(("50", None)), "3")
    assert "rlfleet rollback 3 NAME --digest" in message
    assert "spec.rollbackTo" in message

    status = served("150", "/weights/150", D1).model_copy(
        update={"dropped_pins": marks(("50", None))}
    )
    workers = [has(make_worker(n).serving("150"), "/weights/150", D1) for n in range(2)]

    def of(**spec: str) -> Decision:
        wants = asks("3", NEW, **spec)
        return decided(fleet_of(*workers, wants=wants, status=status))

    assert verdicts(of(digest=D2))[1] == "RewindRefused"
    assert verdicts(of(digest=D2, rollbackTo="3")) == ("RollingOut", None)


@pytest.mark.parametrize(
    ("marked", "version", "run"),
    [
        pytest.param(marks(("41", None)), "42", None, id="above the mark"),
        pytest.param(marks(("41", "run-7")), "41", "run-8", id="of another run"),
        pytest.param(marks(("41", "run-7")), "41", None, id="of no run"),
        pytest.param(marks(("41", None)), "final", None, id="without a number"),
        pytest.param(marks(("final", None)), "best", None, id="another one without a number"),
        pytest.param(None, "41", None, id="nothing was dropped"),
    ],
)
def test_other_versions_need_none(marked, version, run):
    assert fleet_after(marked, version, **({"runID": run} if run else {}))[1] is None


@pytest.mark.parametrize("run", [None, "run-7"])
def test_a_version_without_a_number_is_remembered_by_itself(run):
    spec = {"runID": run} if run else {}
    assert fleet_after(marks(("final", run)), "final", **spec)[1] == "DigestRequired"


def test_a_version_with_a_pin_needs_no_digest():
    status = served("200", "/weights/200", D1)
    pins = (*status.pinned, pin("40", NEW, D2))
    update = {"pinned": pins, "dropped_pins": marks(("41", None))}
    workers = [has(make_worker(n).serving("200"), "/weights/200", D1) for n in range(2)]
    wants = asks("40", NEW, rollbackTo="40")
    decision = decided(fleet_of(*workers, wants=wants, status=status.model_copy(update=update)))

    assert verdicts(decision)[1] is None


def test_the_applied_version_needs_none_while_its_pin_is_unknown():
    status = served("200", "/weights/200", None).model_copy(
        update={"dropped_pins": marks(("300", None))}
    )
    workers = [make_worker(n).starting() for n in range(2)]
    wants = asks("200", "/weights/200")

    assert verdicts(decided(fleet_of(*workers, wants=wants, status=status)))[1] is None


def test_adapters_have_marks_of_their_own():
    memory = with_marks(None, [adapter_pin("sql", "41"), pin("9", "/weights/9", D1)])
    found = {
        (adapter, number)
        for adapter in ("", "sql", "math")
        for number in (9, 10, 41, 42)
        if may_be_dropped(memory, WeightsId(str(number)), adapter=adapter)
    }

    assert found == {("", 9), ("sql", 9), ("sql", 10), ("sql", 41)}


def test_more_runs_than_have_a_place_are_remembered_too():
    memory: DroppedPins | None = None
    runs = [f"run-{n}" for n in range(3 * MAX_DROPPED_RUNS)]
    for run in runs:
        memory = with_marks(memory, [pin("5", "/weights/5", D1, run)])
    assert memory is not None

    assert len(memory.runs) == MAX_DROPPED_RUNS
    assert all(may_be_dropped(memory, WeightsId("5", run)) for run in runs)
    assert not may_be_dropped(memory, WeightsId("6", runs[-1]))
    assert may_be_dropped(memory, WeightsId("6", runs[0])), (
        "its highest number is not known any more"
    )
    fresh = [f"fresh-{n}" for n in range(1000)]
    assert not any(may_be_dropped(memory, WeightsId("1", run)) for run in fresh)


def test_a_run_that_has_lost_its_place_is_not_free_again_with_its_next_mark():
    memory = marks(*[(str(n), f"run-{n}") for n in range(MAX_DROPPED_RUNS + 1)])
    memory = with_marks(memory, [pin("0", "/weights/0", D1, "run-0")])

    assert may_be_dropped(memory, WeightsId("1", "run-0"))


def test_a_run_that_continues_keeps_its_place():
    memory: DroppedPins | None = None
    for n in range(3 * MAX_DROPPED_RUNS):
        pins = [pin("5", "/weights/5", D1, f"run-{n}"), pin(str(n), "/weights/n", D1, "long")]
        memory = with_marks(memory, pins)

    assert not may_be_dropped(memory, WeightsId("1000", "long"))


def test_a_run_in_use_keeps_its_place_before_newer_ones():
    """It may be slow, and other runs and adapters may be many. Without its mark each of its numbers needs a digest."""
    memory = with_marks(None, [pin("3", NEW, D1, "slow"), adapter_pin("slow", "3", "run-7")])
    status = served("4", NEW, D1, "slow").model_copy(update={"dropped_pins": memory})
    for n in range(MAX_DROPPED_RUNS):
        in_use = {("", "slow"), ("slow", "run-7")}
        memory = with_marks(memory, [pin("5", NEW, D1, f"run-{n}")], in_use=in_use)
    others = marks(*[("5", f"run-{n}") for n in range(MAX_DROPPED_RUNS)])
    ours = status.model_copy(update={"dropped_pins": others})
    both = with_record_of(status, ours=ours, base=status).dropped_pins

    assert memory is not None
    assert both is not None
    assert len(memory.runs) == len(both.runs) == MAX_DROPPED_RUNS
    assert not may_be_dropped(memory, WeightsId("4", "run-7"), adapter="slow")
    for each in (memory, both):
        assert may_be_dropped(each, WeightsId("3", "slow"))
        assert not may_be_dropped(each, WeightsId("4", "slow"))


def test_the_runs_that_a_fleet_serves_and_wants_are_in_use():
    old = [pin("9", NEW, D1, f"run-{n}") for n in range(MAX_PINNED)]
    before = marks(("3", "slow"), *[("5", f"old-{n}") for n in range(MAX_DROPPED_RUNS - 1)])
    status = served("200", "/weights/200", D1, "slow")
    pins = (*status.pinned, *old)
    status = status.model_copy(update={"pinned": pins[:MAX_PINNED], "dropped_pins": before})
    workers = [
        holds(
            has(make_worker(n).serving("200"), "/weights/200", D1, "slow"), "201", NEW, D2, "slow"
        )
        for n in range(2)
    ]
    wants = asks("201", NEW, runID="slow")
    found = decided(fleet_of(*workers, wants=wants, status=status)).fleet

    assert found.dropped_pins is not None
    assert found.dropped_pins != before, "one more was dropped"
    assert not may_be_dropped(found.dropped_pins, WeightsId("4", "slow"))


def test_a_run_without_its_mark_gets_the_remedy_that_works():
    """A new version of it needs a digest as well."""
    lost = marks(*[("5", f"run-{n}") for n in range(MAX_DROPPED_RUNS + 1)])
    texts = [message_after(lost, "1000000", runID="run-0"), message_after(marks(("7", None)), "7")]

    assert ["spec.runID" in text for text in texts] == [True, False]
    assert ["a new version" in text for text in texts] == [False, True]


NAMES = st.tuples(
    st.sampled_from(["", "sql"]),
    st.sampled_from(["1", "2", "step_3", "40", "final", "best"]),
    st.sampled_from([None, "run-7", "run-8"]),
)


def all_of(names: Iterable[tuple[str, str, str | None]]) -> list[PinnedWeights]:
    return [
        adapter_pin(adapter, version, run) if adapter else pin(version, "/weights/x", D1, run)
        for adapter, version, run in names
    ]


@settings(max_examples=200)
@given(st.lists(NAMES, max_size=8), st.lists(NAMES, max_size=8), NAMES)
def test_what_was_dropped_stays_remembered_and_two_statuses_remember_what_both_do(
    one, other, asked
):
    first, second = with_marks(None, all_of(one)), with_marks(None, all_of(other))
    both = joined(first, second)
    adapter, version, run = asked
    name, number = WeightsId(version, run), number_of(version)
    of_the_run = [v for a, v, r in (*one, *other) if (a, r) == (adapter, run)]
    numbers = [n for v in of_the_run if (n := number_of(v)) is not None]
    known = version in of_the_run if number is None else any(number <= n for n in numbers)

    assert may_be_dropped(both, name, adapter=adapter) is known
    assert may_be_dropped(joined(second, first), name, adapter=adapter) is known
    assert joined(both, both) == both
    again = DroppedPins.model_validate(both.to_json()) if both is not None else None
    assert again == both


def test_pins_that_two_leaders_have_no_room_for_leave_marks_as_well():
    known = tuple(pin(str(n), f"/weights/{n}", D1) for n in range(MAX_PINNED, 0, -1))
    adapters = tuple(adapter_pin("sql", str(n)) for n in range(MAX_PINNED_ADAPTERS, 0, -1))
    base = FleetStatus(pinned=known, pinned_adapters=adapters)
    theirs = base.model_copy(update={"dropped_pins": marks(("3", "run-7"))})
    ours = base.model_copy(
        update={
            "pinned": (pin("200", "/weights/200", D1), *known[:-1]),
            "pinned_adapters": (adapter_pin("sql", "300"), *adapters[:-1]),
            "dropped_pins": marks(("4", "run-8")),
        }
    )
    found = with_record_of(theirs, ours=ours, base=base)

    assert {(r.adapter, r.run_id, r.up_to) for r in present(found.dropped_pins).runs} == {
        ("", "run-7", 3),
        ("", "run-8", 4),
        ("", None, 1),
        ("sql", None, 1),
    }


def test_the_largest_memory_fits_the_status():
    names = [pin(f"v{n}", "/weights/x", D1) for n in range(30_000)]
    runs = [pin(str(10**17), "/weights/x", D1, "r" * 60 + str(n)) for n in range(200)]
    memory = present(with_marks(None, [*names, *runs]))
    size = len(memory.model_dump_json())

    assert size < 24_000
    assert DroppedPins.model_validate(memory.to_json()) == memory
    assert isinstance(memory.runs[0], DroppedRun)
