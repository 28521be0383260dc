"""One label, one set of weights."""

from __future__ import annotations

import pytest

from fleet_worker.core.labels import Identity, Labels
from fleet_worker.core.refusals import Refusal
from fleet_worker.protocol import Reason


def weights(inode: int, source: str = "/w") -> Identity:
    return Identity(source, (("model.safetensors", 10, inode, 5),))


def test_a_new_label_may_stand_for_anything() -> None:
    Labels().check("7", weights(1))


def test_the_same_files_may_come_again_also_by_another_path() -> None:
    labels = Labels()
    labels.remember("7", weights(1))

    labels.check("7", weights(1, "/elsewhere"))


def test_other_files_under_a_known_label_are_refused() -> None:
    labels = Labels()
    labels.remember("7", weights(1, "/w/7"))
    with pytest.raises(Refusal) as refused:
        labels.check("7", weights(2))

    assert refused.value.reason is Reason.VERSION_REUSED
    assert "/w/7" in refused.value.message


def test_the_order_is_that_of_the_latest_loads() -> None:
    labels = Labels()
    for label in ("1", "2", "1"):
        labels.remember(label, weights(1))

    assert labels.order["1"] > labels.order["2"]


def test_memory_stays_bounded_and_forgets_the_oldest() -> None:
    labels = Labels()
    for number in range(5000):
        labels.remember(str(number), weights(number))

    assert len(labels.order) == 4096
    assert "4999" in labels.order
    labels.check("0", weights(-1))
