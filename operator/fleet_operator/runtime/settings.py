"""Settings of the operator process, from flags or `RLFLEET_*` variables; flags win."""

from __future__ import annotations

import argparse
import os
import socket
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SERVICE_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an operator process is told at start.

    Fields:
        namespaces: watched namespaces; empty means all.
        lease_namespace: where the Lease lies.
        default_image: worker image of fleets that name none.
        identity: new for every process, so that a restarted one never inherits a Lease.
    """

    namespaces: tuple[str, ...]
    lease_namespace: str
    lease_name: str
    default_image: str
    port: int
    log_format: str
    log_level: str
    resync_seconds: float
    identity: str


def parse_settings(arguments: Sequence[str] | None = None) -> Settings:
    """Read the command line; ends the process with a message when it does not fit."""
    parser = argparse.ArgumentParser(
        prog="python -m fleet_operator",
        description="Keeps InferenceFleets on the weights that WeightVersions ask for.",
        epilog="Every flag can be given as a variable instead: --log-level as RLFLEET_LOG_LEVEL.",
    )

    def add(flag: str, default: str, text: str) -> None:
        variable = "RLFLEET_" + flag.strip("-").replace("-", "_").upper()
        parser.add_argument(flag, default=os.environ.get(variable, default), help=text)

    add("--namespaces", "", "comma-separated namespaces to watch (default: all)")
    add("--lease-namespace", _own_namespace(), "namespace of the Lease (default: the pod's own)")
    add("--lease-name", "rlfleet-operator", "name of the Lease")
    add("--default-image", "", "worker image of fleets that name none")
    add("--port", "8080", "port of /metrics, /livez and /readyz")
    add("--log-format", "json", "how log lines look: json or text")
    add("--log-level", "INFO", "least level that is logged: DEBUG, INFO or WARNING")
    add("--resync-seconds", "30", "how often a quiet fleet is looked at")
    parsed = parser.parse_args(arguments)
    for flag, fits, told in (
        # By hand: argparse checks choices and types of flags, not those of variables.
        ("--log-format", parsed.log_format in {"json", "text"}, "json or text"),
        ("--log-level", parsed.log_level in {"DEBUG", "INFO", "WARNING"}, "DEBUG, INFO or WARNING"),
        ("--port", parsed.port.isdecimal() and _is_between(parsed.port, 1, 65_535), "a port"),
        ("--resync-seconds", _is_between(parsed.resync_seconds, 1, 3600), "1 to 3600 seconds"),
        ("--lease-namespace", parsed.lease_namespace, "a namespace"),
    ):
        if not fits:
            parser.error(f"{flag}: must be {told}")
    namespaces = parsed.namespaces.replace(" ", "").split(",")
    return Settings(
        namespaces=tuple(dict.fromkeys(n for n in namespaces if n)),
        lease_namespace=parsed.lease_namespace,
        lease_name=parsed.lease_name,
        default_image=parsed.default_image,
        port=int(parsed.port),
        log_format=parsed.log_format,
        log_level=parsed.log_level,
        resync_seconds=float(parsed.resync_seconds),
        identity=f"{socket.gethostname()}_{uuid.uuid4()}",
    )


def _is_between(text: str, least: float, most: float) -> bool:
    try:
        return least <= float(text) <= most
    except ValueError:
        return False


def _own_namespace() -> str:
    try:
        return SERVICE_ACCOUNT_NAMESPACE.read_text(encoding="utf-8").strip()
    except OSError:
        return "default"
