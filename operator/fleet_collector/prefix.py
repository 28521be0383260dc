"""A folder of versions in an object store: what is in it, and how a version leaves it.

A store has no rename. A *mark* takes a version away, an object next to the version's own with a name that is used once:

```
step_40/.rlfleet-aside-1a2b3c4d   "aside"             no worker opens the version any more
                              →   ""                  taken back: workers open it, and the mark goes
                              →   {"objects": […]}    decided: any collector deletes these objects, and the mark last
```

Each arrow is a write that the store makes only if the mark is as it was, so it has one winner. As long as an object of
a decided version is left, the mark is, so no worker takes the rest for the whole. A decision names objects with their
ETags and times: what a trainer writes under the same names meanwhile is another object, and stays. If a trainer has
written to the version before its first object goes, all of it stays. The library deletes by name
alone: an object written between a listing and the deletion after it goes, too. If the last listing has other objects,
it reports that. If a trainer has written nothing else yet, nothing shows it.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Thread
from typing import Any, NamedTuple, Self, TypeVar

import obstore
from obstore.exceptions import PreconditionError
from obstore.store import ObjectStore
from pydantic import BaseModel, ValidationError

from fleet_collector.plan import Content, Directory, OutsideError, Template, lease_of
from fleet_worker.object_errors import cause_of
from fleet_worker.object_stores import opened_store, quoted
from fleet_worker.protocol import ASIDE_MARK
from rlfleet.deltas.index import delta_versions
from rlfleet.errors import UnusableWeights
from rlfleet_resources.weight_files import INDEX_FILE, WEIGHTS_SUFFIX

T = TypeVar("T")

_ASIDE, _BACK = b"aside", b""
_MARK = re.compile(re.escape(ASIDE_MARK) + "[0-9a-f]{8}")
_NAME = re.compile(
    r"(?!\.{1,2}(/|\Z))[A-Za-z0-9._=,+@:() -]+(/(?!\.{1,2}(/|\Z))[A-Za-z0-9._=,+@:() -]+)*"
)
"""An object's name below its version, of which the library makes no other one."""
_INDEX_LIMIT = _MARK_LIMIT = 16 * 1024 * 1024
_MOST_LISTED, _MOST_OF_VERSION = 200_000, 10_000
"""As listed, and that a decision can name."""
_SECRET, _RIGHTS = (
    "the collector's Secret",
    "list the bucket, and read, write and delete its objects",
)
_PAGE = 1000
_SECONDS = 300.0
"""For one question. The library takes pages without objects forever."""


class _Object(NamedTuple):
    """An object of a version: its name below the version, and what tells it from a later one of this name."""

    name: str
    etag: str
    modified_ns: int


class _Decision(BaseModel, strict=True):
    """The content of a decided mark."""

    objects: list[tuple[str, str, int]]


@dataclass(slots=True)
class _Version:
    """The objects of a version, and its marks: name → size and condition of a write."""

    sizes: dict[_Object, int] = field(default_factory=dict)
    marks: dict[str, tuple[int, dict[str, str]]] = field(default_factory=dict)

    @property
    def is_there(self) -> bool:
        """Whether it has more than what a browser shows as a folder, which the library cannot delete."""
        return any(self.sizes.values())

    @property
    def decided(self) -> list[str]:
        return [n for n, (size, _) in self.marks.items() if size not in {len(_ASIDE), len(_BACK)}]

    def marks_of(self, content: bytes) -> list[str]:
        return [name for name, (size, _) in self.marks.items() if size == len(content)]

    @property
    def objects(self) -> bytes:
        """A digest of what its objects are."""
        return hashlib.sha256(repr(sorted(self.sizes)).encode()).digest()

    def is_written_to(self, decided: frozenset[_Object]) -> bool:
        """Whether a trainer has written to it since a decision, of which nothing is deleted yet."""
        names = {each.name for each in self.sizes}
        is_begun = any(each.name not in names for each in decided)
        return not is_begun and decided != self.sizes.keys()


class _Seen(NamedTuple):
    """A version as a plan had it: `_Version.objects`, and the marks. All objects of all folders would be too much memory."""

    objects: bytes
    marks: Mapping[str, tuple[int, dict[str, str]]]


class Prefix:
    """A prefix with versions. Nothing that a listing names outside of a version is ever deleted.

    Args:
        store: Of the bucket.
        uri: Of the prefix.
        key: The same in the bucket; empty for all of it.
        templates: Of the versions in it. No other object is touched.
    """

    def __init__(
        self, store: ObjectStore, uri: str, key: str, templates: Sequence[Template]
    ) -> None:
        self._store = store
        self._uri = uri
        self._begin = f"{key}/" if key else ""
        self._templates = templates
        self._seen: Mapping[str, _Seen] = {}
        """The versions that the last plan was about."""
        self._known: dict[_Object, tuple[str, str]] = {}
        """Index → the version of a delta and that of its base."""
        self._is_checked = False

    @classmethod
    def open(cls, uri: str, roots: Sequence[str], templates: Sequence[Template]) -> Self:
        """Open a prefix. Errors: OutsideError, OSError."""
        if not any(f"{uri}/".startswith(f"{root}/") for root in roots):
            raise OutsideError(
                f"{uri} is not below {' or '.join(roots)}, the roots of this collector"
            )
        store, key = _asked(uri, partial(opened_store, uri))
        return cls(store, uri, key, templates)

    def close(self) -> None:
        """Nothing is open."""

    def content(self) -> Content:
        """Read it, by one listing. Errors: OSError."""
        found, files = self._listed()
        self._seen = {name: _Seen(each.objects, each.marks) for name, each in found.items()}
        versions, others = list[Directory](), list[Directory]()
        for name in sorted(found):
            version = found[name]
            if not self._is_version(name):
                if not name.startswith("."):
                    others.append(self._with_base(Directory(name=name, place=name), version))
            elif version.is_there and not version.decided:
                directory = self._measured(name, version, lease_of(name, files))
                places = [f"{name}/{mark}" for mark in version.marks_of(_ASIDE)] or [name]
                versions += [replace(directory, place=place) for place in places]
        return Content(sorted(versions, key=lambda d: d.is_aside), others, {})

    def put_aside(self, directory: Directory) -> str:
        """Mark a version, so that no worker opens it. Returns: its place. Errors: OSError."""
        self._check_conditions(directory.name)
        place = _new_mark(directory.name)
        self._put(place, _ASIDE)
        return place

    def bring_back(self, directory: Directory) -> bool:
        """Take the marks of a version back. Returns: whether it has had one. Errors: OSError; FileNotFoundError if
        another collector deletes it.
        """
        version = self._version(directory.name)
        marks = version.marks_of(_ASIDE)
        for mark in marks:
            self._put(f"{directory.name}/{mark}", _BACK, version.marks[mark][1])
        if version.decided:
            raise FileNotFoundError(directory.place)
        self._remove(f"{directory.name}/{mark}" for mark in marks)
        return bool(marks)

    def delete(self, directory: Directory) -> None:
        """Delete a version that is aside, as the last `content` had it. Errors: OSError; FileNotFoundError if another
        collector was faster.
        """
        self._check_conditions(directory.name)  # another collector may have put it aside
        seen, mark = self._seen[directory.name], directory.place.rpartition("/")[2]
        if (found := self._version(directory.name)).objects != seen.objects:
            self.bring_back(directory)
            if not found.is_there:
                raise FileNotFoundError(directory.place)
            raise OSError("it has other objects than when the run looked, so it stays")
        decision = _Decision(objects=[*found.sizes])
        self._put(directory.place, decision.model_dump_json().encode(), seen.marks[mark][1])
        self._empty(directory.name, mark, frozenset(found.sizes))

    def finish(self) -> Iterator[tuple[str, OSError | None]]:
        """Delete what a collector that was killed had begun to delete. Yields: names, and errors. Errors: OSError."""
        for name, version in self._listed()[0].items():
            if not self._is_version(name):
                continue
            if not version.is_there and version.marks_of(_ASIDE):
                with suppress(FileNotFoundError):  # another collector was faster
                    self.bring_back(Directory(name=name, place=name))
            self._remove(f"{name}/{mark}" for mark in version.marks_of(_BACK))
            for mark in version.decided:
                try:
                    self._empty(name, mark, self._decision(name, mark, version))
                except FileNotFoundError:
                    continue  # another collector was faster
                except OSError as error:
                    yield name, error
                else:
                    yield name, None

    def _is_version(self, name: str) -> bool:
        return any(template.label_of(name) for template in self._templates)

    def _check_conditions(self, name: str) -> None:
        """See once whether the store keeps conditions, by a mark that takes nothing from workers. Errors: OSError."""
        if self._is_checked:
            return
        place = _new_mark(name)
        self._put(place, _BACK)
        try:
            self._put(place, _BACK, {"e_tag": '"0"', "version": "1"})
        except FileNotFoundError:
            self._is_checked = True
        finally:
            self._remove([place])
        if not self._is_checked:
            raise OSError(
                f"the store of {self._uri} takes a write whose condition (If-Match) does not hold, so that two"
                " collectors could decide differently; use a store that keeps conditions"
            )

    # --- a version --------------------------------------------------------------------------------

    def _measured(self, name: str, version: _Version, lease: str) -> Directory:
        odd = next((o.name for o in version.sizes if not _NAME.fullmatch(o.name)), None)
        obstacle = ""
        if odd is not None:
            obstacle = f"it has an object whose name the collector does not take: {odd[:100]!r}"
        elif not all(each.etag for each in version.sizes):
            obstacle = "the store lists its objects without ETags"
        elif len(version.sizes) > _MOST_OF_VERSION:
            obstacle = f"it has more than {_MOST_OF_VERSION} objects"
        modified_ns = max(each.modified_ns for each in version.sizes)
        weights = (o.modified_ns for o in version.sizes if o.name.endswith(WEIGHTS_SUFFIX))
        found = Directory(
            name=name,
            place=name,
            size_bytes=sum(version.sizes.values()),
            modified_ns=modified_ns,
            written_ns=max(weights, default=modified_ns),
            lease=lease,
            obstacle=obstacle,
        )
        return self._with_base(found, version)

    def _with_base(self, found: Directory, version: _Version) -> Directory:
        index = next((each for each in version.sizes if each.name == INDEX_FILE), None)
        if index is None:
            return found
        try:
            if index not in self._known:
                content = self._get(f"{found.name}/{INDEX_FILE}", index.etag, _INDEX_LIMIT)
                self._known[index] = delta_versions(INDEX_FILE, content) or ("", "")
        except (OSError, UnusableWeights) as error:
            return replace(found, base_unknown=f"{error}. Repair or delete the version")
        delta, base = self._known[index]
        return replace(found, version=delta, base=base)

    def _decision(self, name: str, mark: str, version: _Version) -> frozenset[_Object]:
        content = self._get(f"{name}/{mark}", version.marks[mark][1].get("e_tag", ""), _MARK_LIMIT)
        try:
            found = _Decision.model_validate_json(content)
        except ValidationError as error:
            raise OSError(f"{mark} is not of a collector: delete this object") from error
        return frozenset(_Object(*each) for each in found.objects)

    def _empty(self, name: str, mark: str, decided: frozenset[_Object]) -> None:
        """Delete the decided objects of a version that are still the same, and then the mark.

        Errors: OSError, also if the version stays, since a trainer has written to it, or if it has done so meanwhile.
        """
        found, before, has_removed = self._version(name), len(decided) + 1, False
        while 0 < len(left := _left(found, decided)) < before and not found.is_written_to(decided):
            # It lists again before each page, so that an object of a trainer that comes now is seen.
            self._remove(f"{name}/{each.name}" for each in [*left][:_PAGE])
            before, found, has_removed = len(left), self._version(name), True
        if found.is_written_to(decided):
            self._remove([f"{name}/{mark}"])
            raise OSError("a trainer has written to it since this was decided, so it stays")
        if any(left.values()):
            raise OSError("the store lists objects after their deletion")
        self._remove([f"{name}/{mark}"])
        if has_removed and not found.sizes.keys() <= decided:
            # The library deletes by name alone, also what was written after the last listing.
            raise OSError(
                "a trainer has written to it while its objects were deleted, and some of what it wrote may be gone;"
                " publish it again"
            )

    def _version(self, name: str) -> _Version:
        return self._listed(f"{name}/")[0].get(name, _Version())

    # --- the store --------------------------------------------------------------------------------

    def _listed(self, below: str = "") -> tuple[dict[str, _Version], list[str]]:
        """The objects below a name: those of each folder, and the names of those in none. Errors: OSError."""
        return self._ask(partial(self._list, f"{self._begin}{below}"))

    def _list(self, begin: str) -> tuple[dict[str, _Version], list[str]]:
        folders, files = dict[str, _Version](), list[str]()
        for each in _objects(self._store, begin):
            if not each["path"].startswith(begin):
                continue  # no listing leads outside
            name, slash, inner = each["path"][len(self._begin) :].partition("/")
            if not slash:
                files.append(name)
                continue
            version = folders.setdefault(name, _Version())
            if _MARK.fullmatch(inner):
                condition = {"e_tag": each["e_tag"], "version": each["version"]}
                version.marks[inner] = (
                    each["size"],
                    {n: v for n, v in condition.items() if v is not None},
                )
            else:
                modified_ns = int(each["last_modified"].timestamp() * 1e9)
                found = _Object(inner, quoted(each["e_tag"]) if each["e_tag"] else "", modified_ns)
                version.sizes[found] = each["size"]
        return folders, files

    def _put(self, place: str, content: bytes, condition: Mapping[str, str] | None = None) -> None:
        """Write a mark: a new one, or with a condition one that is as it was. Errors: OSError; FileNotFoundError if it
        is not.
        """
        if condition and "version" not in condition and self._uri.startswith("gs://"):
            condition = self._of_generation(place, condition["e_tag"])
        # Also a new one: the library asks again after a lost answer, and by then another collector may have decided.
        mode: Any = "create" if condition is None else condition
        put = partial(obstore.put, mode=mode, use_multipart=False)
        self._ask(partial(put, self._store, f"{self._begin}{place}", content))

    def _of_generation(self, place: str, etag: str) -> dict[str, str]:
        """The condition of a write for a store whose listings lack it. Errors: OSError; FileNotFoundError if it does
        not hold.
        """
        found = self._ask(partial(obstore.head, self._store, f"{self._begin}{place}"))
        if quoted(found["e_tag"] or "") != quoted(etag):
            raise FileNotFoundError(f"an object of {self._uri} is another one by now")
        return {"e_tag": etag, "version": found["version"] or ""}

    def _get(self, place: str, etag: str, limit: int) -> bytes:
        return self._ask(partial(_content, self._store, f"{self._begin}{place}", etag, limit))

    def _remove(self, places: Iterable[str]) -> None:
        """Delete objects. One may be gone already."""
        if paths := [f"{self._begin}{place}" for place in places]:
            try:
                self._ask(partial(obstore.delete, self._store, paths))
            except FileNotFoundError:
                return  # another collector deletes them, too

    def _ask(self, work: Callable[[], T]) -> T:
        return _asked(self._uri, work)


def _left(version: _Version, decided: frozenset[_Object]) -> dict[_Object, int]:
    """The objects of a version that go, and their sizes."""
    return {o: n for o, n in version.sizes.items() if o in decided and _NAME.fullmatch(o.name)}


def _new_mark(name: str) -> str:
    return f"{name}/{ASIDE_MARK}{secrets.token_hex(4)}"


def _asked(uri: str, work: Callable[[], T]) -> T:
    """Ask a store. Errors: OSError, with the remedy; FileNotFoundError if an object is gone, or another one by now."""
    outcome: Future[T] = Future()

    def ask() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller
            outcome.set_exception(error)

    Thread(target=ask, name="rlfleet-store", daemon=True).start()
    try:
        return outcome.result(_SECONDS)
    except PreconditionError as error:
        raise FileNotFoundError(f"an object of {uri} is another one by now") from error
    except TimeoutError as error:
        raise OSError(f"the store of {uri} does not end its answer in {_SECONDS:g} s") from error
    except _UnexpectedError as error:
        raise OSError(f"the store of {uri} {error}") from error
    except Exception as error:  # each class of the library, and its general one
        kind = FileNotFoundError if isinstance(error, FileNotFoundError) else OSError
        raise kind(cause_of(error, uri, secret=_SECRET, rights=_RIGHTS)) from error


class _UnexpectedError(Exception):
    """The store has more than it should; the message says what."""


def _objects(store: ObjectStore, begin: str) -> Iterator[Any]:
    """The objects of a listing. It may name others, too."""
    count = 0
    for page in obstore.list(store, begin.rstrip("/") or None, chunk_size=_PAGE):
        count += len(page)
        if count > _MOST_LISTED:
            raise _UnexpectedError(
                f"has more than {_MOST_LISTED} objects below {begin or 'the bucket'}: delete versions by hand once, and"
                " give each run a prefix of its own"
            )
        yield from page


def _content(store: ObjectStore, path: str, etag: str, limit: int) -> bytes:
    answer = obstore.get(store, path, options={"if_match": quoted(etag)})
    content = bytearray()
    for chunk in answer.stream():
        content += memoryview(chunk)
        if len(content) > limit:
            raise _UnexpectedError(f"has more than {limit} bytes in {path}")
    return bytes(content)
