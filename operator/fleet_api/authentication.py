"""The caller of a request, by its bearer token.

A token is a static key of the fleet, or a token of Kubernetes, which the API server reviews. Reviews
are cached for some seconds by the token's digest. A revoked token works for that long.

Source: Kubernetes, authentication.k8s.io/v1 TokenReview.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fleet_api.keys import StaticKeys
from fleet_api.limits import Rate
from fleet_api.metrics import Metrics
from fleet_api.ports import Cluster
from fleet_api.problems import Problem, unauthorized
from fleet_api.settings import UNKNOWN_PER_SECOND
from fleet_api.shared_calls import SharedCalls
from fleet_api.ttl_cache import TtlCache
from fleet_operator.places import Places

REVIEWS_PATH = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCEPTED_SECONDS = 20.0
"""The API server itself keeps an accepted token for 10 s, so a revoked one works for 30 s at most."""
REFUSED_SECONDS = 5.0
REFUSED_AGAIN_SECONDS = 60.0
"""For tokens that were refused before, and never accepted."""
SEEN_SECONDS = 3600.0
"""How long an accepted token counts as known, whatever other clients of its address send. A refused token
counts once within this time, however often a client sends it."""
MAX_REVIEWS = 4096
MAX_REVIEWS_AT_ONCE = 32
"""Reviews of tokens and of rights that the API server gets at the same time, in turns by tenant of the caller."""
_ACCOUNT = "system:serviceaccount:"
_MARK_DIGITS = 8
"""Digits of a key's digest in the caller's name: enough to distinguish keys, too few to guess one."""
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{1,8192}")  # RFC 6750, b64token
_REMEDY = (
    "send Authorization: Bearer with a valid token of the cluster, or with a key of this fleet"
)


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request.

    Fields:
        name: as in the audit.
        fleet: the only fleet of a static key, as namespace and name; None for an account.
        credential: digest of the token, or fleet and digest of the key. Limits of one credential never count another one, also
            behind a proxy, whose clients have one address.
    """

    name: str
    credential: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, list[str]] = field(default_factory=dict)
    fleet: tuple[str, str] | None = None

    @property
    def identity(self) -> str:
        """Everything that a decision about rights depends on."""
        return json.dumps([self.name, self.uid, self.groups, self.extra], sort_keys=True)

    @property
    def tenant(self) -> str:
        """Whose reviews these are. A tenant may make any number of service accounts, so that all of a namespace are
        one. It is not the namespace of the path, which every caller may name.
        """
        return _tenant(self.name)


def _tenant(name: str) -> str:
    return name.rpartition(":")[0] if name.startswith(_ACCOUNT) else name


def named_tenant(token: str) -> str:
    """The tenant that a token names, without a check of it; empty if it names none. Source: RFC 7519, `sub`."""
    payload = token.split(".")[1] if token.count(".") == 2 else ""
    try:
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (ValueError, RecursionError):
        return ""
    named = claims.get("sub") if isinstance(claims, dict) else None
    return _tenant(named) if isinstance(named, str) else ""


class Authenticator:
    """Finds the caller of a request.

    Args:
        places: Of reviews. The reviews of tokens that are not known take turns by address, and there by the tenant
            that the token names; the others by tenant.
        audiences: Audiences of which a token must have one; empty for the API server's own.
        unknown_per_second: Different refused tokens of one address. Beyond it, no token is reviewed that comes
            from there for the first time, unless it names a tenant of which another one was accepted. Those of such
            a tenant count by themselves.
    """

    def __init__(
        self,
        cluster: Cluster,
        keys: StaticKeys,
        places: Places,
        *,
        monotonic: Callable[[], float],
        audiences: tuple[str, ...] = (),
        metrics: Metrics | None = None,
        unknown_per_second: float = UNKNOWN_PER_SECOND,
    ) -> None:
        self._cluster = cluster
        self._keys = keys
        self._places = places
        self._audiences = audiences
        self._named = " or ".join(audiences)
        self._metrics = metrics or Metrics()
        # Separate caches: a flood of unknown tokens must not push out those of callers.
        self._accepted: TtlCache[bytes, Caller] = TtlCache(MAX_REVIEWS, monotonic)
        self._refused: TtlCache[bytes, str] = TtlCache(MAX_REVIEWS, monotonic)
        self._seen: TtlCache[bytes, str] = TtlCache(MAX_REVIEWS, monotonic)
        """The tenants of tokens that were accepted."""
        self._tenants: TtlCache[tuple[str, str], bool] = TtlCache(MAX_REVIEWS, monotonic)
        """The same, by address and name."""
        self._counted: TtlCache[bytes, str] = TtlCache(MAX_REVIEWS, monotonic)
        self._shared_calls: SharedCalls[bytes, Caller | str] = SharedCalls()
        self._unknown = Rate(
            unknown_per_second,
            monotonic,
            subject="address",
            what="unknown tokens",
            flag="--unknown-tokens-per-second",
        )

    def sender(self, token: str, address: str) -> str:
        """Whose request this is while its token may wait for a review: the tenant of an accepted token. Else as
        `_stranger`.
        """
        tenant = self._seen.get(hashlib.sha256(token.encode(errors="replace")).digest())
        return tenant or self._stranger(address, named_tenant(token))

    def _stranger(self, address: str, named: str) -> str:
        """Whose share and rate a token takes that was not accepted: those of its address. There, a tenant of which a
        token was accepted has its own.

        A stranger may invent any number of names, and all of them together would take every place.
        """
        is_known = self._tenants.get((address, named)) is not None
        # Never empty: nothing limits the requests without an owner.
        return f"{address} {named if is_known else ''}"

    async def caller(
        self, authorization: str, namespace: str, fleet: str, address: str = ""
    ) -> Caller:
        """The caller with this header `Authorization`, from this address.

        Errors: Problem 401, 429 for too many unknown tokens of this address; those of `Cluster`.
        """
        result = "error"
        try:
            caller = await self._caller(authorization, namespace, fleet, address)
            result = "key" if caller.fleet else "token"
        except Problem:
            result = "refused"
            raise
        finally:
            self._metrics.authentications.labels(result).inc()
        return caller

    async def _caller(self, authorization: str, namespace: str, fleet: str, address: str) -> Caller:
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise unauthorized(f"there is no bearer token; {_REMEDY}")
        if not _TOKEN.fullmatch(token):
            raise unauthorized(f"the bearer token is malformed; {_REMEDY}")
        if (holder := self.key_holder(token, namespace, fleet)) is not None:
            return holder
        digest = hashlib.sha256(token.encode()).digest()
        known: Caller | str | None = self._accepted.get(digest) or self._refused.get(digest)
        is_new = known is None and digest not in self._shared_calls
        self._metrics.reviews.labels("miss" if is_new else "hit").inc()
        if known is None:
            known = await self._shared_calls.join(
                digest, partial(self._bounded_review, token, digest, address)
            )
        if isinstance(known, str):
            raise unauthorized(f"{known}; {_REMEDY}")
        return known

    def holder(self, key: str, namespace: str, fleet: str) -> Caller:
        """The caller with this static key in the path. A token of the cluster works only in a header.

        Errors: Problem 401.
        """
        found = self.key_holder(key, namespace, fleet)
        self._metrics.authentications.labels("key" if found else "refused").inc()
        if found is None:
            raise unauthorized(
                "the path has no valid key of this fleet; send one of its static keys"
            )
        return found

    def key_holder(self, key: str, namespace: str, fleet: str) -> Caller | None:
        """The caller with this static key; None if the fleet has no such key. Both names must have been checked."""
        if not (_TOKEN.fullmatch(key) and self._keys.allow(key, namespace, fleet)):
            return None
        # Two trainers with two keys are two drivers of the fleet, and share no idempotency key.
        digest = hashlib.sha256(key.encode()).hexdigest()
        name = f"key:{namespace}/{fleet}:{digest[:_MARK_DIGITS]}"
        # Keys of two fleets may have the same bytes. Their rates are not the same.
        return Caller(
            name=name, credential=f"{namespace}/{fleet} {digest}", fleet=(namespace, fleet)
        )

    async def _bounded_review(self, token: str, digest: bytes, address: str) -> Caller | str:
        tenant = self._seen.get(digest)
        is_seen = tenant is not None
        # Clients behind an ingress have one address. The tenant in a token is not checked yet, so it only orders
        # the turns of that address.
        named = named_tenant(token)
        turn = (tenant,) if tenant is not None else (address, named)
        sender = self._stranger(address, named)
        async with self._places.of(*turn):
            is_counted = self._counted.get(digest) is not None
            if not (is_seen or is_counted):
                self._unknown.check(sender)
            known = await self._review(token, digest)
            if isinstance(known, Caller):
                self._accepted.put(digest, known, ACCEPTED_SECONDS)
                self._seen.put(digest, known.tenant, SEEN_SECONDS)
                self._tenants.put((address, known.tenant), True, SEEN_SECONDS)  # noqa: FBT003 - a member of a set
                return known
            is_again = is_counted and not is_seen
            self._refused.put(digest, known, REFUSED_AGAIN_SECONDS if is_again else REFUSED_SECONDS)
            if not is_counted:
                self._unknown.count(sender)
                self._counted.put(digest, known, SEEN_SECONDS)
        return known

    async def _review(self, token: str, digest: bytes) -> Caller | str:
        """The caller of a token, or why it is refused."""
        spec: dict[str, Any] = {"token": token}
        if self._audiences:
            spec["audiences"] = list(self._audiences)
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        status = (await self._cluster.call("POST", REVIEWS_PATH, body=body)).get("status", {})
        if not status.get("authenticated"):
            cause = (
                f"revoked or not for the audience {self._named}" if self._named else "or revoked"
            )
            return f"the API server does not accept the token: it is malformed, expired, {cause}"
        # An authenticator that knows no audiences answers without them.
        if self._audiences and not set(self._audiences) & set(status.get("audiences") or ()):
            return f"the token is not for the audience {self._named}"
        user = status["user"]
        return Caller(
            name=user["username"],
            credential=digest.hex(),
            uid=user.get("uid", ""),
            groups=tuple(user.get("groups") or ()),
            extra=user.get("extra") or {},
        )
