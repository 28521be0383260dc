"""Settings of the operator process, from flags or `RLFLEET_*` variables; flags win."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field

from fleet_operator.command_line import fleets, parse, words
from fleet_worker.logs import LogFormat

SERVICE_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def _own_namespace() -> str:
    try:
        return SERVICE_ACCOUNT_NAMESPACE.read_text(encoding="utf-8").strip()
    except OSError:
        return "default"


class Settings(BaseModel, frozen=True, extra="forbid", validate_default=True):
    """The settings of an operator process. Each is a flag, and its description is the help."""

    namespaces: Annotated[tuple[str, ...], BeforeValidator(words)] = Field(
        (), description="comma-separated namespaces to watch (default: all)"
    )
    secrets_of: Annotated[tuple[tuple[str, str], ...], BeforeValidator(fleets)] = Field(
        (),
        description="comma-separated <namespace>/<fleet> whose Secrets the account may read (default: all "
        "Secrets in the watched namespaces)",
    )
    lease_namespace: str = Field(
        default_factory=_own_namespace,
        min_length=1,
        description="namespace of the Lease (default: the pod's own)",
    )
    lease_name: str = Field("rlfleet-operator", description="name of the Lease")
    default_image: str = Field("", description="worker image of fleets without one")
    metrics_port: int = Field(8080, ge=1, le=65_535, description="port of /metrics")
    probe_port: int = Field(8082, ge=1, le=65_535, description="port of /livez and /readyz")
    fleet_metrics: bool = Field(
        default=False, description="whether /metrics has the series that name fleets: true or false"
    )
    log_format: LogFormat = Field("json", description="format of log lines: json or text")
    log_level: Literal["DEBUG", "INFO", "WARNING"] = Field(
        "INFO", description="lowest level that is logged: DEBUG, INFO or WARNING"
    )
    resync_seconds: float = Field(
        30, ge=1, le=3600, description="how often an idle fleet is reconciled"
    )
    otlp_endpoint: str = Field(
        "",
        pattern="^(https?://.*)?$",
        description="http:// or https:// address of an OTLP collector, for spans of rollouts (default: none)",
    )
    identity: str = Field(default_factory=lambda: f"{socket.gethostname()}_{uuid.uuid4()}")
    """New for every process, so that a restarted one never inherits a Lease. It has no flag."""


def parse_settings(arguments: Sequence[str] | None = None) -> Settings:
    """Read the command line. Ends the process with a message if a value is invalid."""
    return parse(
        Settings,
        program="python -m fleet_operator",
        description="Keeps InferenceFleets on the weights that WeightVersions ask for.",
        variables="RLFLEET_",
        arguments=arguments,
    )
