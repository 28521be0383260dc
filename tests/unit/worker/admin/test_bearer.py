"""The token file."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet_worker.admin.guard import BearerFile


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("first\n")
    return path


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "Bearer firs", "Bearer first2", "first", "Basic first"],
)
def test_other_headers_are_refused(file: Path, header: str | None) -> None:
    assert not BearerFile(file).accepts(header)


def test_a_token_file_may_hold_the_old_and_the_new_token(file: Path) -> None:
    bearer = BearerFile(file)
    file.write_text("second\nfirst\n")
    assert bearer.accepts("Bearer first")
    assert bearer.accepts("Bearer second")
    file.write_text("second\n\n")
    assert not bearer.accepts("Bearer first")


def test_a_file_replaced_by_a_rename_is_read_again(file: Path) -> None:
    bearer = BearerFile(file)
    assert bearer.accepts("Bearer first")
    other = file.with_name("other")
    other.write_text("third\n")
    other.rename(file)

    assert bearer.accepts("Bearer third")
    assert not bearer.accepts("Bearer first")


def test_without_a_readable_token_file_all_callers_are_refused(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bearer = BearerFile(file)
    file.write_text("   \n")
    assert not bearer.accepts("Bearer")
    file.write_bytes(b"\xff\xfe")
    assert not bearer.accepts("Bearer first")
    file.unlink()
    assert not bearer.accepts("Bearer first")
    assert "cannot be read" in caplog.text
    file.write_text("first\n")
    assert bearer.accepts("Bearer first")
