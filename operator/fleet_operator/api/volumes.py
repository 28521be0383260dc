"""Volumes from which workers read weights, in the words of a pod's volumes.

Source: Kubernetes core/v1 Volume. Kinds that are missing here are deprecated in Kubernetes or can be
had through a PersistentVolume.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fleet_operator.api.container import DnsLabel, ObjectName, PullSecret, Quantity
from rlfleet_resources.base import Resource
from rlfleet_resources.source import AbsolutePath

Directory = Annotated[str, Field(min_length=1, max_length=1024, pattern="^/")]
Word = Annotated[str, Field(min_length=1, max_length=63)]


class ClaimReference(Resource):
    """A PersistentVolumeClaim of the fleet's namespace."""

    claim_name: ObjectName


class NfsVolume(Resource):
    """A directory of an NFS server."""

    server: ObjectName
    path: Directory


class CsiVolume(Resource):
    """An inline volume of a CSI driver."""

    driver: ObjectName
    fs_type: Annotated[str, Field(max_length=63)] | None = None
    volume_attributes: dict[str, str] | None = None
    node_publish_secret_ref: PullSecret | None = None


class HostPathVolume(Resource):
    """A directory of the node."""

    path: Directory
    type: Literal["Directory", "DirectoryOrCreate"] | None = None


class ImageVolume(Resource):
    """The files of an OCI image or artifact."""

    reference: Annotated[str, Field(min_length=1, max_length=500)]
    pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None


class ClaimMetadata(Resource):
    """Labels and annotations of a claim."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class ClaimResources(Resource):
    """Size of a claim."""

    requests: dict[str, Quantity]


class DataSource(Resource):
    """The initial content of a claim's volume."""

    api_group: Annotated[str, Field(max_length=253)] | None = None
    kind: Word
    name: ObjectName


class ClaimSpec(Resource):
    """The requested storage of a claim."""

    access_modes: Annotated[
        tuple[Literal["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"], ...],
        Field(min_length=1, max_length=4),
    ]
    storage_class_name: Annotated[str, Field(max_length=253)] | None = None
    volume_attributes_class_name: Annotated[str, Field(max_length=253)] | None = None
    resources: ClaimResources
    data_source_ref: DataSource | None = None


class ClaimTemplate(Resource):
    """A claim that is created for each pod."""

    metadata: ClaimMetadata | None = None
    spec: ClaimSpec


class EphemeralVolume(Resource):
    """A claim of its own for each pod."""

    volume_claim_template: ClaimTemplate


class EmptyDirVolume(Resource):
    """An empty directory for each pod."""

    medium: Literal["Memory"] | None = None
    size_limit: Quantity | None = None


class WeightVolume(Resource):
    """A volume that every worker mounts; exactly one source."""

    name: DnsLabel
    mount_path: AbsolutePath
    read_only: bool = True
    persistent_volume_claim: ClaimReference | None = None
    nfs: NfsVolume | None = None
    csi: CsiVolume | None = None
    host_path: HostPathVolume | None = None
    image: ImageVolume | None = None
    ephemeral: EphemeralVolume | None = None
    empty_dir: EmptyDirVolume | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        sources = (
            self.persistent_volume_claim,
            self.nfs,
            self.csi,
            self.host_path,
            self.image,
            self.ephemeral,
            self.empty_dir,
        )
        if sum(source is not None for source in sources) != 1:
            raise ValueError("exactly one volume source must be set")
        return self
