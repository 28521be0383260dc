"""The errors of the development cluster, with messages for the terminal.

An error may have a remedy. The command line prints it below the message, and tests show it as part of
the failure.
"""

from __future__ import annotations


class DevclusterError(Exception):
    """An error for the user. `remedy`: what to do about it; "" without a remedy."""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy

    def __str__(self) -> str:
        """The message, followed by the remedy."""
        message = super().__str__()
        return f"{message}\n  remedy: {self.remedy}" if self.remedy else message


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
