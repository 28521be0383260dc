"""The verbs together, and what an error means for the exit code."""

from __future__ import annotations

from typing import Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

from rlfleet.cli import rl_api, show
from rlfleet.cli.audit import audit
from rlfleet.cli.changes import publish, retry, rollback, undo
from rlfleet.cli.check import check
from rlfleet.cli.completion import completion
from rlfleet.cli.doctor import doctor
from rlfleet.cli.explain import explain
from rlfleet.cli.history import history
from rlfleet.cli.logs import logs
from rlfleet.cli.record import record
from rlfleet.cli.report import report
from rlfleet.cli.status import status
from rlfleet.cli.suspend import resume, suspend
from rlfleet.cli.validate import validate
from rlfleet.cli.watch import watch
from rlfleet.cli.workers import workers
from rlfleet.errors import (
    Forbidden,
    NotConfigured,
    NotFound,
    Refused,
    RlfleetError,
    Superseded,
    TimedOut,
    Unavailable,
)

EXIT_CODES: dict[type[RlfleetError], int] = {
    Refused: 3,
    TimedOut: 4,
    Superseded: 5,
    NotFound: 6,
    Forbidden: 7,
    NotConfigured: 8,
    Unavailable: 9,
}
"""Error → exit code. 0 is success, 1 any other error, 2 a wrong command line."""


class Verbs(TyperGroup):
    """Prints the errors of this package in one line, and ends with their exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run a verb."""
        try:
            return super().invoke(ctx)
        except RlfleetError as error:
            show.errors().print(f"[red]error:[/] {escape(str(error))}")
            codes = (code for kind, code in EXIT_CODES.items() if isinstance(error, kind))
            raise typer.Exit(next(codes, 1)) from None


app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.callback()(rl_api.options)
for verb in (
    status,
    watch,
    publish,
    rollback,
    undo,
    retry,
    suspend,
    resume,
    history,
    workers,
    logs,
    report,
    explain,
    doctor,
    validate,
    check,
    record,
    audit,
    completion,
):
    app.command()(verb)
