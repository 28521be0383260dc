"""Settings of the RL API's process, from flags or `RLFLEET_API_*` variables; flags win."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationInfo, field_validator

from fleet_operator.command_line import fleets, parse, words
from fleet_worker.logs import LogFormat

UNKNOWN_PER_SECOND = 10.0


class Settings(BaseModel, frozen=True, extra="forbid", validate_default=True):
    """The settings of a process. Each is a flag, and its description is the help."""

    host: str | None = Field(
        None, description="address to listen on (default: all addresses of both families)"
    )
    port: int = Field(8090, ge=1, le=65_535, description="port of the API, /livez and /readyz")
    metrics_port: int = Field(0, ge=0, le=65_535, description="port of /metrics (default: none)")
    probe_port: int = Field(
        0, ge=0, le=65_535, description="port of /livez and /readyz for the kubelet (default: none)"
    )
    tls_cert: Annotated[Path | None, BeforeValidator(lambda text: text or None)] = Field(
        None, description="certificate chain in PEM; the port is HTTPS then (default: HTTP)"
    )
    tls_key: Annotated[Path | None, BeforeValidator(lambda text: text or None)] = Field(
        None, description="private key of the certificate, in PEM"
    )
    keys_folder: Annotated[Path | None, BeforeValidator(lambda text: text or None)] = Field(
        None,
        description="folder of static keys, one file <namespace>.<fleet> each (default: none)",
    )
    public_keys_folder: Annotated[Path | None, BeforeValidator(lambda text: text or None)] = Field(
        None,
        description="folder of the keys of public ports, one file <namespace>.<fleet> each, for requests "
        "that are passed on (default: none)",
    )
    audiences: Annotated[tuple[str, ...], BeforeValidator(words)] = Field(
        ("rlfleet",),
        description="comma-separated audiences of tokens (default: rlfleet); empty: the API server's own, which "
        "needs a certificate",
    )
    external_fleets: Annotated[tuple[tuple[str, str], ...], BeforeValidator(fleets)] = Field(
        (),
        description="comma-separated <namespace>/<fleet> of management External whose workers trainers "
        "may call here (default: each whose namespace lets this account read its admin token)",
    )
    requests_per_second: float = Field(
        50, ge=0.1, le=100_000, description="requests with one credential"
    )
    unknown_tokens_per_second: float = Field(
        UNKNOWN_PER_SECOND,
        ge=0.1,
        le=100_000,
        description="different tokens of one client address that are not accepted",
    )
    concurrent_requests: int = Field(256, ge=1, le=100_000, description="requests that run at once")
    concurrent_waits: int = Field(
        256, ge=1, le=100_000, description="requests that wait for rollouts or workers at once"
    )
    proxied_requests_per_second: float = Field(
        1000, ge=0.1, le=100_000, description="requests with one credential that are passed on"
    )
    concurrent_proxied_requests: int = Field(
        4096, ge=1, le=100_000, description="requests that are passed on at once"
    )
    proxied_body_bytes: int = Field(
        32 * 1024 * 1024, ge=1024, le=1 << 30, description="largest body that is passed on"
    )
    body_bytes: int = Field(
        64 * 1024 * 1024,
        ge=1 << 16,
        le=1 << 40,
        description="bodies that are read whole, in memory at once",
    )
    event_streams: int = Field(
        64, ge=1, le=100_000, description="streams of events that are open at once"
    )
    drain_seconds: float = Field(
        5, ge=0, le=600, description="how long to serve after SIGTERM, until no more requests come"
    )
    log_format: LogFormat = Field("json", description="format of log lines: json or text")
    log_level: Literal["DEBUG", "INFO", "WARNING"] = Field(
        "INFO", description="lowest level that is logged: DEBUG, INFO or WARNING"
    )

    @field_validator("audiences")
    @classmethod
    def _keep_tokens_of_the_api_server_secret(
        cls, audiences: tuple[str, ...], info: ValidationInfo
    ) -> tuple[str, ...]:
        # A reader of the network would have all that a caller may do in Kubernetes.
        if not audiences and info.data.get("tls_cert") is None:
            raise ValueError(
                "tokens for the API server would come over HTTP: name an audience, such as rlfleet, or set "
                "--tls-cert and --tls-key"
            )
        return audiences


def parse_settings(arguments: Sequence[str] | None = None) -> Settings:
    """Read the command line. Ends the process with a message if a value is invalid."""
    return parse(
        Settings,
        program="python -m fleet_api",
        description="Serves the RL API: state, discovery and weights of fleets over HTTP.",
        variables="RLFLEET_API_",
        arguments=arguments,
    )
