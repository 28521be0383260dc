"""What can go wrong, in words fit for the person at the terminal.

Every error carries a way out where there is one: the command line prints it below the message,
and tests show it as part of the failure.
"""

from __future__ import annotations


class DevclusterError(Exception):
    """Something a person has to know; `way_out` is what they can do about it, "" if nothing."""

    def __init__(self, message: str, *, way_out: str = "") -> None:
        super().__init__(message)
        self.way_out = way_out

    def __str__(self) -> str:
        """The message, followed by the way out."""
        message = super().__str__()
        return f"{message}\n  way out: {self.way_out}" if self.way_out else message


class CannotRunHereError(DevclusterError):
    """This machine lacks something; the message names each missing part."""


class BuildError(DevclusterError):
    """A program could not be built or fetched; nothing half-made was left that looks finished."""


class NotRunningError(DevclusterError):
    """No such cluster, or it died."""


class StartError(DevclusterError):
    """The cluster did not become ready in time; the message holds the end of its logs."""


class CommandError(DevclusterError):
    """A program that was run for the caller failed; the message holds its words."""
