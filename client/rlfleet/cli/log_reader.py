"""Reads the logs of the operator and of the workers of one fleet."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from rich.markup import escape

from rlfleet.cli import cluster, show
from rlfleet.cli.api import Api
from rlfleet.cli.log_lines import LogLine, concerns, log_line
from rlfleet.cli.pods import OPERATOR
from rlfleet.errors import Forbidden, RlfleetError
from rlfleet.ports import Json
from rlfleet.resources import InferenceFleet
from rlfleet_resources.names import WORKER_CONTAINER


class LogReader:
    """Reads the logs of all pods, and returns each line once."""

    def __init__(self, api: Api, fleet: InferenceFleet) -> None:
        self._api = api
        self._fleet = fleet
        self._seen: dict[str, set[str]] = {}
        self._since: dict[str, datetime] = {}
        self._warned: set[str] = set()

    def new_lines(self, since: datetime) -> Iterator[LogLine]:
        """Lines after a time that no earlier look has returned. Errors: Forbidden.

        Each pod is read from its own last line on: pods are read one after another, and their clocks differ.
        """
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
        key = uid or name
        begin = self._since.get(key, since).replace(microsecond=0).isoformat()
        params = {
            "container": container,
            "timestamps": "true",
            "sinceTime": begin.replace("+00:00", "Z"),
        }
        try:
            raw = [line for line in self._api.text(path, params).split("\n") if line]
        except Forbidden:
            raise
        except RlfleetError as error:
            self._warn(name, f"the log of {name} is not shown: {error}")
            return
        before, self._seen[key] = self._seen.get(key, set()), set(raw)
        if raw:
            self._since[key] = max(self._since.get(key, since), log_line(raw[-1], name).time)
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
