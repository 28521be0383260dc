"""Rights of callers, as the API server decides them.

Source: Kubernetes, authorization.k8s.io/v1 SubjectAccessReview.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

from fleet_api.authentication import Caller
from fleet_api.ports import Cluster
from fleet_api.problems import Problem
from fleet_api.shared_calls import SharedCalls
from fleet_api.ttl_cache import TtlCache
from fleet_operator.places import Places
from rlfleet.ports import Kind
from rlfleet_resources import names

REVIEWS_PATH = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
ALLOWED_SECONDS = 15.0
DENIED_SECONDS = 5.0
MAX_REVIEWS = 16_384


@dataclass(frozen=True, slots=True)
class Right:
    """A verb on one object, or on a part of it.

    Fields:
        subresource: the part. It may be a name that occurs only in rights.
    """

    verb: str
    kind: Kind
    namespace: str
    name: str
    subresource: str = ""

    def __str__(self) -> str:
        part = f"/{self.subresource}" if self.subresource else ""
        return f"{self.verb} {self.kind}{part} {self.name!r} in namespace {self.namespace!r}"


class Authorizer:
    """Checks rights, and caches the decisions for some seconds. `places`: of reviews, in turns by tenant."""

    def __init__(self, cluster: Cluster, places: Places, *, monotonic: Callable[[], float]) -> None:
        self._cluster = cluster
        self._places = places
        self._reviews: TtlCache[tuple[str, Right], bool] = TtlCache(MAX_REVIEWS, monotonic)
        self._shared_calls: SharedCalls[tuple[str, Right], bool] = SharedCalls()

    async def require(self, caller: Caller, right: Right, fleet: tuple[str, str]) -> None:
        """Check that the caller has the right on an object of this fleet.

        Errors: Problem 403; those of `Cluster`.
        """
        if caller.fleet is not None:
            # The key of a fleet permits everything on the fleet, and nothing elsewhere.
            allowed = caller.fleet == fleet and right.namespace == fleet[0]
        else:
            allowed = await self._has(caller, right)
        if not allowed:
            raise Problem(
                HTTPStatus.FORBIDDEN,
                "Forbidden",
                f"{caller.name} may not {right}; give the account this right",
            )

    async def _has(self, caller: Caller, right: Right) -> bool:
        key = (caller.identity, right)
        known = self._reviews.get(key)
        if known is None:
            known = await self._shared_calls.join(key, partial(self._review, caller, right))
            self._reviews.put(key, known, ALLOWED_SECONDS if known else DENIED_SECONDS)
        return known

    async def _review(self, caller: Caller, right: Right) -> bool:
        attributes = {
            "group": names.GROUP,
            "version": names.VERSION,
            "resource": right.kind.value,
            "namespace": right.namespace,
            "name": right.name,
            "verb": right.verb,
        }
        if right.subresource:
            attributes["subresource"] = right.subresource
        spec = {
            "user": caller.name,
            "uid": caller.uid,
            "groups": list(caller.groups),
            "extra": caller.extra,
            "resourceAttributes": attributes,
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": spec,
        }
        async with self._places.of(caller.tenant):
            reviewed = await self._cluster.call("POST", REVIEWS_PATH, body=body)
        status = reviewed.get("status", {})
        return bool(status.get("allowed")) and not status.get("denied")
