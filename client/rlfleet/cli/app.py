"""The verbs together, and what an error means for the exit code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

from rlfleet.cli import rl_api, show
from rlfleet.cli.audit import audit
from rlfleet.cli.changes import publish, resume, retry, rollback, suspend, undo
from rlfleet.cli.check import check
from rlfleet.cli.completion import completion
from rlfleet.cli.dashboard import dashboard
from rlfleet.cli.delta import delta
from rlfleet.cli.doctor import doctor
from rlfleet.cli.explain import explain
from rlfleet.cli.history import history
from rlfleet.cli.init import init
from rlfleet.cli.logs import logs
from rlfleet.cli.metrics import metrics
from rlfleet.cli.record import record
from rlfleet.cli.replacing import drain, restart
from rlfleet.cli.report import report
from rlfleet.cli.status import status
from rlfleet.cli.validate import validate
from rlfleet.cli.version import version
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
app.callback(epilog="Each verb has an example: rlfleet VERB --help")(rl_api.options)
START, LOOK, DIAGNOSE = "Start", "Look", "Find out what is wrong"
CHANGE, WORKERS = "Change versions", "Replace workers"
TOKENS, PROGRAM = "Check which weights made tokens", "This program"
VERBS: tuple[tuple[str, Callable[..., None], str], ...] = (
    (START, init, "init policy --model Qwen/Qwen3-8B --trainer prime-rl"),
    (LOOK, status, "status -A"),
    (LOOK, watch, "watch policy -n rl"),
    (LOOK, dashboard, "dashboard policy -n rl"),
    (LOOK, workers, "workers policy -n rl -o wide"),
    (LOOK, history, "history policy -n rl"),
    (LOOK, logs, "logs policy -n rl --since 1h --version 43"),
    (LOOK, report, "report policy -n rl --file rollout.html"),
    (LOOK, metrics, "metrics policy-2 -n rl --contains vllm:num_requests"),
    (DIAGNOSE, explain, "explain policy -n rl"),
    (DIAGNOSE, doctor, "doctor -n rl --quiet"),
    (DIAGNOSE, validate, "validate fleet.yaml -n rl"),
    (DIAGNOSE, check, "check /weights/step_43 policy -n rl"),
    (CHANGE, publish, "publish 43 policy -n rl --path /weights/step_43 --wait"),
    (CHANGE, delta, "delta /local/step_42 /local/step_43 /weights/step_43"),
    (CHANGE, rollback, "rollback 41 policy -n rl --wait"),
    (CHANGE, undo, "undo policy -n rl"),
    (CHANGE, retry, "retry policy -n rl --wait"),
    (CHANGE, suspend, "suspend policy -n rl"),
    (CHANGE, resume, "resume policy -n rl"),
    (WORKERS, restart, "restart policy -n rl"),
    (WORKERS, drain, "drain policy-2 -n rl"),
    (TOKENS, record, "record replies.jsonl"),
    (TOKENS, audit, "audit records.jsonl policy -n rl"),
    (PROGRAM, version, "version -n rl"),
    (PROGRAM, completion, "completion bash"),
)
"""Group, verb, and a command line of it."""
for group, verb, example in VERBS:
    app.command(rich_help_panel=group, epilog=f"Example: rlfleet {example}")(verb)
