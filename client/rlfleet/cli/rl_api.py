"""The RL API for the verbs: its options, and one fleet of it."""

from __future__ import annotations

from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Annotated

import typer

from rlfleet.errors import Forbidden
from rlfleet.ports import Json
from rlfleet.release import release
from rlfleet.rl_api import BlockingRlApi


@dataclass(frozen=True, slots=True)
class Named:
    """The RL API as the options before the verb name it. `closing` ends with the command."""

    url: str | None = None
    token_file: str | None = None
    ca: str | None = None
    closing: ExitStack = field(default_factory=ExitStack)


_NAMED: ContextVar[Named | None] = ContextVar("named", default=None)


def _show_version(wanted: bool) -> None:
    if not wanted:
        return
    print(f"rlfleet {release()}")  # noqa: T201 - rich would colour it
    raise typer.Exit


def options(
    context: typer.Context,
    url: Annotated[
        str | None, typer.Option(help="URL of the RL API (default: $RLFLEET_API_URL).")
    ] = None,
    token_file: Annotated[
        str | None,
        typer.Option(help="File with the token for the RL API (default: $RLFLEET_API_TOKEN_FILE)."),
    ] = None,
    ca: Annotated[
        str | None, typer.Option(help="CA file of the RL API (default: $RLFLEET_API_CA_FILE).")
    ] = None,
    version: Annotated[  # noqa: ARG001 - its callback ends the command
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Publish weights to inference fleets, and see what the fleets do."""
    found = Named(url, token_file, ca)
    _NAMED.set(found)
    context.call_on_close(found.closing.close)


def named() -> Named:
    """The options of the running command."""
    return _NAMED.get() or Named()


class FleetOfRlApi(BlockingRlApi):
    """A fleet of the RL API, which shows nothing else of the cluster. See `Api`."""

    def call(
        self,
        method: str,
        path: str,
        params: dict[str, str] | None = None,  # noqa: ARG002 - see Api
        body: Json | None = None,  # noqa: ARG002 - see Api
        *,
        media: str = "",  # noqa: ARG002 - see Api
    ) -> Json:
        """Errors: Forbidden."""
        raise Forbidden(f"the RL API does not answer {method} {path}; use a kubeconfig for it")

    def text(self, path: str, params: dict[str, str] | None = None) -> str:  # noqa: ARG002 - see Api
        """Errors: Forbidden."""
        raise Forbidden(f"the RL API does not answer GET {path}; use a kubeconfig for it")
