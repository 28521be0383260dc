"""Errors of the operating system, and the command that makes files readable."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fleet_worker.checkpoint.files import OpenDirectory, Roots
from fleet_worker.checkpoint.os_errors import os_errors
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason


@pytest.mark.parametrize(
    ("error", "reason", "words"),
    [
        (FileNotFoundError(), Reason.SOURCE_NOT_FOUND, "does not exist"),
        (NotADirectoryError(), Reason.SOURCE_NOT_FOUND, "not a directory"),
        (PermissionError(), Reason.SOURCE_UNREADABLE, f"uid {os.getuid()}"),
        (OSError(errno.ESTALE, "stale"), Reason.SOURCE_UNREADABLE, "ESTALE"),
        (OSError("odd"), Reason.SOURCE_UNREADABLE, "unknown error"),
    ],
)
def test_system_errors_become_messages_without_the_path(
    error: OSError, reason: Reason, words: str
) -> None:
    error.filename = "/secret/path"
    with pytest.raises(Refusal) as refused, os_errors("the file"):
        raise error

    assert refused.value.reason is reason
    assert words in refused.value.message
    assert "secret" not in refused.value.message


@pytest.fixture
def close(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Close paths for the worker: the tests run as root, and root may read everything."""

    def closing(*paths: Path) -> None:
        closed = [str(path) for path in paths]
        open_, access = os.open, os.access

        def opening(path: str, flags: int, *more: int, dir_fd: int | None = None) -> int:
            where = path
            if dir_fd is not None:
                where = f"{Path(f'/proc/self/fd/{dir_fd}').readlink()}/{path}"
            if any(where == each or where.startswith(f"{each}/") for each in closed):
                raise PermissionError(errno.EACCES, "Permission denied", where)
            return open_(path, flags, *more, dir_fd=dir_fd)

        def allowed(path: Path, mode: int) -> bool:
            return str(path) not in closed and access(path, mode)

        monkeypatch.setattr(os, "open", opening)
        monkeypatch.setattr(os, "access", allowed)

    return closing


@pytest.fixture
def step(tmp_path: Path) -> Path:
    """A version below the root `weights`."""
    made = tmp_path / "weights" / "run 7" / "step_2"
    made.mkdir(parents=True)
    (made / "model.safetensors").touch()
    return made


def message_of(path: Path, root: Path, name: str = "model.safetensors") -> str:
    """The message of the refusal to read a file of a directory."""
    with pytest.raises(Refusal) as refused:
        OpenDirectory(str(path), Roots([root])).open(name)
    assert refused.value.reason is Reason.SOURCE_UNREADABLE
    return refused.value.message


@pytest.mark.parametrize(
    ("closed", "command"),
    [
        ("run 7/step_2/model.safetensors", "chmod -R a+rX '{root}/run 7/step_2'"),
        ("run 7/step_2", "chmod -R a+rX '{root}/run 7/step_2'"),
        ("run 7", "chmod -R a+rX '{root}/run 7'"),
        (".", "chmod -R a+rX {root}"),
        ("..", "chmod a+x {above}"),
    ],
    ids=["a file", "its directory", "the directory of the run", "the root", "above the root"],
)
def test_what_may_not_be_read_is_named_with_the_command_that_opens_it(
    step: Path, close: Callable[..., None], closed: str, command: str
) -> None:
    root = step.parent.parent
    close(Path(os.path.normpath(root / closed)))
    message = message_of(step, root)

    assert f"uid {os.getuid()}" in message
    assert message.endswith(f"run: {command.format(root=root, above=root.parent)}")


def test_a_link_to_a_file_that_may_not_be_read_opens_the_directory_of_that_file(
    step: Path, close: Callable[..., None]
) -> None:
    root = step.parent.parent
    (root / "blobs").mkdir()
    (root / "blobs" / "1").touch()
    (step / "linked").symlink_to(root / "blobs" / "1")
    close(step / "linked")

    assert message_of(step, root, "linked").endswith(f"chmod -R a+rX {root}/blobs")


def test_a_link_out_of_the_roots_is_not_followed_in_a_message(
    step: Path, close: Callable[..., None], tmp_path: Path
) -> None:
    (tmp_path / "secret").mkdir()
    (step / "linked").symlink_to(tmp_path / "secret" / "key")
    close(step / "linked")
    message = message_of(step, step.parent.parent, "linked")

    assert "secret" not in message
    assert message.endswith("check mode and owner")
