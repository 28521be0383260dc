"""Where weights come from: a tagged union. This module alone knows the kinds.

A new kind is a field of `Source` with its row in `key` and `of`, and the place to which it leads in the worker's
`checkpoint.sources`. `Source` is what a worker reports, and `WeightSource` what a resource may have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, NamedTuple, Self

from pydantic import Field, model_validator

from rlfleet_resources.base import Resource

VERSION_PLACEHOLDER = "{version}"
DIRECTORY, OBJECTS, HUGGING_FACE = "path", "uri", "huggingFace"
"""The kinds of sources, by their fields in JSON."""

VersionLabel = Annotated[
    str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
]
"""The version on every reply. It is also a valid label value."""
_NUMBERED = re.compile(r"(?:step[_-])?([0-9]{1,18})")
"""18 digits fit into 64 bits. The rule of the CRD for WeightVersions is the same."""

_PATH = r"(/[^/\x00-\x1f\x7f]+)+"
_BUCKET = "(s3|gs|az)://[a-z0-9][a-z0-9._-]*[a-z0-9]"
_KEY = "(/[A-Za-z0-9._=,+@:{}-]+)"
_NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_HUB = "hf://"
_REPOSITORY = f"{_HUB}{_NAME}(/{_NAME})?(@[A-Za-z0-9._/{{}}-]{{1,100}})?"
AbsolutePath = Annotated[str, Field(min_length=2, max_length=1024, pattern=f"^{_PATH}$")]
SourceUri = Annotated[
    str, Field(min_length=8, max_length=1024, pattern=f"^({_BUCKET}{_KEY}+|{_REPOSITORY})$")
]
"""A prefix in an object store, or a cached repository, `hf://organisation/name@revision`. Nothing in it can name a host."""
WeightRoot = Annotated[
    str, Field(min_length=2, max_length=1024, pattern=f"^({_PATH}|{_BUCKET}{_KEY}*)$")
]
"""A directory, a bucket or a prefix in it, that weights may come from."""

ManifestDigest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
"""Names the files of a version by their contents; workers check it before they load them."""
COMMIT = re.compile(r"[0-9a-f]{40}")
"""A revision that cannot move."""


def number_of(version: str) -> int | None:
    """The number of a version such as `43`, `step_43` or `step-43`, which orders those of a run; None for others."""
    found = _NUMBERED.fullmatch(version)
    return None if found is None else int(found[1])


class SourceKey(NamedTuple):
    """The name of a source: equal for equal sources, and cheap to compare.

    Fields:
        kind: the field of the source; empty for weights without a source.
        place: a directory, a URI, or the name of a repository.
        revision: of the place; empty if a place of this kind has none.
    """

    kind: str
    place: str
    revision: str = ""

    @property
    def moves(self) -> bool:
        """Whether the place may have other files later under the same revision, as under a branch or a tag."""
        return bool(self.revision) and not COMMIT.fullmatch(self.revision)

    def text(self) -> str:
        """The source in messages."""
        return f"{_HUB}{self.place}@{self.revision}" if self.kind == HUGGING_FACE else self.place

    def covers(self, other: SourceKey) -> bool:
        """Whether the other one is the same source, or a revision to which this one may have led."""
        return self == (other._replace(revision=self.revision) if self.moves else other)


class HuggingFaceSource(Resource):
    """A repository in the workers' local Hugging Face cache. `hf://repo@revision` is another spelling."""

    repo: Annotated[str, Field(min_length=1, max_length=200)]
    revision: Annotated[str, Field(min_length=1, max_length=100)] = "main"


class Source(Resource):
    """Exactly one of a directory that workers see, a prefix in an object store, or a cached repository.

    Untrusted: maybe no resource could have it. Two spellings of a repository are equal.
    """

    path: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    uri: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    hugging_face: HuggingFaceSource | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if sum(getattr(self, name) is not None for name in Source.model_fields) != 1:
            raise ValueError(
                f"exactly one of {DIRECTORY}, {OBJECTS} and {HUGGING_FACE} must be set"
            )
        return self

    def key(self) -> SourceKey:
        """Its name."""
        if self.hugging_face is not None:
            return SourceKey(HUGGING_FACE, self.hugging_face.repo, self.hugging_face.revision)
        if self.uri is not None and self.uri.startswith(_HUB):
            repo, _, revision = self.uri.removeprefix(_HUB).partition("@")
            return SourceKey(HUGGING_FACE, repo, revision or "main")
        if self.uri is not None:
            return SourceKey(OBJECTS, self.uri)
        return SourceKey(DIRECTORY, str(self.path))

    def text(self) -> str:
        """The source in messages."""
        return self.key().text()

    def __str__(self) -> str:
        return self.text()

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())


class WeightSource(Source):
    """The source of a resource.

    In a WeightVersion, `{version}` in the path, the URI or the revision is replaced by the version's label,
    so that a trainer patches one field.
    """

    path: AbsolutePath | None = None
    uri: SourceUri | None = None

    @staticmethod
    def of(key: SourceKey) -> WeightSource:
        """The source of this name. Errors: ValueError if no resource could have it."""
        if key.kind == DIRECTORY:
            return _directory(key.place)
        if key.kind == OBJECTS:
            return WeightSource(uri=key.place)
        if key.kind == HUGGING_FACE:
            named = HuggingFaceSource(repo=key.place, revision=key.revision)
            return WeightSource(hugging_face=named)
        raise ValueError(f"unknown kind of source: {key.kind}")

    def roots(self, known: Iterable[str]) -> list[str] | None:
        """Those of the known roots of weights that hold it; None for a kind that is in no root."""
        kind, place, _ = self.key()
        if kind not in {DIRECTORY, OBJECTS}:
            return None
        return [root for root in known if f"{place}/".startswith(f"{root}/")]

    def resolve(self, version: str) -> WeightSource:
        """The source with the placeholder filled in."""
        kind, place, revision = self.key()
        if VERSION_PLACEHOLDER not in (revision or place):
            return self
        if revision:
            return self.at(revision.replace(VERSION_PLACEHOLDER, version))
        return WeightSource.of(SourceKey(kind, place.replace(VERSION_PLACEHOLDER, version)))

    def at(self, revision: str) -> WeightSource:
        """The same place at another revision, such as a commit."""
        return WeightSource.of(self.key()._replace(revision=revision))

    @property
    def is_template(self) -> bool:
        """Whether it has the placeholder: in the revision, or in the place of a kind without one."""
        _, place, revision = self.key()
        return VERSION_PLACEHOLDER in (revision or place)


class Transferred(WeightSource):
    """No source: the weights came over a collective, so no other worker can load them."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        return self

    def key(self) -> SourceKey:
        """The name of no source."""
        return SourceKey("", "")

    def text(self) -> str:
        """In messages."""
        return "a weight transfer"


TRANSFERRED = Transferred()


class Unreadable(Transferred):
    """A source of a kind that this release does not know, so that no worker can load it."""

    def text(self) -> str:
        """In messages."""
        return "a source that this release of rlfleet does not know"


UNREADABLE = Unreadable()


@lru_cache(maxsize=1000)
def _directory(path: str) -> WeightSource:
    """The source of a path, cached, because a rollout reads its sources at every reconcile."""
    return WeightSource(path=path)
