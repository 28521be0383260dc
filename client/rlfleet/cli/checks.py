"""The result of a check of `rlfleet doctor` or `rlfleet validate`."""

from __future__ import annotations

from enum import StrEnum

from rlfleet_resources.base import Resource

CHECKS_FAILED = 10
"""Exit code of `doctor`, `validate`, `check` and `audit` if a check fails, and of `record`."""


class Result(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Check(Resource):
    """One check.

    Fields:
        subject: the part of the cluster that the check is about.
        message: the fact.
        remedy: what to do about it; empty if the result is `ok`.
    """

    result: Result
    subject: str
    message: str
    remedy: str = ""
