"""Names of weights: version, run and digest.

A version alone is only a label: another run may use the same numbers, and files under one path can be
replaced. So the planners compare weights only with `same_weights`.

An unknown digest (a version that no worker has read yet) equals every digest: such weights are compared
by run and version. So the comparison is not transitive. Before names are counted, `fill_digests` fills
in the missing digests.

Weights that came over a collective have no digest at all. `TRANSFERRED_DIGEST` takes its place inside of
the planners, so that they never equal files of the same name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from fleet_worker import protocol

SHORT_DIGEST_CHARACTERS = 12
TRANSFERRED_DIGEST = "transferred"
"""In place of a digest, of weights that came over a collective."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class Named(protocol.Named, Protocol):
    """Anything that names weights."""

    @property
    def reused(self) -> bool:
        """Whether the version names other weights already, so that these equal none."""


class WeightsId(NamedTuple):
    """The name of one set of weights. Cheap: thousands are made in one decision."""

    version: str
    run_id: str | None = None
    digest: str | None = None

    @property
    def reused(self) -> bool:
        """Always False: only a version in a spec can be reused."""
        return False

    @classmethod
    def of(cls, named: Named) -> WeightsId:
        """Returns the name of any named weights."""
        return cls(named.version, named.run_id, named.digest)

    def __str__(self) -> str:
        return label(self.version, self.run_id)


def same_weights(one: Named, other: Named) -> bool:
    """Whether two names mean the same weights, as far as their digests are known."""
    return (
        one.version == other.version
        and one.run_id == other.run_id
        and (one.digest is None or other.digest is None or one.digest == other.digest)
        and not (one.reused or other.reused)
    )


def label(version: str, run_id: str | None) -> str:
    """Returns the form for messages and logs: `3`, or `3 of run-8`."""
    return version if run_id is None else f"{version} of {run_id}"


def short_digest(digest: str) -> str:
    """Returns the first characters of a digest, for messages."""
    return digest.removeprefix("sha256:")[:SHORT_DIGEST_CHARACTERS]


def file_digest(digest: str | None) -> str | None:
    """Returns the digest; None for transferred weights, and for a kind that this release does not know."""
    return digest if digest is not None and _DIGEST.fullmatch(digest) else None


def fill_digests(names: Iterable[WeightsId | None]) -> list[WeightsId | None]:
    """Returns the names with missing digests filled in, where all others of that run and version
    agree.
    """
    given = list(names)
    known: dict[tuple[str, str | None], set[str]] = {}
    for name in given:
        if name is not None and name.digest not in {None, TRANSFERRED_DIGEST}:
            known.setdefault(name[:2], set()).add(name.digest)
    return [_filled(name, known) for name in given]


def _filled(
    name: WeightsId | None, known: dict[tuple[str, str | None], set[str]]
) -> WeightsId | None:
    if name is None or name.digest is not None:
        return name
    digests = known.get(name[:2], set())
    return name._replace(digest=next(iter(digests))) if len(digests) == 1 else name
