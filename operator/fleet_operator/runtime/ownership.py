"""Whether the operator may write an object: its fleet exists, and the object belongs to that fleet."""

from __future__ import annotations

from fleet_operator.errors import NameTaken, NotFound
from fleet_operator.ports import Json, Kube
from rlfleet_resources import names


async def fleet_lives(kube: Kube, namespace: str, owner: Json) -> bool:
    """Whether the fleet of an owner reference exists and is not being deleted, read from the API server.

    The watch may be late. With `--cascade=orphan`, adopting the fleet's objects now would get
    them garbage collected. Source: adoption by
    the controllers of Kubernetes (`RecheckDeletionTimestamp`).
    """
    root = f"/apis/{names.GROUP}/{names.VERSION}/namespaces/{namespace}/{names.FLEET_PLURAL}"
    try:
        metadata = (await kube.get(f"{root}/{owner['name']}"))["metadata"]
    except NotFound:
        return False
    return metadata["uid"] == owner["uid"] and "deletionTimestamp" not in metadata


def check_owner(found: Json, manifest: Json) -> None:
    """Check that the operator may write an object.

    It may write objects of this fleet, and those of an earlier fleet of the same name, which the garbage
    collector would delete. It may also write objects without an owner that have all labels of this fleet,
    as `kubectl delete --cascade=orphan` leaves them.

    Errors: NameTaken for all others.
    """
    metadata, wanted = found["metadata"], manifest["metadata"]
    (owner,) = wanted["ownerReferences"]
    controllers = (o for o in metadata.get("ownerReferences", ()) if o.get("controller"))
    controller = next(controllers, None)
    if controller is None:
        labels = wanted["labels"]
        fleet = {key: labels[key] for key in names.fleet_labels(owner["name"])}
        ours = (metadata.get("labels") or {}).items() >= fleet.items()
        whose = "has no owner"
    else:
        group = str(controller["apiVersion"]).partition("/")[0]
        kind = (group, controller["kind"], controller["name"])
        ours = kind == (names.GROUP, names.FLEET_KIND, owner["name"])
        whose = f"belongs to {controller['kind']} {controller['name']}"
    if not ours:
        raise NameTaken(
            f"{title_of(manifest)} exists already and {whose}. The operator leaves it as it is. Delete "
            "it, or create the fleet under another name"
        )


def title_of(manifest: Json) -> str:
    """Kind and name of an object."""
    return f"{manifest['kind']} {manifest['metadata']['name']}"
