"""Only files below the roots are opened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support.descriptors import left_open, open_descriptors
from tests.support.refusals import refusal_from

from fleet_worker.checkpoint.files import OpenDirectory, Roots
from fleet_worker.protocol import ASIDE_MARK, Reason


def reason_of(path: str | Path, *roots: Path) -> Reason:
    refusal = refusal_from(OpenDirectory, str(path), Roots(roots))
    return refusal.reason


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root" / "inner").mkdir(parents=True)
    (tmp_path / "root" / "inner" / "file").write_text("content")
    (tmp_path / "rootless").mkdir()
    (tmp_path / "rootless" / "file").write_text("secret")
    return tmp_path / "root"


def test_a_version_with_the_mark_of_a_collector_in_a_mounted_bucket_is_refused(root: Path) -> None:
    mark = root / "inner" / f"{ASIDE_MARK}0a1b2c3d"
    mark.write_bytes(b"aside")
    assert reason_of(root / "inner", root) is Reason.SOURCE_ABSENT

    mark.write_bytes(b"")  # taken back
    OpenDirectory(str(root / "inner"), Roots([root])).close()


def test_a_root_itself_can_be_opened(root: Path) -> None:
    OpenDirectory(str(root), Roots([root])).close()


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("relative/path", id="a relative path"),
        pytest.param("", id="no path"),
        pytest.param("/etc", id="another directory"),
        pytest.param("{root}/../rootless", id="dots"),
        pytest.param("{root}less", id="a name that begins like the root's"),
        pytest.param("{root}/inner\0", id="a zero byte"),
    ],
)
def test_a_name_outside_the_roots_is_refused_before_any_open(root: Path, path: str) -> None:
    assert reason_of(path.format(root=root), root) is Reason.SOURCE_OUTSIDE_ROOTS


def test_a_path_outside_the_roots_is_refused_whether_it_exists_or_not(root: Path) -> None:
    for name in ("rootless", "nothing"):
        assert reason_of(root.parent / name, root) is Reason.SOURCE_OUTSIDE_ROOTS


def test_a_link_out_of_the_roots_is_refused(root: Path) -> None:
    (root / "link").symlink_to(root.parent / "rootless")

    assert reason_of(root / "link", root) is Reason.SOURCE_OUTSIDE_ROOTS


def test_a_link_within_the_roots_is_followed(root: Path) -> None:
    (root / "latest").symlink_to("inner")
    directory = OpenDirectory(str(root / "latest"), Roots([root]))

    assert directory.path == str(root / "inner")
    directory.close()


def test_a_link_into_another_root_is_followed(root: Path) -> None:
    (root / "link").symlink_to(root.parent / "rootless")
    OpenDirectory(str(root / "link"), Roots([root, root.parent / "rootless"])).close()


def test_a_root_may_be_a_link(root: Path) -> None:
    (root.parent / "alias").symlink_to(root)
    directory = OpenDirectory(str(root.parent / "alias" / "inner"), Roots([root.parent / "alias"]))

    assert directory.path == str(root / "inner")
    directory.close()


def test_a_file_that_links_out_of_the_roots_is_refused(root: Path) -> None:
    (root / "inner" / "stolen").symlink_to(root.parent / "rootless" / "file")
    directory = OpenDirectory(str(root / "inner"), Roots([root]))
    assert refusal_from(directory.open, "stolen").reason is Reason.SOURCE_OUTSIDE_ROOTS
    directory.close()


def test_a_directory_exchanged_after_its_open_is_not_followed(root: Path) -> None:
    directory = OpenDirectory(str(root / "inner"), Roots([root]))
    (root / "inner").rename(root / "moved")
    (root / "inner").symlink_to(root.parent / "rootless")

    found = directory.read("file", limit=100)
    assert found is not None
    assert found.content == b"content"
    directory.close()


@pytest.mark.parametrize("kind", ["fifo", "directory"])
def test_only_regular_files_are_opened(root: Path, kind: str) -> None:
    target = root / "inner" / "odd"
    os.mkfifo(target) if kind == "fifo" else target.mkdir()
    directory = OpenDirectory(str(root / "inner"), Roots([root]))
    assert refusal_from(directory.open, "odd").reason is Reason.CHECKPOINT_MALFORMED
    directory.close()


def test_small_files_have_a_size_limit(root: Path) -> None:
    directory = OpenDirectory(str(root / "inner"), Roots([root]))
    refusal_from(directory.read, "file", limit=3)

    assert directory.read("other", limit=3) is None
    directory.close()


def test_a_modified_file_is_a_change_and_a_deleted_one_is_not(root: Path) -> None:
    directory = OpenDirectory(str(root / "inner"), Roots([root]))
    file = directory.open("file")
    file.check_unchanged()
    (root / "inner" / "file").unlink()
    file.check_unchanged()
    os.close(file.descriptor)

    (root / "inner" / "file").write_text("content")
    file = directory.open("file")
    (root / "inner" / "file").write_text("CONTENT")
    assert refusal_from(file.check_unchanged).reason is Reason.CHECKPOINT_CHANGED
    os.close(file.descriptor)
    directory.close()


def test_reading_past_the_end_reports_a_truncated_file(root: Path) -> None:
    directory = OpenDirectory(str(root / "inner"), Roots([root]))
    file = directory.open("file")
    assert refusal_from(file.read, 0, 100).reason is Reason.CHECKPOINT_TRUNCATED
    os.close(file.descriptor)
    directory.close()


def test_a_refusal_leaves_no_open_descriptor(root: Path) -> None:
    (root / "link").symlink_to(root.parent / "rootless")
    before = open_descriptors()
    for path in (root / "link", root / "nothing", root / "inner" / "file"):
        reason_of(path, root)

    assert not left_open(before)
