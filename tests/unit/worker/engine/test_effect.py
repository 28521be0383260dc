"""The effect of a load: which elements are sampled, and the sum over all processes."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import generate_latest
from tests.support.present import present
from tests.support.worker_harness import WorkerHarness

from fleet_worker.engine.effect import MIN_PER_PARAMETER, Effect, combined, shares_of_sample
from fleet_worker.lifecycle.settling import settle


def part(**changed: Any) -> dict[str, Any]:
    """The answer of a process that has compared all, and found nothing changed."""
    usual = {"compared": 10, "covered": 100, "changed": 0.0, "same": True, "why_not": ""}
    return usual | changed


# --- the sample -------------------------------------------------------------------------------------


def test_a_small_model_is_compared_completely() -> None:
    assert shares_of_sample([3, 0, 5], sample=8) == [3, 0, 5]


def test_a_large_model_is_sampled_in_proportion_from_every_parameter() -> None:
    sizes = [1_000_000, 10, 4_000_000]
    counts = shares_of_sample(sizes, sample=50_000)

    assert counts[0] == pytest.approx(10_000, rel=0.01)
    assert counts[1] == 10
    assert counts[2] == pytest.approx(40_000, rel=0.01)


def test_a_sample_is_never_larger_than_the_model() -> None:
    counts = shares_of_sample([MIN_PER_PARAMETER - 1, 10**12], sample=1000)

    assert counts == [MIN_PER_PARAMETER - 1, 999]


# --- all processes together ---------------------------------------------------------------------------


def test_the_changed_share_is_weighted_by_the_elements_of_each_process() -> None:
    parts = [
        part(covered=300, changed=30.0, same=False),
        part(covered=100, changed=70.0, same=False),
    ]

    assert combined(parts) == Effect(0.25, False, 20, 400)


def test_a_model_without_a_changed_bit_is_unchanged() -> None:
    effect = combined([part(), part()])

    assert (effect.changed_share, effect.unchanged) == (0.0, True)


def test_a_change_that_the_sample_missed_is_a_change() -> None:
    effect = combined([part(), part(same=False)])

    assert (effect.changed_share, effect.unchanged) == (0.0, False)
    assert effect.comparable


def test_unreadable_parameters_make_an_equal_sample_not_comparable() -> None:
    effect = combined([part(why_not="padded experts"), part()])

    assert not effect.comparable
    assert not effect.unchanged
    assert effect.why_not == "padded experts"


def test_a_seen_change_is_reported_despite_unreadable_parameters() -> None:
    effect = combined([part(changed=50.0, same=False, why_not="padded experts")])

    assert (effect.changed_share, effect.why_not) == (0.5, "padded experts")


def test_a_process_without_a_sample_gives_the_reason() -> None:
    nothing = part(compared=0, covered=0, why_not="experts are rebalanced")

    assert combined([nothing]) == Effect(why_not="experts are rebalanced")
    assert not combined([part(), nothing]).comparable


# --- in the state document ------------------------------------------------------------------------------


async def test_the_state_has_the_effect_of_the_last_load_and_its_time(
    serving: WorkerHarness,
) -> None:
    assert serving.state.effect is None
    before = serving.state.digest
    await serving.swap("1")
    await settle(serving.agent)

    effect = present(serving.state.effect)
    assert (effect.version, effect.compared_with) == ("1", "base")
    assert effect.compared_with_digest == before
    assert (effect.changed_share, effect.compared_elements, effect.elements) == (0.25, 8, 32)
    assert not effect.unchanged
    assert generate_latest(serving.registry).count(b"rlfleet_worker_changed_share 0.25") == 1


async def test_a_load_that_changes_nothing_is_reported_and_succeeds(
    serving: WorkerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    serving.engine.effect = Effect(0.0, unchanged=True, compared_elements=32, elements=32)
    await serving.stage("1")
    await serving.apply("1")
    await settle(serving.agent)

    effect = present(serving.state.effect)
    assert effect.unchanged
    assert serving.state.version == "1"
    assert [r.levelname for r in caplog.records if "no parameter" in r.message] == ["WARNING"]


async def test_a_load_that_cannot_be_compared_reports_only_the_reason(
    serving: WorkerHarness,
) -> None:
    serving.engine.effect = Effect(why_not="experts are rebalanced")
    await serving.stage("1")
    await serving.apply("1")
    await settle(serving.agent)

    effect = present(serving.state.effect)
    assert (effect.changed_share, effect.unchanged) == (None, False)
    assert effect.why_not == "experts are rebalanced"
    assert b"rlfleet_worker_changed_share " not in generate_latest(serving.registry).replace(
        b"# HELP rlfleet_worker_changed_share ", b""
    ).replace(b"# TYPE rlfleet_worker_changed_share ", b"")
