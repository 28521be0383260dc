"""Where weights come from."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Self

from pydantic import Field, model_validator

from fleet_operator.api.base import Resource
from fleet_worker import protocol

VERSION_PLACEHOLDER = "{version}"

VersionLabel = Annotated[
    str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
]
"""The version on every reply. It is also a valid label value."""

AbsolutePath = Annotated[str, Field(min_length=2, max_length=1024, pattern=r"^(/[^/\x00]+)+$")]


ManifestDigest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
"""Names the files of a version by their contents; workers check it before they load them."""


class HuggingFaceSource(Resource):
    """A repository in the workers' local Hugging Face cache."""

    repo: Annotated[str, Field(min_length=1, max_length=200)]
    revision: Annotated[str, Field(min_length=1, max_length=100)] = "main"


class WeightSource(Resource):
    """Exactly one of a directory that workers see or a cached repository.

    In a WeightVersion, `{version}` in the path or the revision is replaced by the version's label,
    so that a trainer patches one field.
    """

    path: AbsolutePath | None = None
    hugging_face: HuggingFaceSource | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.path is None) == (self.hugging_face is None):
            raise ValueError("exactly one of path and huggingFace must be set")
        return self

    def resolve(self, version: str) -> WeightSource:
        """The source with the placeholder filled in."""
        if self.path is not None and VERSION_PLACEHOLDER not in self.path:
            return self
        if self.hugging_face is not None:
            revision = self.hugging_face.revision.replace(VERSION_PLACEHOLDER, version)
            filled = HuggingFaceSource(repo=self.hugging_face.repo, revision=revision)
            return WeightSource(hugging_face=filled)
        return _directory((self.path or "").replace(VERSION_PLACEHOLDER, version))

    @property
    def revision(self) -> str | None:
        """Branch, tag or commit of a repository; None for a directory."""
        return self.hugging_face.revision if self.hugging_face is not None else None

    def __str__(self) -> str:
        if self.hugging_face is not None:
            return f"hf://{self.hugging_face.repo}@{self.hugging_face.revision}"
        return str(self.path)

    def to_protocol(self) -> protocol.Source:
        """The source in the words of the worker protocol."""
        return protocol.Source.model_validate(self.to_json())


class Transferred(WeightSource):
    """No source: the weights came over a collective, so no other worker can load them."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        return self

    def __str__(self) -> str:
        return "a weight transfer"


TRANSFERRED = Transferred()


class Unreadable(Transferred):
    """A source of a kind that this release does not know, so that no worker can load it."""

    def __str__(self) -> str:
        return "a source that this release of the operator does not know"


UNREADABLE = Unreadable()


@lru_cache(maxsize=1000)
def _directory(path: str) -> WeightSource:
    """The source of a path, cached, because a rollout reads its sources at every reconcile."""
    return WeightSource(path=path)


def from_protocol(source: protocol.Source) -> WeightSource:
    """The source in the words of the resources.

    Errors: ValueError if it is invalid in a resource.
    """
    if source.path is not None and source.hugging_face is None:
        return _directory(source.path)
    return WeightSource.model_validate(source.model_dump(by_alias=True, exclude_none=True))
