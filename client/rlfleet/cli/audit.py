"""`rlfleet audit`: do the labels of recorded tokens name weights that the fleet knows?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from pydantic import ValidationError

from rlfleet.cli import checklist, cluster, lines, show
from rlfleet.cli.labels import label_checks, tokens_of
from rlfleet.cli.options import Context, Format, Kubeconfig, Name, Namespace, Output
from rlfleet.errors import IncompleteReply
from rlfleet.sampling import WeightSpan
from rlfleet_resources.base import Resource


class _Record(Resource):
    """A line that `rlfleet record` has printed."""

    weight_versions: tuple[WeightSpan, ...]


def audit(
    records: Annotated[
        str, typer.Argument(help="A file of `rlfleet record`; - for standard input.")
    ],
    name: Name = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Format = Output.TABLE,
) -> None:
    """Compare labels with pinned digests; recomputes nothing.

    To recompute them, use the worker's command `python -m fleet_worker audit`. It needs the checkpoints
    and torch.
    """
    tokens = tokens_of(_spans(records))
    if not tokens:
        raise IncompleteReply(f"{records} has no record with tokens; write it with rlfleet record")
    api = cluster.connect(namespace, context, kubeconfig)
    fleet, _ = cluster.find_fleet(api, name)
    checks = list(label_checks(tokens, fleet.status.pinned))
    if output in {Output.TABLE, Output.WIDE}:
        note = f"Labels only. To compute the tokens again: python -m fleet_worker audit {records} --checkpoints …"
        show.errors().print(note, markup=False)
    checklist.report(checks, output)


def _spans(records: str) -> Iterator[WeightSpan]:
    for number, line in lines.read(records):
        try:
            yield from _Record.model_validate_json(line).weight_versions
        except ValidationError:
            raise IncompleteReply(
                f"line {number} is not a record; write it with rlfleet record"
            ) from None
