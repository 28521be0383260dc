"""Labels of the engine and their versions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_worker.checkpoint.identity import WeightName, WeightNames, short_digest

DIGEST = "3fa9c1d04b2e"


def test_the_label_is_the_version_and_the_start_of_the_digest() -> None:
    name = WeightName("40", "run-7", short_digest("sha256:" + DIGEST + "0" * 52))

    assert name.digest == DIGEST
    assert WeightNames().label_of(name, DIGEST) == f"40@{DIGEST}"


def test_the_same_bytes_of_two_runs_have_two_labels() -> None:
    names = WeightNames()
    runs = [WeightName("0", run, DIGEST) for run in ("run-7", "run-8", None)]
    labels = [names.label_of(name, DIGEST) for name in runs]

    assert len(set(labels)) == 3
    assert [names.name_of(label) for label in labels] == runs
    assert [names.label_of(name, DIGEST) for name in runs] == labels


NAMES = st.builds(
    WeightName,
    st.sampled_from(["1", "2", "step_1"]),
    st.sampled_from([None, "a", "b"]),
    st.sampled_from(["0" * 12, "1" * 12]),
)


@given(st.lists(NAMES, max_size=30))
def test_a_label_has_one_name_only(loads: list[WeightName]) -> None:
    names, meant = WeightNames(), dict[str, WeightName]()
    for name in loads:
        label = names.label_of(name, name.digest or "")
        assert meant.setdefault(label, name) == name
        assert names.name_of(label) == name
        assert "@" in label


@pytest.mark.parametrize(
    ("label", "name"),
    [
        (f"40@{DIGEST}", WeightName("40", digest=DIGEST)),
        (f"40@{DIGEST}.2", WeightName("40", digest=DIGEST)),
        ("40@transfer-3", WeightName("40")),
        ("default", WeightName("default")),
    ],
)
def test_an_unknown_label_yields_only_what_it_contains(label: str, name: WeightName) -> None:
    assert WeightNames().name_of(label) == name


def test_the_number_of_labels_is_bounded() -> None:
    names = WeightNames()
    for number in range(5000):
        name = WeightName(str(number), "run", DIGEST)
        names.label_of(name, DIGEST)
        names.note_loaded(name)

    assert len(names.order) == 4096
    assert names.name_of(f"0@{DIGEST}") == WeightName("0", None, DIGEST), "forgotten"
    assert names.name_of(f"4999@{DIGEST}") == WeightName("4999", "run", DIGEST)


def test_names_are_ordered_by_their_latest_load() -> None:
    names = WeightNames()
    one, two = WeightName("1"), WeightName("2")
    for name in (one, two, one):
        names.note_loaded(name)

    assert names.order[one] > names.order[two]
