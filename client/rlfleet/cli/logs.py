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
from rlfleet.cli.log_lines import LogLine, concerns, is_about, log_line
from rlfleet.cli.options import Context, Format, Kubeconfig, Name, Namespace, Output
from rlfleet.cli.pods import OPERATOR, WORKER_CONTAINER
from rlfleet.errors import Forbidden, RlfleetError
from rlfleet.ports import Json
from rlfleet.resources import InferenceFleet

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LOOK_SECONDS = 2.0
_COLOURS = {"WARNING": "yellow", "ERROR": "red"}


def _seconds(given: str) -> float:
    """A duration such as `90s`, `10m`, `2h` or `1h30m`, in seconds."""
    if not re.fullmatch(r"(\d+[smhd])+", given):
        raise typer.BadParameter(f"{given!r} is no duration; write 90s, 10m, 2h or 1d")
    return sum(int(n) * _UNITS[unit] for n, unit in re.findall(r"(\d+)([smhd])", given))


def logs(
    name: Name = None,
    since: Annotated[
        float, typer.Option(parser=_seconds, metavar="DURATION", help="How far to look back.")
    ] = "10m",  # type: ignore[assignment]  # the parser reads it
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    version: Annotated[str | None, typer.Option(help="Only lines that name this version.")] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Format = Output.TABLE,
) -> None:
    """Show the logs of the operator and of the workers of one fleet, in the order of time."""
    api = cluster.connect(namespace, context, kubeconfig)
    weights = cluster.find(api, name)
    fleet = cluster.existing_fleet_of(api, weights)
    try:
        for lines in _looks(api, fleet, cluster.now() - timedelta(seconds=since), follow=follow):
            _print((one for one in lines if not version or is_about(one, version)), output)
    except KeyboardInterrupt:
        return


def _looks(
    api: Api, fleet: InferenceFleet, since: datetime, *, follow: bool
) -> Iterator[list[LogLine]]:
    """The lines that are new at each look, ordered by time."""
    reader = _Reader(api, fleet)
    while True:
        lines = sorted(reader.new_lines(since), key=lambda one: one.time)
        yield lines
        if not follow:
            return
        since = max([since, *(one.time for one in lines)])
        time.sleep(_LOOK_SECONDS)


class _Reader:
    """Reads the logs of all pods, and returns each line once."""

    def __init__(self, api: Api, fleet: InferenceFleet) -> None:
        self._api = api
        self._fleet = fleet
        self._seen: dict[str, set[str]] = {}
        self._warned: set[str] = set()

    def new_lines(self, since: datetime) -> Iterator[LogLine]:
        """Lines after a time that no earlier look has returned."""
        fleet = self._fleet.metadata
        for pod in self._operators():
            for line in self._lines_of(pod, _first_container(pod), since):
                if concerns(line, fleet.namespace, fleet.name):
                    yield line
        for pod in cluster.pods_of(self._api, self._fleet):
            yield from self._lines_of(pod, WORKER_CONTAINER, since)

    def _lines_of(self, pod: Json, container: str, since: datetime) -> Iterator[LogLine]:
        name, uid = pod["metadata"]["name"], pod["metadata"].get("uid", "")
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{name}/log"
        # The API server takes whole seconds, so the lines of the last one come again.
        begin = since.replace(microsecond=0).isoformat().replace("+00:00", "Z")
        params = {"container": container, "timestamps": "true", "sinceTime": begin}
        try:
            raw = [line for line in self._api.text(path, params).split("\n") if line]
        except Forbidden:
            raise
        except RlfleetError as error:
            self._warn(name, f"the log of {name} is not shown: {error}")
            return
        before, self._seen[uid or name] = self._seen.get(uid or name, set()), set(raw)
        for line in raw:
            if line not in before:
                yield log_line(line, name)

    def _operators(self) -> list[Json]:
        """The pods of operators: of all namespaces, or of this one if it may see no others."""
        labels = {"labelSelector": OPERATOR}
        own = f"/api/v1/namespaces/{self._fleet.metadata.namespace}/pods"
        try:
            found: list[Json] = cluster.get(self._api, "/api/v1/pods", labels)["items"]
        except Forbidden as error:
            found = cluster.get(self._api, own, labels)["items"]
            if not found:
                self._warn("operator", f"the operator's log is not shown: {error}")
        return found

    def _warn(self, subject: str, message: str) -> None:
        if subject not in self._warned:
            show.errors().print(f"[yellow]warning:[/] {escape(message)}")
        self._warned.add(subject)


def _first_container(pod: Json) -> str:
    return str(pod["spec"]["containers"][0]["name"])


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
