"""Volumes from which workers read weights, in the words of a pod's volumes.

Source: Kubernetes core/v1 Volume. Kinds that are missing here are deprecated in Kubernetes or can be
had through a PersistentVolume.
"""

from __future__ import annotations

from fleet_operator.api.container import DnsLabel
from fleet_operator.api.depth import FreeMap
from rlfleet_resources.base import Resource
from rlfleet_resources.source import AbsolutePath


class WeightVolume(Resource):
    """A volume that every worker mounts. The CRD demands exactly one of the sources, and checks it."""

    name: DnsLabel
    mount_path: AbsolutePath
    read_only: bool = True
    persistent_volume_claim: FreeMap | None = None
    nfs: FreeMap | None = None
    csi: FreeMap | None = None
    host_path: FreeMap | None = None
    image: FreeMap | None = None
    ephemeral: FreeMap | None = None
    empty_dir: FreeMap | None = None
