"""The checks of `rlfleet doctor` about images: pure, as `diagnosis`. No image is pulled for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlfleet.cli.checks import Check
from rlfleet.cli.diagnosis import Answer, argument, fail, ok, unread, warn
from rlfleet.errors import NotFound, RlfleetError
from rlfleet.ports import Json
from rlfleet.words import bounded, plural
from rlfleet_resources.names import WORKER_CONTAINER

DEFAULT_ACCOUNT = "default"
_PULLS = frozenset(
    {
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
"""Reasons of a container that waits for its image. Source: pkg/kubelet/images/types.go of Kubernetes."""
_OPERATORS = frozenset({"operator", "api"})
"""Containers of the chart's own pods."""
_DOCKER = "docker.io"


@dataclass(frozen=True, slots=True)
class Pull:
    """An image that a container waits for."""

    pod: str
    container: str
    image: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Needed:
    """The service account and the Secrets that the pods of a fleet name for their pulls."""

    fleet: str
    account: str
    secrets: tuple[str, ...]


def failed_pulls(pods: Sequence[Json]) -> list[Pull]:
    """The images that the containers of these pods cannot get."""
    return [found for pod in pods for found in _failed(pod)]


def _failed(pod: Json) -> Iterator[Pull]:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    named = {
        c["name"]: c.get("image", "")
        for kind in ("initContainers", "containers")
        for c in spec.get(kind) or ()
    }
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind) or ():
            waiting = (container.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") in _PULLS:
                name = container["name"]
                image = named.get(name) or container.get("image", "")
                message = waiting.get("message") or ""
                yield Pull(pod["metadata"]["name"], name, image, waiting["reason"], message)


def pull_checks(pulls: Sequence[Pull], namespace: str) -> Iterator[Check]:
    """One check for each image that pods cannot get. The messages are those of the registry."""
    by_image: dict[tuple[str, str], list[Pull]] = {}
    for pull in pulls:
        by_image.setdefault((pull.container, pull.image), []).append(pull)
    for found in by_image.values():
        first = found[0]
        more = f" and {plural(len(found) - 1, 'more pod')}" if len(found) > 1 else ""
        reason = bounded(f"{first.reason}: {first.message}" if first.message else first.reason)
        message = f"{first.pod}{more} cannot get {bounded(first.image)}, {reason}"
        yield fail("image", message, _remedy(first, namespace))


def _remedy(pull: Pull, namespace: str) -> str:
    field, secrets = "spec.podOverlay of the fleet", "imagePullSecrets"
    if pull.container == WORKER_CONTAINER:
        field, secrets = "spec.engine.image of the fleet", "spec.pod.imagePullSecrets"
    elif pull.container in _OPERATORS:
        field, secrets = "image of the chart's values", "imagePullSecrets of the values"
    if pull.reason == "InvalidImageName":
        return f"correct {field}"
    if pull.reason == "ErrImageNeverPull":
        return f"load the image on the node, or set imagePullPolicy: IfNotPresent ({field})"
    where = f"kubectl -n {namespace} describe pod {pull.pod}"
    return f"check {field}, {secrets}, and the way from the node to the registry: {where}"


def default_checks(operators: Answer, nodes: Answer) -> Iterator[Check]:
    """The worker image of fleets that name none, and the nodes that have it already."""
    if isinstance(operators, RlfleetError):
        return
    for one in operators["items"]:
        operator = f"{one['metadata']['namespace']}/{one['metadata']['name']}"
        if image := argument(one, "--default-image"):
            message = f"{operator} starts workers with {image} where a fleet names no image"
            yield ok("image", f"{message}; {_presence(image, nodes)}")
        else:
            message = f"{operator} has no default image for workers"
            yield warn("image", message, "name spec.engine.image in each fleet")


def _presence(image: str, nodes: Answer) -> str:
    """Whether nodes have an image. A node lists 50 images at most, so it may have others."""
    if isinstance(nodes, RlfleetError):
        return "its pull is untried, and this account may not see which nodes have it"
    wanted, items = normalized(image), nodes["items"]
    having = sum(wanted in _images_of(node) for node in items)
    if having:
        verb = "lists" if having == 1 else "list"
        others = "" if having == len(items) else "; its pull on the others is untried"
        return f"{having} of {plural(len(items), 'node')} {verb} it{others}"
    return f"none of {plural(len(items), 'node')} lists it, and its pull is untried"


def _images_of(node: Json) -> set[str]:
    images = (node.get("status") or {}).get("images") or ()
    return {normalized(name) for image in images for name in image.get("names") or ()}


def normalized(image: str) -> str:
    """The name by which a node lists an image: with its registry, and with a digest or a tag."""
    name, _, digest = image.partition("@")
    first, slash, rest = name.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        first, rest = _DOCKER, name if slash else f"library/{name}"
    rest, _, tag = rest.partition(":")
    return f"{first}/{rest}@{digest}" if digest else f"{first}/{rest}:{tag or 'latest'}"


def needs_of(fleet: Json) -> Needed:
    """The service account and the Secrets of a fleet's pods."""
    spec = fleet["spec"]
    given = (spec.get("pod") or {}, (spec.get("podOverlay") or {}).get("spec") or {})
    secrets = dict.fromkeys(
        str(one.get("name", "")) for part in given for one in part.get("imagePullSecrets") or ()
    )
    account = next((str(a) for part in given if (a := part.get("serviceAccountName"))), "")
    name = fleet["metadata"]["name"]
    return Needed(name, account or DEFAULT_ACCOUNT, tuple(filter(None, secrets)))


def secrets_of(account: Answer) -> tuple[str, ...]:
    """The pull Secrets of a service account."""
    found = [] if isinstance(account, RlfleetError) else account.get("imagePullSecrets") or []
    return tuple(str(one["name"]) for one in found if one.get("name"))


def needs_checks(
    needs: Sequence[Needed], accounts: Mapping[str, Answer], secrets: Mapping[str, Answer]
) -> Iterator[Check]:
    """The accounts and Secrets that pulls need and the namespace lacks. `accounts`, `secrets`: by name."""
    for need in needs:
        account = accounts[need.account]
        whose = f"of fleet {need.fleet}"
        if isinstance(account, NotFound):
            message = f"the service account {need.account} {whose} does not exist"
            yield fail("image", message, "create it, or correct spec.pod.serviceAccountName")
        elif isinstance(account, RlfleetError) and need.account != DEFAULT_ACCOUNT:
            yield unread("image", account)
        named: dict[str, str] = dict.fromkeys(
            secrets_of(account), f"service account {need.account}"
        )
        named |= dict.fromkeys(need.secrets, "spec.pod.imagePullSecrets")
        for secret, by in named.items():
            answer: Any = secrets[secret]
            if isinstance(answer, NotFound):
                message = f"the pull Secret {secret} {whose} does not exist ({by} names it)"
                yield fail("image", message, "create it with kubectl create secret docker-registry")
            elif isinstance(answer, RlfleetError):
                yield unread("image", answer)
