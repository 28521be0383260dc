"""Checks the operator's permissions before it starts.

Otherwise a missing permission would show minutes later, as a watch without events.

Source: Kubernetes authorization/v1 SelfSubjectAccessReview.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Self

from fleet_operator.core.manifests.inference_pool import GROUP as POOL_GROUP
from fleet_operator.core.manifests.inference_pool import PLURAL as POOLS
from fleet_operator.errors import NotFound, Retryable, Terminal
from fleet_operator.ports import Kube
from fleet_operator.runtime.custom_resources import NO_CRDS
from fleet_operator.runtime.pod_informer import FleetKey
from fleet_operator.runtime.settings import Settings
from rlfleet_resources import names

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
NEEDED: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (names.GROUP, names.FLEET_PLURAL, ("get", "list", "watch")),
    (names.GROUP, f"{names.FLEET_PLURAL}/status", ("patch",)),
    (names.GROUP, names.WEIGHTS_PLURAL, ("list", "watch")),
    (names.GROUP, f"{names.WEIGHTS_PLURAL}/status", ("patch",)),
    ("", "pods", ("list", "watch", "create", "delete", "patch")),
    ("", "services", ("get", "list", "watch", "create", "patch", "delete")),
    ("apps", "deployments", ("get", "list", "watch", "create", "patch", "delete")),
    ("", "configmaps", ("get", "create", "patch")),
    ("apps", "controllerrevisions", ("get", "list", "create", "delete")),
    ("policy", "poddisruptionbudgets", ("get", "list", "watch", "create", "patch")),
    (POOL_GROUP, POOLS, ("get", "create", "patch", "delete")),
    ("", "secrets", ("get", "create")),
    ("", "events", ("create",)),
    ("coordination.k8s.io", "leases", ("get",)),
)
"""Group, resource and verbs of every request in the watched namespaces; the chart's role grants
exactly these, and a test compares them."""
LEASE_GROUP = "coordination.k8s.io"
LEASE_VERBS = ("get", "create", "update")
"""On the Lease, in the operator's own namespace."""
HEARTBEAT_VERBS = ("create", "patch")
"""On the operator's heartbeat Lease, by its name, in the watched namespaces."""
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasePlace:
    """Namespace and name of the Lease."""

    namespace: str
    name: str


Question = tuple[str, str, str, str, str]
"""Namespace, group, resource, verb and name."""


class Permissions:
    """Permission checks of this process, retried until all are answered."""

    def __init__(
        self,
        kube: Kube,
        namespaces: tuple[str, ...],
        lease: LeasePlace,
        secrets_of: tuple[FleetKey, ...] = (),
    ) -> None:
        """
        Args:
            kube: The API.
            namespaces: The watched ones; empty for all.
            lease: The operator's Lease.
            secrets_of: Fleets whose Secrets may be read, by their names; empty for all Secrets.
        """
        self._kube = kube
        asked = [
            (namespace, group, resource, verb, "")
            for namespace in namespaces or ("",)
            for group, resource, verbs in NEEDED
            for verb in verbs
            if not (secrets_of and (resource, verb) == ("secrets", "get"))
        ]
        asked += [
            (namespace, "", "secrets", "get", names.admin_token_secret_name(fleet))
            for namespace, fleet in secrets_of
        ]
        heartbeat = names.heartbeat_name(f"{lease.namespace}/{lease.name}")
        asked += [
            (namespace, LEASE_GROUP, "leases", verb, heartbeat)
            for namespace in namespaces or ("",)
            for verb in HEARTBEAT_VERBS
        ]
        # Without these the process would stay a standby forever.
        asked += [
            (lease.namespace, LEASE_GROUP, "leases", verb, lease.name if verb != "create" else "")
            for verb in LEASE_VERBS
        ]
        self._answers: dict[Question, bool | None] = dict.fromkeys(asked)

    @classmethod
    def of(cls, kube: Kube, settings: Settings) -> Self:
        """Those that the operator needs with these settings."""
        lease = LeasePlace(namespace=settings.lease_namespace, name=settings.lease_name)
        return cls(kube, settings.namespaces, lease, settings.secrets_of)

    async def wait(self) -> None:
        """Wait until the API server has said that the CRDs and all rights are there: without them the process could
        never lead.

        Errors: Terminal, naming the missing CRDs or permissions.
        """
        while True:
            try:
                await self.check()
                await self._kube.get(f"/apis/{names.GROUP}/{names.VERSION}")
            except NotFound as error:
                raise Terminal(NO_CRDS) from error
            except Retryable as error:
                logger.warning("%s; next attempt in %.0f s", error, RETRY_SECONDS)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def check(self) -> None:
        """Check that every needed permission is granted.

        Answers are cached, so that retries make progress on a busy server.

        Errors: Terminal, naming every missing verb; Retryable while an answer is missing.
        """
        open_ = [question for question, answer in self._answers.items() if answer is None]
        answers = await asyncio.gather(
            *(_allowed(self._kube, *question) for question in open_), return_exceptions=True
        )
        found = dict(zip(open_, answers, strict=True))
        self._answers |= {q: a for q, a in found.items() if isinstance(a, bool)}
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        missing = [question for question, allowed in self._answers.items() if not allowed]
        if missing:
            verbs_missing = ", ".join(
                f"{verb} {resource}{'.' if group else ''}{group} in {namespace or 'all namespaces'}"
                for namespace, group, resource, verb, _ in missing
            )
            raise Terminal(
                f"the operator's service account has no permission to: {verbs_missing}. "
                "Grant them as the chart's role does (docs/reference/rbac.md)"
            )


async def _allowed(
    kube: Kube, namespace: str, group: str, resource: str, verb: str, name: str
) -> bool:
    plural, _, subresource = resource.partition("/")
    attributes = {
        "namespace": namespace,
        "group": group,
        "resource": plural,
        "subresource": subresource,
        "verb": verb,
        "name": name,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = await kube.create(REVIEWS, review)
    return bool(answer["status"]["allowed"])
