"""Specs are admitted by their size before they are kept: each has a limit, and a namespace has one."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from tests.support.present import present

from fleet_operator.ports import UNREAD_BYTES
from fleet_operator.runtime.spec_budget import NAMESPACE_BYTES, SMALL_BYTES, SPEC_BYTES
from fleet_operator.runtime.store import Store
from rlfleet_resources.reasons import ConditionReason

KEY = ("rl", "policy")


def fleet(name: str = "policy", *, overlay_bytes: int = 0, namespace: str = "rl") -> dict[str, Any]:
    """A fleet whose overlay has about this many bytes, in parts that are small."""
    volumes = [{"name": f"v{n:05}"} for n in range(overlay_bytes // 18)]
    metadata = {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}", "generation": 1}
    spec: dict[str, Any] = {
        "model": {"name": "m", "source": {"path": "/models/base"}},
        "weights": {"roots": ["/weights"]},
    }
    if volumes:
        spec["podOverlay"] = {"spec": {"volumes": volumes}}
    return {"metadata": metadata, "spec": spec}


def weights(*, name: str = "policy", path: str = "/weights/1") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "rl", "uid": f"w-{name}", "generation": 1}
    return {
        "metadata": metadata | {"creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"fleetRef": {"name": "policy"}, "version": "1", "source": {"path": path}},
    }


class Kept:
    """A store, and how often it said that a refused spec may fit."""

    def __init__(self) -> None:
        self.store = Store(lambda _key: None)
        self.rooms = 0
        self.store.budget.on_room = self._note

    def _note(self) -> None:
        self.rooms += 1

    def reason(self, name: str = "policy", namespace: str = "rl") -> str:
        record = present(self.store.fleet((namespace, name)))
        return record.unreadable_reason if record.unreadable else ""


@pytest.fixture
def kept() -> Kept:
    return Kept()


def test_a_spec_of_64_kib_is_kept_and_a_larger_one_is_refused(kept):
    kept.store.put_fleet(fleet(overlay_bytes=SPEC_BYTES - 1000))
    kept.store.put_fleet(fleet("large", overlay_bytes=SPEC_BYTES + 1000))

    assert kept.reason() == ""
    assert kept.reason("large") == ConditionReason.SPEC_TOO_LARGE
    record = present(kept.store.fleet(("rl", "large")))
    assert record.spec is None


def test_a_spec_that_was_left_out_by_the_reader_is_refused_with_the_last_one_in_effect(kept):
    kept.store.put_fleet(fleet())
    body = fleet() | {UNREAD_BYTES: 7_000_000}
    del body["spec"]
    kept.store.put_fleet(body)

    assert kept.reason() == ConditionReason.SPEC_TOO_LARGE
    record = present(kept.store.fleet(KEY))
    assert record.spec is not None
    kept.store.put_fleet(fleet())
    assert kept.reason() == ""


def test_a_weightversion_that_is_too_large_keeps_its_place_and_says_so(kept):
    kept.store.put_weights(weights())
    body = weights() | {UNREAD_BYTES: 7_000_000}
    del body["spec"]
    kept.store.put_weights(body)
    kept.store.put_weights(
        weights(name="new") | {"spec": {"fleetRef": {"name": "policy"}, "x": "x" * 70_000}}
    )
    (known,), (new,) = kept.store.weights_of(KEY), kept.store.unread_of(KEY)

    assert (known.unreadable_reason, known.spec.version) == (ConditionReason.SPEC_TOO_LARGE, "1")
    assert (new.unreadable_reason, new.fleet) == (ConditionReason.SPEC_TOO_LARGE, "policy")


def test_large_specs_of_a_namespace_have_a_limit_together_and_others_do_not_count(kept):
    each = SPEC_BYTES - 2000
    fit = NAMESPACE_BYTES // (each + 200)
    for n in range(fit + 10):
        kept.store.put_fleet(fleet(f"large-{n:03}", overlay_bytes=each))
    refused = [n for n in range(fit + 10) if kept.reason(f"large-{n:03}")]
    kept.store.put_fleet(fleet("small", overlay_bytes=SMALL_BYTES - 1000))
    kept.store.put_fleet(fleet("other", overlay_bytes=each, namespace="lab"))

    assert 8 <= len(refused) <= 11
    assert kept.reason("small") == ""
    assert kept.reason("other", "lab") == ""
    assert kept.rooms == 0


@pytest.mark.parametrize("how", ["deleted", "smaller"])
def test_room_that_becomes_free_is_reported_while_a_spec_is_refused(kept, how):
    each = SPEC_BYTES - 2000
    n = 0
    while not (n and kept.reason(f"large-{n - 1}")):
        kept.store.put_fleet(fleet(f"large-{n}", overlay_bytes=each))
        n += 1
    if how == "deleted":
        kept.store.remove_fleet(fleet("large-0"))
    else:
        kept.store.put_fleet(fleet("large-0"))
    assert kept.rooms == 1
    kept.store.put_fleet(fleet(f"large-{n - 1}", overlay_bytes=each))
    assert kept.reason(f"large-{n - 1}") == ""
    kept.store.remove_fleet(fleet("large-1"))
    assert kept.rooms == 1, "nothing is refused any more"


def test_an_overlay_is_kept_as_text_and_read_as_it_was(kept):
    """60,000 volumes of 1.2 MB took 62 MB for each fleet."""
    body = fleet(overlay_bytes=SPEC_BYTES - 1000)
    kept.store.put_fleet(body)
    record = present(kept.store.fleet(KEY))

    assert present(record.spec).pod_overlay.read() == body["spec"]["podOverlay"]
    assert sys.getsizeof(present(record.spec).pod_overlay.text) < SPEC_BYTES + 100
