"""Run a change and say how it went: for the verbs that change a version."""

from __future__ import annotations

from collections.abc import Callable

from rich.markup import escape

from rlfleet.cli import show
from rlfleet.cli.options import Output
from rlfleet.ports import Place
from rlfleet.rollout import Rollout
from rlfleet.weights import Weights
from rlfleet_resources.base import Resource
from rlfleet_resources.weights_status import RolloutEffect, RolloutTimings, RolloutWorkers


class Outcome(Resource):
    """A requested version, as it was seen last.

    Fields:
        applied: every worker with traffic serves it; false without `--wait`.
        timings: of this rollout; zeros until its phases end.
        unchanged: why the version seems to have changed nothing; empty if it has changed something, or
            before that is known.
        remarks: what of the files workers ignore or cast; empty as for `unchanged`.
    """

    namespace: str
    name: str
    version: str
    run_id: str | None
    applied: bool
    timings: RolloutTimings
    workers: RolloutWorkers
    effect: RolloutEffect | None
    unchanged: str
    remarks: str


def report(
    objects: Place, name: str, change: Callable[[Weights], Rollout], output: Output, *, wait: bool
) -> None:
    """Make the change, and print its outcome. The errors of `change` are raised."""
    with show.errors().status(f"waiting for {name}" if wait else f"asking {name}"):
        done = change(Weights(name, objects=objects))
    own = {field: getattr(done, field) for field in Outcome.model_fields if hasattr(done, field)}
    found = Outcome(namespace=objects.namespace, name=name, **own)
    show.show(found, output, lambda: _render(found))


def _render(done: Outcome) -> None:
    console = show.console()
    name, version = escape(done.name), escape(done.version)
    if not done.applied:
        console.print(
            f"{name}: version {version} is requested. "
            f"Follow it: rlfleet watch {name} -n {done.namespace}"
        )
        return
    timings = done.timings
    console.print(
        f"{name}: version {version} is applied on "
        f"{show.plural(done.workers.applied, 'worker')} after {show.seconds(timings.total_seconds)}, "
        f"longest pause {show.seconds(timings.max_worker_pause_seconds)}"
    )
    if done.unchanged:
        console.print(f"[yellow]WeightsUnchanged: {escape(done.unchanged)}[/]")
    if done.remarks:
        console.print(f"Remarks: {escape(done.remarks)}")
