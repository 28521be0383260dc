"""The whole API server, for the verbs that read more than fleets and WeightVersions."""

from __future__ import annotations

from typing import Protocol

from rlfleet.ports import Json, Place


class Api(Place, Protocol):
    """The objects of one namespace, and every other path of the API server where there is one.

    Errors of both methods: NotFound, Forbidden, Unavailable, Refused.
    """

    def call(
        self,
        method: str,
        path: str,
        params: dict[str, str] | None = None,
        body: Json | None = None,
        *,
        media: str = "",
    ) -> Json:
        """The object that the server answers with. `media`: of the body, or of the answer to a call
        without a body; without `application/`.
        """
        ...

    def text(self, path: str, params: dict[str, str] | None = None) -> str:
        """The text under a path, such as a log."""
        ...
