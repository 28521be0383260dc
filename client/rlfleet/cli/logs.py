"""`rlfleet logs`: what the operator and the workers of one fleet log, in one order."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Annotated

import typer
import yaml
from rich.markup import escape

from rlfleet.cli import cluster, show
from rlfleet.cli.api import Api
from rlfleet.cli.log_lines import LogLine, is_about
from rlfleet.cli.log_reader import LogReader
from rlfleet.cli.options import Context, Format, Kubeconfig, Name, Namespace, Output
from rlfleet.resources import InferenceFleet

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LOOK_SECONDS = 2.0
_COLOURS = {"WARNING": "yellow", "ERROR": "red"}


def _seconds(given: str) -> float:
    """A duration such as `90s`, `10m`, `2h` or `1h30m`, in seconds."""
    if not re.fullmatch(r"(\d+[smhd])+", given):
        raise typer.BadParameter(f"invalid duration {given!r}; write 90s, 10m, 2h or 1d")
    return sum(int(n) * _UNITS[unit] for n, unit in re.findall(r"(\d+)([smhd])", given))


def logs(
    name: Name = None,
    since: Annotated[
        float, typer.Option(parser=_seconds, metavar="DURATION", help="How far to look back.")
    ] = "10m",  # type: ignore[assignment]  # the parser reads it
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until Ctrl-C.")] = False,
    version: Annotated[str | None, typer.Option(help="Only lines that name this version.")] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Format = Output.TABLE,
) -> None:
    """Show the logs of the operator and of the workers of one fleet, in the order of time."""
    api = cluster.connect(namespace, context, kubeconfig)
    fleet, _ = cluster.find_fleet(api, name)
    try:
        for lines in _looks(api, fleet, cluster.now() - timedelta(seconds=since), follow=follow):
            _print((one for one in lines if not version or is_about(one, version)), output)
    except KeyboardInterrupt:
        return


def _looks(
    api: Api, fleet: InferenceFleet, since: datetime, *, follow: bool
) -> Iterator[list[LogLine]]:
    """The lines that are new at each look, ordered by time."""
    reader = LogReader(api, fleet)
    while True:
        lines = sorted(reader.new_lines(since), key=lambda one: one.time)
        yield lines
        if not follow:
            return
        time.sleep(_LOOK_SECONDS)


def _print(lines: Iterable[LogLine], output: Output) -> None:
    console = show.console()
    for line in lines:
        data = line.model_dump(mode="json", by_alias=True)
        if output is Output.JSON:
            print(json.dumps(data), flush=True)  # noqa: T201 - rich would wrap and colour it
        elif output is Output.YAML:
            print(yaml.safe_dump(data, sort_keys=False, explicit_start=True), end="", flush=True)  # noqa: T201 - as above
        else:
            console.print(_row(line, wide=output is Output.WIDE))


def _row(line: LogLine, *, wide: bool) -> str:
    when = line.time.strftime("%Y-%m-%d %H:%M:%S.%f" if wide else "%H:%M:%S.%f")[:-3]
    level = f"{line.level:<7}"
    if colour := _COLOURS.get(line.level):
        level = f"[{colour}]{level}[/]"
    return f"{when}  {line.pod:<20}  {level}  {escape(line.words)}"
