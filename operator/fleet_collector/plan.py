"""Which versions in a folder nothing needs any more. Pure: what stays, and why, without any clock.

A version goes only if it has a number below those of the applied version and of the one in the spec. It stays
if a fleet names it, a reader leases it, a rule keeps it, or a delta that stays was made against it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fleet_worker.protocol import number_of
from rlfleet.arguments import LABEL
from rlfleet_resources.retention import Retention
from rlfleet_resources.source import DIRECTORY, OBJECTS, VERSION_PLACEHOLDER, WeightSource

_NUMBER_AT_END = re.compile(r"([0-9]{1,18})$")


@dataclass(frozen=True, slots=True)
class Template:
    """Where the versions of a source are: `/weights/run-7/step_{version}`, `s3://weights/run-7/step_{version}`."""

    folder: str
    before: str
    after: str

    @classmethod
    def of(cls, source: WeightSource) -> Template:
        """The template of a source. Errors: ValueError, in words, if its versions are not next to each other."""
        kind, place, _ = source.key()
        folder, _, name = place.rpartition("/")
        if kind not in {DIRECTORY, OBJECTS}:
            raise ValueError(f"its source is {source}, in a cache, and not a directory or a prefix")
        if (
            name.count(VERSION_PLACEHOLDER) != 1
            or VERSION_PLACEHOLDER in folder
            or not folder.strip("/")
        ):
            raise ValueError(
                f"its source is {place}: the last part of the path, below a folder of the run, must have"
                f" {VERSION_PLACEHOLDER}"
            )
        before, after = name.split(VERSION_PLACEHOLDER)
        return cls(folder, before, after)

    def name_of(self, label: str) -> str:
        """The name of a version's directory."""
        return f"{self.before}{label}{self.after}"

    def path_of(self, label: str) -> str:
        """The directory of a version."""
        return f"{self.folder}/{self.name_of(label)}"

    def label_of(self, name: str) -> str | None:
        """The version of a directory by its name; None if the template has no such directory."""
        if len(name) <= len(self.before) + len(self.after):
            return None
        if not (name.startswith(self.before) and name.endswith(self.after)):
            return None
        label = name[len(self.before) : len(name) - len(self.after)]
        return label if LABEL.fullmatch(label) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """A directory next to others, or a prefix in a store, as a collector finds it.

    Fields:
        name: as workers know it.
        place: its present name, or that of the mark in a store; it differs while a collector has put it aside.
        size_bytes: of all files; a version in a store has objects instead.
        modified_ns: when it or one of its files was changed last, by the clock of the volume.
        written_ns: the same of its weights; others add files to a version later, such as the results of an evaluation.
            None if it cannot be seen, as behind a link.
        version / base: of a delta: its own version and that of its base; empty for another checkpoint.
        base_unknown: why its base is not known; empty if its index can be read.
        lease: the file by which a reader keeps it; empty without one.
        obstacle: why this process cannot delete it; empty if it can.
    """

    name: str
    place: str
    size_bytes: int = 0
    modified_ns: int = 0
    written_ns: int | None = 0
    version: str = ""
    base: str = ""
    base_unknown: str = ""
    lease: str = ""
    obstacle: str = ""

    @property
    def is_aside(self) -> bool:
        """Whether a collector has put it aside."""
        return self.place != self.name


_Bases = dict[int | str, list[Directory]]


@dataclass(frozen=True, slots=True)
class Content:
    """The names in a folder.

    Fields:
        directories: the versions; those that are aside come last.
        others: other names, such as a copy of a version. A delta needs its base there, too.
        links: target → name.
    """

    directories: Sequence[Directory]
    others: Sequence[Directory]
    links: Mapping[str, str]


class OutsideError(Exception):
    """The folder is not one whose versions this process may delete; the message says why."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A WeightVersion whose versions are in the folder.

    Fields:
        owner: namespace and name of the object.
        applied: label of the applied version; empty before the first.
        desired: label of the version that it asks for.
        rule: None if it has none, so that it lets nothing go.
    """

    owner: str
    template: Template
    applied: str
    rule: Retention | None
    uid: str = ""
    desired: str = ""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why nothing may be deleted now.

    Fields:
        passes: it ends by itself, and needs no look.
        unread: a directory whose index cannot be read. A trainer may be writing it.
    """

    why: str
    passes: bool = False
    unread: str = ""


@dataclass(frozen=True, slots=True)
class Needs:
    """The needs of fleets, by their statuses.

    Fields:
        paths: path, or the name of a directory → the object that needs it.
        obstacles: why the statuses do not tell all.
    """

    paths: Mapping[str, str] = field(default_factory=dict)
    obstacles: tuple[Obstacle, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a directory goes, and why."""

    directory: Directory
    goes: bool
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The verdicts. `obstacles`: why nothing goes, if there are any."""

    verdicts: tuple[Verdict, ...]
    obstacles: tuple[Obstacle, ...] = ()


def deletions(
    claims: Sequence[Claim],
    needs: Needs,
    directories: Sequence[Directory],
    others: Sequence[Directory] = (),
) -> Plan:
    """Decide about each directory of a folder that a template has.

    The order is that of deletions: a delta comes before its base. So a run that ends early leaves no delta alone.

    Args:
        claims: All WeightVersions with versions in this folder.
        needs: Of the fleets of all namespaces that read the volume.
        directories: Those that are aside come after those under their own names.
        others: Those that no template has. They stay, and the bases of their deltas.
    """
    found = [d for d in directories if any(c.template.label_of(d.name) for c in claims)]
    bases = _bases(found, claims)
    ours = _bases_last(found, bases)
    obstacles = (*needs.obstacles, *_missing(claims, found))
    if obstacles:
        return _nothing(ours, obstacles)
    named = _names_in(needs.paths)
    judges = [_Judge(claim, found) for claim in claims]
    aside = {d.name for d in ours if d.is_aside}
    stays = {
        d.place: "a former one of its name is aside"  # which then comes back, if one does
        if d.name in aside and not d.is_aside
        else _why_it_stays(d, named, judges)
        for d in ours
    }
    # A worker that reads one with an index that cannot be read would be refused, too.
    kept = [d for d in others if d.name in named or not d.base_unknown]
    kept += [d for d in ours if stays[d.place]]
    while kept:
        one = kept.pop()
        if one.base_unknown:
            return _nothing(
                ours,
                [
                    Obstacle(
                        f"{one.name} stays, and its base is not known: {one.base_unknown}",
                        unread=one.name,
                    )
                ],
            )
        for base in _bases_of(one, bases):
            if not stays[base.place]:
                stays[base.place] = f"{one.name} is a delta against it"
                kept.append(base)
    gone = "nothing needs it, and no rule keeps it"
    return Plan(tuple(Verdict(d, not stays[d.place], stays[d.place] or gone) for d in ours))


def lease_of(name: str, files: Iterable[str]) -> str:
    """The file by which a reader keeps a version: `.step_40.keep`, `.step_40.keep-evaluation`; empty without one."""
    exact, begin = f".{name}.keep", f".{name}.keep-"
    return next((file for file in files if file == exact or file.startswith(begin)), "")


def _nothing(directories: Sequence[Directory], obstacles: Sequence[Obstacle]) -> Plan:
    why = obstacles[0].why
    return Plan(tuple(Verdict(d, goes=False, why=why) for d in directories), tuple(obstacles))


def _missing(claims: Sequence[Claim], directories: Sequence[Directory]) -> Iterator[Obstacle]:
    """The applied version shows that this is the volume and the folder that the fleet reads."""
    there = {d.name: d for d in reversed(directories)}
    for claim in claims:
        name = claim.template.name_of(claim.applied)
        if not claim.applied:
            yield Obstacle(f"{claim.owner} has applied no version of this folder yet", passes=True)
        elif number_of(claim.applied) is None:
            yield Obstacle(
                f"{claim.owner} has applied version {claim.applied}, which has no number"
            )
        elif name not in there:
            yield Obstacle(
                f"{claim.owner} has applied version {claim.applied}, and {name} is not in"
                f" {claim.template.folder}: mount the volume of its fleet, at the same path"
            )
        elif there[name].written_ns is None:
            yield Obstacle(
                f"{claim.owner} has applied version {claim.applied}, and nothing shows when {name} was written:"
                f" {there[name].obstacle}. Publish versions as directories of this folder"
            )


def _names_in(paths: Mapping[str, str]) -> dict[str, str]:
    """All parts of the paths. Workers may mount the volume elsewhere, so a directory is known by its name."""
    return {part: who for path, who in paths.items() for part in path.split("/") if part}


class _Judge:
    """The opinion of one WeightVersion about each directory. Its applied version is there."""

    def __init__(self, claim: Claim, directories: Sequence[Directory]) -> None:
        self._claim = claim
        self._applied = number_of(claim.applied) or 0
        labels = [(claim.template.label_of(d.name), d) for d in directories]
        at = (d.written_ns for label, d in labels if label == claim.applied)
        self._applied_at_ns = next(at) or 0
        numbers = {number_of(label) for label, _ in labels if label}
        older = sorted((n for n in numbers if n is not None and n <= self._applied), reverse=True)
        self._desired = number_of(claim.desired)
        self._newest = frozenset(older[: claim.rule.keep if claim.rule else None])

    def why_it_stays(self, directory: Directory) -> str | None:
        """The reason; empty if the rule lets it go, None if the WeightVersion has no say."""
        claim = self._claim
        label = claim.template.label_of(directory.name)
        if label is None:
            return None
        number = number_of(label)
        if number is None:
            return "its version has no number"
        if number >= self._applied:
            return f"it is not older than {claim.applied}, which {claim.owner} has applied"
        if self._desired is not None and number >= self._desired:
            return f"it is not older than {claim.desired}, for which {claim.owner} asks"
        return None if claim.rule is None else self._by_rule(claim.rule, number, directory)

    def _by_rule(self, rule: Retention, number: int, directory: Directory) -> str:
        claim = self._claim
        if directory.modified_ns > self._applied_at_ns:
            return f"it was written after {claim.applied}, which {claim.owner} has applied"
        if number in self._newest:
            return f"one of the newest {rule.keep} of {claim.owner}"
        if rule.keep_every is not None and number % rule.keep_every == 0:
            return f"{claim.owner} keeps the multiples of {rule.keep_every}"
        return ""


def _why_it_stays(directory: Directory, named: Mapping[str, str], judges: Sequence[_Judge]) -> str:
    """The reason to keep a directory; empty without one."""
    if directory.name in named:
        return f"in use: {named[directory.name]}"
    if directory.lease:
        return f"{directory.lease} leases it"
    if directory.obstacle:
        return directory.obstacle
    reasons = [judge.why_it_stays(directory) for judge in judges]
    if all(why is None for why in reasons):
        return "no rule is about it"
    return next((why for why in reasons if why), "")


def _bases(directories: Sequence[Directory], claims: Iterable[Claim]) -> _Bases:
    """The directories that a worker could take for a base, by the endings of their names, versions and labels."""
    found: _Bases = {}
    templates = [claim.template for claim in claims]
    for each in directories:
        labels = (template.label_of(each.name) for template in templates)
        endings = {_ending(name) for name in (each.name, each.version, *labels) if name}
        for ending in endings:
            found.setdefault(ending, []).append(each)
    return found


def _bases_of(one: Directory, bases: _Bases) -> Sequence[Directory]:
    return bases.get(_ending(one.base), ()) if one.base else ()


def _bases_last(directories: Sequence[Directory], bases: _Bases) -> list[Directory]:
    """The directories, each before all that could be its base; else in their order. No worker reads a cycle."""
    done, begun, waiting = list[Directory](), set[str](), [(d, False) for d in directories]
    while waiting:  # not by recursion: a chain may have 10,000 links
        one, has_its_bases = waiting.pop()
        if has_its_bases:
            done.append(one)
        elif one.place not in begun:
            begun.add(one.place)
            waiting.append((one, True))
            waiting += [(base, False) for base in _bases_of(one, bases)]
    return done[::-1]


def _ending(version: str) -> int | str:
    """The number at the end of a version, `42` of `weight_v000042`; else the version."""
    found = _NUMBER_AT_END.search(version)
    return int(found[1]) if found else version
