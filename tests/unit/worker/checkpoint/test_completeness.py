"""A source that is still being written is waited for, and a bad one is refused at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support import damage
from tests.support.refusals import refusal_from
from tests.support.tiny import write_tiny

from fleet_worker.checkpoint import completeness
from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.completeness import MARKER, open_settled
from fleet_worker.checkpoint.files import Roots
from fleet_worker.checkpoint.opening import open_checkpoint
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Let something happen between two looks."""

    def arrange(work: Callable[[], object]) -> None:
        monkeypatch.setattr(completeness.time, "sleep", lambda _: work())

    return arrange


def settled(path: Path, root: Path) -> Checkpoint:
    roots = Roots([root])
    return open_settled(str(path), roots, lambda: open_checkpoint(str(path), roots))


def refusal_of(path: Path, root: Path) -> Refusal:
    return refusal_from(settled, path, root)


def test_a_complete_source_is_opened_after_one_look(
    tmp_path: Path, meanwhile: Callable[..., None]
) -> None:
    meanwhile(lambda: pytest.fail("nothing is to be waited for"))
    settled(write_tiny(tmp_path / "1"), tmp_path).close()


def test_a_source_with_a_growing_file_is_not_ready(
    tmp_path: Path, meanwhile: Callable[..., None]
) -> None:
    path = write_tiny(tmp_path / "1")
    weights = path / damage.WEIGHTS
    whole = weights.read_bytes()
    os.truncate(weights, 50)
    meanwhile(lambda: weights.write_bytes(whole[:70]))
    refusal = refusal_of(path, tmp_path)

    assert refusal.reason is Reason.SOURCE_NOT_READY
    assert refusal.retry_after_seconds is not None
    weights.write_bytes(whole)
    settled(path, tmp_path).close()


def test_a_source_whose_missing_file_appears_is_not_ready(
    tmp_path: Path, meanwhile: Callable[..., None]
) -> None:
    path = tmp_path / "1"
    path.mkdir()
    meanwhile(lambda: (path / "config.json").write_text("{"))

    assert refusal_of(path, tmp_path).reason is Reason.SOURCE_NOT_READY


def test_a_second_set_of_weights_that_still_grows_is_not_ready(
    tmp_path: Path, meanwhile: Callable[..., None]
) -> None:
    """A trainer saves shards over `model.safetensors`, and then removes that."""
    path = write_tiny(tmp_path / "1")
    (path / "model-00001-of-00002.safetensors").write_bytes(b"")
    meanwhile(lambda: (path / "model-00002-of-00002.safetensors").write_bytes(b""))

    assert refusal_of(path, tmp_path).reason is Reason.SOURCE_NOT_READY


def test_a_source_that_does_not_change_is_refused_as_bad(
    tmp_path: Path, meanwhile: Callable[..., None]
) -> None:
    path = write_tiny(tmp_path / "1")
    os.truncate(path / damage.WEIGHTS, 50)
    meanwhile(lambda: None)

    assert refusal_of(path, tmp_path).reason is Reason.CHECKPOINT_TRUNCATED


def test_a_missing_directory_is_refused_at_once(
    tmp_path: Path, meanwhile: Callable[..., None]
) -> None:
    meanwhile(lambda: pytest.fail("nothing is to be waited for"))

    assert refusal_of(tmp_path / "nothing", tmp_path).reason is Reason.SOURCE_ABSENT


def test_where_siblings_have_a_marker_a_source_without_one_is_not_ready(tmp_path: Path) -> None:
    write_tiny(tmp_path / "broadcasts" / "step_1")
    (tmp_path / "broadcasts" / "step_1" / MARKER).touch()
    path = write_tiny(tmp_path / "broadcasts" / "step_2")
    refusal = refusal_of(path, tmp_path)

    assert refusal.reason is Reason.SOURCE_NOT_READY
    assert "step_1" in refusal.message
    (path / MARKER).touch()
    settled(path, tmp_path).close()


def test_a_sibling_that_the_worker_may_not_enter_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny(tmp_path / "step_2")
    (tmp_path / "lost+found").mkdir()
    stat = os.stat

    def forbidden(path: Any, **named: Any) -> os.stat_result:
        if "lost+found" in str(path):
            raise PermissionError
        return stat(path, **named)

    monkeypatch.setattr(os, "stat", forbidden)

    settled(path, tmp_path).close()


def test_siblings_outside_the_roots_are_not_read(tmp_path: Path) -> None:
    write_tiny(tmp_path / "step_1")
    (tmp_path / "step_1" / MARKER).touch()
    root = write_tiny(tmp_path / "step_2")

    settled(root, root).close()


def test_a_source_outside_the_roots_is_refused_for_that_reason(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "elsewhere" / "1")
    (tmp_path / "root").mkdir()

    assert refusal_of(path, tmp_path / "root").reason is Reason.SOURCE_OUTSIDE_ROOTS
