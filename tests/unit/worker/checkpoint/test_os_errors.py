"""Errors of the operating system, and the command that makes files readable."""

from __future__ import annotations

import errno
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from fleet_worker.checkpoint.files import OpenDirectory, Roots
from fleet_worker.checkpoint.os_errors import os_errors
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason

USER = 1000
"""Of the worker's image."""


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
def folder() -> Iterator[Path]:
    """A directory that every user may enter: those of pytest are for their owner only."""
    with TemporaryDirectory(dir="/tmp") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture
def step(folder: Path) -> Path:
    """A version below the root `weights`."""
    made = folder / "above" / "weights" / "run 7" / "step_2"
    made.mkdir(parents=True)
    (made / "model.safetensors").touch()
    return made


@contextmanager
def closed(path: Path) -> Iterator[None]:
    """Take all rights to a file or directory away."""
    mode = path.stat().st_mode
    path.chmod(0)
    try:
        yield
    finally:
        path.chmod(mode)


def message_of(path: Path, root: Path, name: str = "model.safetensors") -> str:
    """The message of the refusal to read a file of a directory, to a user with few rights.

    Root may read everything, so tests that run as root do it in a process of another user.
    """
    if os.getuid() != 0:
        return _message_of(path, root, name)
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, context, initializer=os.setuid, initargs=(USER,)) as user:
        return user.submit(_message_of, path, root, name).result()


def _message_of(path: Path, root: Path, name: str) -> str:
    with pytest.raises(Refusal) as refused:
        OpenDirectory(str(path), Roots([root])).open(name)
    assert refused.value.reason is Reason.SOURCE_UNREADABLE
    assert f"uid {os.getuid()}" in refused.value.message
    return refused.value.message


@pytest.mark.parametrize(
    ("unreadable", "command"),
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
    step: Path, unreadable: str, command: str
) -> None:
    root = step.parent.parent
    with closed(Path(os.path.normpath(root / unreadable))):
        message = message_of(step, root)

    assert message.endswith(f"run: {command.format(root=root, above=root.parent)}")


def test_a_link_to_a_file_that_may_not_be_read_opens_the_directory_of_that_file(step: Path) -> None:
    root = step.parent.parent
    (root / "blobs").mkdir()
    (root / "blobs" / "1").touch()
    (step / "linked").symlink_to(root / "blobs" / "1")

    with closed(root / "blobs" / "1"):
        message = message_of(step, root, "linked")

    assert message.endswith(f"chmod -R a+rX {root}/blobs")


def test_a_link_out_of_the_roots_is_not_followed_in_a_message(step: Path, folder: Path) -> None:
    (folder / "secret").mkdir()
    (step / "linked").symlink_to(folder / "secret" / "key")
    with closed(folder / "secret"):
        message = message_of(step, step.parent.parent, "linked")

    assert "secret" not in message
    assert message.endswith("check mode and owner")
