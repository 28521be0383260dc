"""A version of a run has one digest."""

from __future__ import annotations

from tests.support.refusals import refusal_from

from fleet_worker.checkpoint.identity import Label, Labels
from fleet_worker.protocol import Reason

ONE, TWO = "sha256:" + "1" * 64, "sha256:" + "2" * 64
SEVEN = Label("7", "run-a")


def test_other_bytes_under_a_known_label_are_refused_with_both_digests() -> None:
    labels = Labels()
    labels.remember(SEVEN, ONE, "/w/7")
    refusal = refusal_from(labels.check, SEVEN, TWO, "/w/new")

    assert refusal.reason is Reason.VERSION_REUSED
    for named in ("7", "run-a", "/w/7", ONE, "/w/new", TWO):
        assert named in refusal.message


def test_the_oldest_labels_are_forgotten_at_the_limit() -> None:
    labels = Labels()
    for number in range(5000):
        labels.remember(Label(str(number)), ONE, "/w")

    assert len(labels) == 4096
    labels.check(Label("0"), TWO, "/w")
    refusal_from(labels.check, Label("4999"), TWO, "/w")
