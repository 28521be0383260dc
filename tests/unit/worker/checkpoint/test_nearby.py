"""A refusal of absent files tells what is in their place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.refusals import refusal_from
from tests.support.tiny import tiny_rules

from fleet_worker.checkpoint import nearby
from fleet_worker.checkpoint.files import Roots
from fleet_worker.checkpoint.nearby import with_what_is_there
from fleet_worker.checkpoint.reference import open_fitting
from fleet_worker.errors import Refusal
from fleet_worker.lora.files import open_fitting_adapter
from fleet_worker.protocol import Reason, Source

ABSENT = Refusal(Reason.SOURCE_ABSENT, "absent", retry_after_seconds=5)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "weights"
    for name in ("base", "step_1", "step_10", "step_9", ".hidden"):
        (made / name).mkdir(parents=True)
    return made


def seen(path: Path | str, root: Path) -> str:
    """The part that is added to the message."""
    found = with_what_is_there(ABSENT, str(path), Roots([root]))
    assert (found.reason, found.retry_after_seconds) == (ABSENT.reason, 5)
    return found.message.removeprefix("absent").removeprefix("; ")


@pytest.mark.parametrize("path", ["none", "none/deeper/step_2", "./none", "step_1/../none"])
def test_the_nearest_directory_below_the_root_is_listed_in_order(root: Path, path: str) -> None:
    assert seen(f"{root}/{path}", root) == f"{root} has base, step_1, step_9, step_10"


def test_a_directory_without_files_is_empty(root: Path) -> None:
    assert seen(root / "base" / "step_3", root) == f"{root}/base is empty"


def test_a_file_in_the_way_is_listed_with_its_neighbours(root: Path) -> None:
    (root / "base" / "model.safetensors").touch()

    assert seen(root / "base" / "model.safetensors" / "x", root) == (
        f"{root}/base has model.safetensors"
    )


def test_a_root_that_does_not_exist_is_named(tmp_path: Path) -> None:
    root = tmp_path / "weights"

    assert seen(root / "step_1", root) == f"the weights root {root} does not exist"


@pytest.mark.parametrize(
    "reason", sorted(set(Reason) - {Reason.SOURCE_ABSENT, Reason.SOURCE_NOT_FOUND})
)
def test_other_refusals_stay_as_they_are(root: Path, reason: Reason) -> None:
    refusal = Refusal(reason, "other")

    assert with_what_is_there(refusal, str(root / "none"), Roots([root])) is refusal


def test_nothing_outside_of_the_roots_is_listed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret" / "inner").mkdir(parents=True)
    (root / "link").symlink_to(tmp_path / "secret")

    assert seen(root / "link" / "none", root) == ""
    outside = seen(root / ".." / "none" / "deeper", root)
    assert "secret" not in outside


def test_many_names_are_named_from_both_ends(root: Path) -> None:
    many = root / "many"
    for number in range(100, 0, -1):
        (many / f"step_{number}").mkdir(parents=True)

    assert seen(many / "step_101", root) == (
        f"{many} has 100 entries: step_1, step_2, step_3, step_4 …"
        " step_97, step_98, step_99, step_100"
    )


def test_names_of_a_huge_directory_would_change_with_each_look(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nearby, "_READ_AT_MOST", 3)

    assert seen(root / "none", root) == f"{root} has more than 3 entries"


NAMES = st.binary(min_size=1, max_size=255).filter(
    lambda name: not set(name) & {0, ord("/")} and not name.startswith(b".")
)


@given(st.lists(NAMES, min_size=1, max_size=12, unique=True))
def test_any_names_become_one_short_printable_line(names: list[bytes]) -> None:
    texts = [os.fsdecode(name) for name in names]
    found = nearby._described(texts)

    assert found.isprintable()
    assert found == nearby._described(texts[::-1])
    assert len(found) < 2 * nearby._NAMED_AT_EACH_END * (nearby._NAME_CHARACTERS + 2) + 40


def test_the_refusals_of_checkpoints_and_adapters_tell_it(tmp_path: Path) -> None:
    rules, initial = tiny_rules(tmp_path)
    initial.checkpoint.close()
    absent, bare = Source(path=str(tmp_path / "none")), Source(path=str(tmp_path / "bare"))
    (tmp_path / "bare" / "actor").mkdir(parents=True)
    for source, listed in ((absent, f"{tmp_path} has bare, base"), (bare, "bare has actor")):
        for opening in (
            lambda each: open_fitting(each, rules),
            lambda each: open_fitting_adapter(each, rules, max_rank=8),
        ):
            refusal = refusal_from(opening, source)
            assert refusal.message.endswith(listed)
