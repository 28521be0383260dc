"""Settings of the collector, from flags or `RLFLEET_COLLECTOR_*` variables; flags win."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field

from fleet_operator.command_line import parse, words
from fleet_worker.logs import LogFormat
from rlfleet_resources.source import WeightRoot


class Settings(BaseModel, frozen=True, extra="forbid"):
    """The settings of one run. Each is a flag, and its description is the help."""

    namespaces: Annotated[tuple[str, ...], BeforeValidator(words), Field(min_length=1)] = Field(
        description="comma-separated namespaces: first the one whose rules count, then all others whose fleets read the volume"
    )
    roots: Annotated[tuple[WeightRoot, ...], BeforeValidator(words), Field(min_length=1)] = Field(
        description="comma-separated directories, at the paths that workers see, and prefixes in object stores below which versions may be deleted"
    )
    grace_seconds: int = Field(
        90,
        ge=75,
        le=3600,
        description="seconds between the rename or the mark of a version and its deletion, in which the operator must renew its "
        "heartbeat twice, and the status show the workers that still read it",
    )
    dry_run: bool = Field(
        default=False, description="only say what would be deleted: true or false"
    )
    log_format: LogFormat = Field("json", description="format of log lines: json or text")
    log_level: Literal["DEBUG", "INFO", "WARNING"] = Field(
        "INFO", description="lowest level that is logged: DEBUG, INFO or WARNING"
    )


def parse_settings(arguments: Sequence[str] | None = None) -> Settings:
    """Read the command line. Ends the process with a message if a value is invalid."""
    return parse(
        Settings,
        program="python -m fleet_collector",
        description="Deletes versions that no fleet needs, by spec.retention of each WeightVersion.",
        variables="RLFLEET_COLLECTOR_",
        arguments=arguments,
    )
