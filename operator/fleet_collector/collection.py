"""One run over the folders of all rules: look, put aside, wait, look again, delete.

The rename, or the mark in a store, takes a version away from workers before the status is read that its deletion rests
on. So a worker that reads the version has opened it before, and after the wait the status shows this worker. No time of day
lets a version go. A delta goes before its base, and comes back after it.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Protocol

from pydantic import ValidationError

from fleet_collector.needs import (
    Json,
    claims_on,
    late_operators,
    name_of,
    needs_of,
    rules_of,
    template_in,
)
from fleet_collector.plan import (
    Claim,
    Content,
    Directory,
    Needs,
    Obstacle,
    OutsideError,
    Plan,
    Template,
    deletions,
)
from fleet_collector.prefix import Prefix
from fleet_collector.volume import Folder
from fleet_worker.logs import fields
from fleet_worker.object_stores import endpoint_of
from rlfleet.bounded_answers import TooLarge
from rlfleet.errors import RlfleetError, Unavailable
from rlfleet.ports import GoneError
from rlfleet_resources.names import API_VERSION, FLEET_PLURAL, WEIGHTS_PLURAL

_LOG = logging.getLogger(__name__)

_LOOK_SECONDS = 5.0
"""The age of a look after which the next version is deleted only after another one."""


_OBJECTS_OF_A_PAGE = 100
MOST_BYTES = 16 * 2**20
"""Specs and statuses of one kind in one namespace, as JSON. Python takes some times as much memory for them."""
_NAMES = ("name", "namespace", "uid", "generation", "resourceVersion")


class Versions(Protocol):
    """A folder of versions: `volume.Folder`, `prefix.Prefix`. Errors of all: OSError."""

    def content(self) -> Content:
        """Read it."""
        ...

    def put_aside(self, directory: Directory) -> str:
        """Take a version from workers. Returns: its place."""
        ...

    def bring_back(self, directory: Directory) -> bool:
        """Give it back. Returns: whether it was given. FileNotFoundError: another collector has it."""
        ...

    def delete(self, directory: Directory) -> None:
        """Delete a version that is aside. FileNotFoundError: another collector was faster."""
        ...

    def finish(self) -> Iterator[tuple[str, OSError | None]]:
        """Delete what a collector that was killed had begun to delete. Yields: names, and errors."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


class Cluster(Protocol):
    """The API server."""

    def call(
        self, method: str, path: str, params: dict[str, str] | None = None, body: Json | None = None
    ) -> Json:
        """Call a path, and return the object that the server answers with. Errors: RlfleetError."""
        ...


@dataclass(frozen=True, slots=True)
class Objects:
    """All fleets and WeightVersions of the namespaces, as the API server has just had them.

    Fields:
        beats: `namespace/name` of each Lease of an operator → when it was renewed last.
    """

    fleets: Sequence[Json]
    weights: Sequence[Json]
    beats: Mapping[str, str] = field(default_factory=dict)

    @property
    def versions(self) -> str:
        """Their resourceVersions, for the log."""
        named = (
            f"{name_of(o)}@{o['metadata'].get('resourceVersion', '?')}"
            for o in (*self.fleets, *self.weights)
        )
        return " ".join(named)[:1000]


@dataclass(slots=True)
class Outcome:
    """The result of a run for one folder.

    Fields:
        folder: empty for a WeightVersion without one.
        claims: the WeightVersions with versions in it.
        deleted: those that are gone.
        kept: those that stay.
        problems: reasons against deletions that need attention.
        waits: those that pass by themselves.
    """

    folder: str
    claims: Sequence[Claim] = ()
    deleted: list[Directory] = field(default_factory=list)
    kept: list[Directory] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)

    def text(self) -> str:
        """One sentence, or one problem."""
        if not self.folder:
            return "; ".join(self.problems)
        kept = f"{_counted(self.kept)} stay in {self.folder}"
        return f"deleted {_counted(self.deleted)}; {kept}" if self.deleted else kept


def read_objects(cluster: Cluster, namespaces: Sequence[str]) -> Objects:
    """The objects, not from a cache of the API server.

    Args:
        cluster: The API server.
        namespaces: The collector's own first. Rules of the others do not count: an account of another namespace
            must not decide about the versions of this one.

    Errors: RlfleetError.
    """

    def all_of(plural: str, api: str = API_VERSION) -> list[Json]:
        return [
            each
            for namespace in namespaces
            for each in _listed(cluster, f"/apis/{api}/namespaces/{namespace}/{plural}")
        ]

    # The fleets are read last: their statuses know of what the specs have asked for, and were written by operators
    # that have renewed these Leases.
    leases = all_of("leases", "coordination.k8s.io/v1")
    weights = all_of(WEIGHTS_PLURAL)
    for each in weights:
        if each["metadata"]["namespace"] != namespaces[0]:
            each.get("spec", {}).pop("retention", None)
    beats = {name_of(each): str(each.get("spec", {}).get("renewTime")) for each in leases}
    return Objects(all_of(FLEET_PLURAL), weights, beats)


def _listed(cluster: Cluster, path: str) -> list[Json]:
    """The objects under a path, page by page, and of each only the parts that decide.

    Errors: those of the cluster; RlfleetError if there is more than a run may keep in memory.
    """
    found: list[Json] = []
    params, most, size_bytes = dict[str, str](), _OBJECTS_OF_A_PAGE, 0
    while True:
        try:
            page = cluster.call("GET", path, params | {"limit": str(most)})
        except TooLarge:
            if most == 1:
                raise
            most //= 2
            continue
        except GoneError as error:
            raise Unavailable(f"the next page of {path} came too late: {error}") from error
        for each in page["items"]:
            kept = {part: each[part] for part in ("spec", "status") if part in each}
            try:
                size_bytes += len(json.dumps(kept))
            except RecursionError:
                kept.pop("spec", None)
            if size_bytes > MOST_BYTES:
                raise RlfleetError(
                    f"the objects under {path} have more than {MOST_BYTES // 2**20} MiB together: delete some, and "
                    "bound their number by a ResourceQuota"
                )
            metadata = each["metadata"]
            found.append(kept | {"metadata": {k: metadata[k] for k in _NAMES if k in metadata}})
        following = page.get("metadata", {}).get("continue")
        if not following:
            return found
        params["continue"] = following


def collect(
    read: Callable[[], Objects],
    roots: Sequence[str],
    wait: Callable[[], None],
    *,
    dry_run: bool = False,
) -> list[Outcome]:
    """Delete once what no fleet needs.

    Args:
        read: Reads the objects.
        roots: Directories below which versions may be deleted.
        wait: Waits until operators have renewed their heartbeats, and the status shows what workers have opened. It is
            called twice, since the first renewal that comes may have begun before versions were put aside.
        dry_run: Change nothing.

    Errors: RlfleetError of `read`. Versions that are aside get their names back. ValidationError for a rule.
    """
    with ExitStack() as at_the_end:
        objects = read()
        folders, outcomes = _folders(objects.weights)
        works = []
        for path in folders:
            works.append(work := _Work(path, roots, objects))
            at_the_end.callback(work.close)
            work.begin(objects, dry_run=dry_run)
        if any(work.aside or work.unread for work in works):
            beats = [read().beats]
            for _ in range(2):
                wait()
                beats.append(read().beats)
            for work in works:
                work.end(read, beats)
    return [*outcomes, *(work.outcome for work in works)]


def _folders(weights: Iterable[Json]) -> tuple[list[str], list[Outcome]]:
    """The folders of all rules, and the problems of those without one."""
    found, problems = dict[str, None](), list[Outcome]()
    for each, rule in rules_of(weights):
        try:
            found[template_in(each).folder] = None
        except ValueError as error:  # also that of pydantic
            why = "update the collector" if isinstance(error, ValidationError) else str(error)
            problem = f"nothing of {name_of(each)} is deleted: {why}"
            _LOG.error("%s", problem)
            uid = each["metadata"].get("uid", "")
            claim = Claim(name_of(each), Template("", "", ""), "", rule, uid)
            problems.append(Outcome("", [claim], problems=[problem]))
    return list(found), problems


class _Work:
    """One folder during a run.

    Fields:
        aside: its versions that may go at the end.
        unread: those whose index could not be read. Unless it can at the end, something is wrong with it.
    """

    def __init__(self, path: str, roots: Sequence[str], objects: Objects) -> None:
        self.aside: list[Directory] = []
        self.unread: frozenset[str] = frozenset()
        claims = claims_on(path, objects.weights)
        self.outcome = Outcome(path, claims)
        self._path = path
        self._folder: Versions | None = None
        templates = [claim.template for claim in claims]
        try:
            opened = Prefix if "://" in path else Folder
            self._folder = opened.open(path, roots, templates)
            if self._folder is None and any(claim.applied for claim in claims):
                self._problem(
                    f"{path} does not exist: mount the volume of its fleet, at the same path"
                )
        except (OutsideError, OSError) as error:
            self._problem(f"nothing of {path} is deleted: {error}")

    def close(self) -> None:
        """Give what is aside its name, and close the folder."""
        self.bring_back(self.aside, "this run does not delete it")
        if self._folder is not None:
            self._folder.close()

    def begin(self, objects: Objects, *, dry_run: bool) -> None:
        """Put aside what nothing needs, and bring back what something does."""
        folder = self._folder
        if folder is None:
            return
        try:
            if not dry_run:
                self._finish(folder)
            plan = self._plan(folder.content(), objects, ())
        except OSError as error:
            self._problem(f"{self._path} cannot be read: {error}")
            return
        self._report([each for each in plan.obstacles if dry_run or not each.unread])
        self.unread = frozenset(each.unread for each in plan.obstacles if each.unread)
        for verdict in plan.verdicts:
            found, level = verdict.directory, logging.INFO if dry_run else logging.DEBUG
            words = "would be deleted" if verdict.goes else "stays"
            _LOG.log(level, "%s %s (%s): %s", found.name, words, _size([found]), verdict.why)
            if dry_run or not verdict.goes:
                self.outcome.kept += [] if verdict.goes else [found]
            else:
                self._put_aside(folder, found)
        if dry_run:
            going = [verdict.directory for verdict in plan.verdicts if verdict.goes]
            _LOG.info("%s would be deleted from %s", _counted(going), self._path)
        else:
            back = [v.directory for v in plan.verdicts if v.directory.is_aside and not v.goes]
            self.bring_back(back, "something needs it again")

    def end(self, read: Callable[[], Objects], beats: Sequence[Mapping[str, str]]) -> None:
        """Delete what is aside and still not needed. The rest stays in `aside`. Errors: those of `read`.

        Deletions may take hours, so it looks again in between. `beats`: the heartbeats since versions were put
        aside, by look.
        """
        folder = self._folder
        if folder is None or not (self.aside or self.unread):
            return
        try:
            content = folder.content()
        except OSError as error:
            self._problem(f"{self._path} cannot be read: {error}")
            return
        left = {each.place: each for each in content.directories}
        objects, looked_at = read(), time.monotonic()
        while self.aside or self.unread:
            if time.monotonic() - looked_at >= _LOOK_SECONDS:
                objects, looked_at = read(), time.monotonic()
            mine = {each.place for each in self.aside}
            # The rest stays, with its bases: also a version whose rename or deletion has failed.
            now = [each if each.place in mine else _staying(each) for each in left.values()]
            plan = self._plan(replace(content, directories=now), objects, beats)
            self._report(plan.obstacles)
            self.unread = frozenset()
            goes = {v.directory.place for v in plan.verdicts if v.goes}
            going = [d for d in self.aside if d.place in goes]
            if not going:
                return
            for directory in going:
                self.aside.remove(directory)
                if not self._delete(folder, directory, objects):
                    break
                left.pop(directory.place)
                if time.monotonic() - looked_at >= _LOOK_SECONDS:
                    break

    def _delete(self, folder: Versions, directory: Directory, objects: Objects) -> bool:
        try:
            folder.delete(directory)
        except FileNotFoundError:
            return False  # another collector was faster: it may have brought it back
        except OSError as error:
            self._problem(f"{directory.name} of {self._path} is not deleted: {error}")
            return False
        self.outcome.deleted.append(directory)
        about = fields(
            "deleted",
            directory=directory.name,
            bytes=directory.size_bytes,
            proof=objects.versions,
        )
        _LOG.info("deleted %s/%s (%s)", self._path, directory.name, _size([directory]), extra=about)
        return True

    def bring_back(self, directories: Sequence[Directory], why: str) -> None:
        """Give versions that are aside their names again, a base before its deltas."""
        for directory in reversed([*directories]):
            if directory in self.aside:
                self.aside.remove(directory)
                self.outcome.kept.append(directory)
            try:
                if self._folder is not None and self._folder.bring_back(directory):
                    about = fields("restored", directory=directory.name)
                    _LOG.info("%s is back: %s", directory.name, why, extra=about)
            except FileNotFoundError:
                continue  # another collector has it
            except OSError as error:
                self._problem(
                    f"{directory.place} of {self._path} does not get its name back: {error}"
                )

    def _put_aside(self, folder: Versions, directory: Directory) -> None:
        try:
            place = directory.place if directory.is_aside else folder.put_aside(directory)
        except FileNotFoundError:
            return  # another collector was faster
        except OSError as error:
            self._problem(f"{directory.name} of {self._path} is not deleted: {error}")
            self.outcome.kept.append(directory)
        else:
            self.aside.append(replace(directory, place=place))

    def _finish(self, folder: Versions) -> None:
        for name, error in folder.finish():
            if error is None:
                _LOG.info("deleted the rest of %s/%s", self._path, name)
            else:
                self._problem(f"the rest of {self._path}/{name} is not deleted: {error}")

    def _plan(self, content: Content, objects: Objects, beats: Sequence[Mapping[str, str]]) -> Plan:
        endpoint = endpoint_of(self._path)
        needs = needs_of(self._path, objects.fleets, objects.weights, endpoint)
        late = late_operators(objects.fleets, objects.beats, beats)
        # Where a link leads is needed, too: a link that is in use, and one next to the versions.
        absolute = ((path, who) for path, who in needs.paths.items() if path.startswith("/"))
        paths = {os.path.realpath(path): who for path, who in absolute}
        links = {to: f"the link {name} leads to it" for to, name in content.links.items()}
        known = Needs(links | paths | dict(needs.paths), (*needs.obstacles, *late))
        claims = claims_on(self._path, objects.weights)
        return deletions(claims, known, content.directories, content.others)

    def _report(self, obstacles: Iterable[Obstacle]) -> None:
        for obstacle in obstacles:
            why = f"nothing of {self._path} is deleted: {obstacle.why}"
            is_written = obstacle.unread and obstacle.unread not in self.unread
            if obstacle.passes or is_written:
                _LOG.info("%s", why)
                self.outcome.waits.append(why)
            else:
                self._problem(why)

    def _problem(self, text: str) -> None:
        _LOG.error("%s", text)
        self.outcome.problems.append(text)


def _staying(directory: Directory) -> Directory:
    return replace(directory, obstacle=directory.obstacle or "this run does not delete it")


def _counted(directories: Sequence[Directory]) -> str:
    number = len(directories)
    return f"{number} version{'' if number == 1 else 's'} ({_size(directories)})"


def _size(directories: Sequence[Directory]) -> str:
    return f"{sum(d.size_bytes for d in directories) / 1e9:.3g} GB"
