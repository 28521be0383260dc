"""rlfleet on the development cluster: images of the working tree, the chart, weights, fleets.

The demo and the end-to-end tests use this. `python -m stack up` starts the same by hand.
"""

from stack.fleets import CPU_ENGINE, fleet_manifest, for_a_cpu, weights_manifest
from stack.images import (
    OPERATOR_IMAGE,
    ROUTER_IMAGE,
    WORKER_IMAGE,
    load_image,
    load_images,
    load_router,
    mounts,
)
from stack.operator import install, uninstall
from stack.volumes import weights_volume

__all__ = [
    "CPU_ENGINE",
    "OPERATOR_IMAGE",
    "ROUTER_IMAGE",
    "WORKER_IMAGE",
    "fleet_manifest",
    "for_a_cpu",
    "install",
    "load_image",
    "load_images",
    "load_router",
    "mounts",
    "uninstall",
    "weights_manifest",
    "weights_volume",
]
