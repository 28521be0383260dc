"""One version of a run, one set of bytes."""

from __future__ import annotations

import pytest

from fleet_worker.core.labels import Label, Labels
from fleet_worker.core.refusals import Refusal
from fleet_worker.protocol import Reason

ONE, TWO = "sha256:" + "1" * 64, "sha256:" + "2" * 64
SEVEN = Label("7", "run-a")


def test_a_new_label_may_stand_for_anything() -> None:
    Labels().check(SEVEN, ONE, "/w")


def test_the_same_bytes_may_come_again_from_wherever_they_lie() -> None:
    labels = Labels()
    labels.remember(SEVEN, ONE, "/w/7")

    labels.check(SEVEN, ONE, "/elsewhere")


def test_other_bytes_under_a_known_label_are_refused_and_both_are_named() -> None:
    labels = Labels()
    labels.remember(SEVEN, ONE, "/w/7")
    with pytest.raises(Refusal) as refused:
        labels.check(SEVEN, TWO, "/w/new")

    assert refused.value.reason is Reason.VERSION_REUSED
    for named in ("7", "run-a", "/w/7", ONE, "/w/new", TWO):
        assert named in refused.value.message


@pytest.mark.parametrize("scope", ["run-b", None])
def test_another_run_may_count_from_the_beginning(scope: str | None) -> None:
    labels = Labels()
    labels.remember(SEVEN, ONE, "/w/7")

    labels.check(Label("7", scope), TWO, "/w/7")


def test_memory_stays_bounded_and_forgets_the_oldest() -> None:
    labels = Labels()
    for number in range(5000):
        labels.remember(Label(str(number)), ONE, "/w")

    assert len(labels) == 4096
    labels.check(Label("0"), TWO, "/w")
    with pytest.raises(Refusal):
        labels.check(Label("4999"), TWO, "/w")
