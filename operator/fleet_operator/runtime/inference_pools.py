"""Creates and deletes the InferencePool of a fleet.

Their CRD may be missing, so they are not watched. Each sweep reads the pools that exist, as it reads
ConfigMaps. Each leader checks a fleet without the field once, since an earlier leader may have ended
before it deleted the pool.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from fleet_operator.core.manifests.inference_pool import GROUP, PLURAL, VERSION, inference_pool
from fleet_operator.core.observed import FleetObserved
from fleet_operator.errors import KindMissing, NotFound
from fleet_operator.ports import Json, Kube


class InferencePools:
    """The pool of one fleet.

    Args:
        kube: The API.
        apply: Writes a manifest to a path. It does nothing if the object is as it should be.
        delete: Deletes the object at a path that has a uid.
    """

    def __init__(
        self,
        kube: Kube,
        apply: Callable[[str, Json], Awaitable[None]],
        delete: Callable[[str, str], Awaitable[None]],
    ) -> None:
        self._kube = kube
        self._apply = apply
        self._delete = delete
        self._is_absent = False
        """Whether this process has seen that the fleet has no pool."""

    def write(self, observed: FleetObserved) -> Callable[[], Awaitable[None]] | None:
        """The write that brings the pool to what the spec asks for; None if there is nothing to do."""
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{observed.namespace}/{PLURAL}/{observed.name}"
        wanted = inference_pool(observed)
        if wanted is not None:
            self._is_absent = False
            return partial(self._put, path, wanted)
        if self._is_absent:
            return None
        return partial(self._remove, path, observed.uid)

    async def _put(self, path: str, manifest: Json) -> None:
        """Errors: KindMissing without the CRD."""
        try:
            await self._apply(path, manifest)
        except NotFound as error:
            raise KindMissing(
                f"InferencePool {manifest['metadata']['name']} cannot be created, because the API "
                f"server does not know {PLURAL} of {GROUP}/{VERSION}. Install the CRDs of the Gateway "
                "API Inference Extension, or remove spec.serving.inferencePool"
            ) from error

    async def _remove(self, path: str, fleet_uid: str) -> None:
        """Delete the pool if this fleet owns it."""
        try:
            metadata = (await self._kube.get(path))["metadata"]
        except NotFound:
            metadata = {}
        owners = (o for o in metadata.get("ownerReferences", ()) if o.get("controller"))
        if any(owner["uid"] == fleet_uid for owner in owners):
            await self._delete(path, metadata["uid"])
        self._is_absent = True
