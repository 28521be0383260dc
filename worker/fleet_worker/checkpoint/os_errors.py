"""Errors of the operating system as refusals, with the command that makes files readable.

Trainers often run as root and write files of mode 0600, and workers run as another user.
"""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason

IsAllowed = Callable[[str], bool]
"""Whether a real path is a root or below one."""


@contextmanager
def os_errors(
    what: str, path: str | None = None, is_allowed: IsAllowed = lambda _: True
) -> Iterator[None]:
    """Turn errors of the operating system into refusals. A path outside of the roots is never named.

    Args:
        what: Name for messages.
        path: The path that is opened, to name a command if the worker may not read it.
        is_allowed: Allows paths to be named.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise Refusal(Reason.SOURCE_NOT_FOUND, f"{what} does not exist") from error
    except NotADirectoryError as error:
        raise Refusal(Reason.SOURCE_NOT_FOUND, f"{what} is not a directory") from error
    except PermissionError as error:
        command = None if path is None else _opening_command(path, is_allowed)
        raise unreadable(what, error, command) from error
    except OSError as error:
        raise unreadable(what, error) from error


def unreadable(what: str, error: OSError, command: str | None = None) -> Refusal:
    """Return `SourceUnreadable` for an error of the operating system, without its path.

    Args:
        what: Name for the message.
        error: The error.
        command: Gives the right to read. None if the worker does not know it.
    """
    if isinstance(error, PermissionError):
        problem = f"the worker (uid {os.getuid()}) has no permission to read {what}"
        remedy = f"as their owner, run: {command}" if command else "check mode and owner"
        return Refusal(Reason.SOURCE_UNREADABLE, f"{problem}; {remedy}")
    code = errno.errorcode.get(error.errno or 0, "unknown error")
    return Refusal(Reason.SOURCE_UNREADABLE, f"{what} cannot be read: {code}")


def _opening_command(path: str, is_allowed: IsAllowed) -> str | None:
    """Return the command that lets every user read a path, or None if the path is not allowed.

    It is for the first directory on the way that the worker may not enter, else for the directory of the
    files.
    """
    real = Path(os.path.realpath(path))
    if not is_allowed(str(real)):
        return None
    folder = real if os.path.isdir(real) else real.parent  # noqa: PTH112 - False, also below closed ones
    for each in (*reversed(folder.parents), folder):
        if not os.access(each, os.X_OK):
            above_roots = not is_allowed(str(each))
            return f"chmod {'a+x' if above_roots else '-R a+rX'} {shlex.quote(str(each))}"
    return f"chmod -R a+rX {shlex.quote(str(folder))}"
