"""A repository and a trainer share a WeightVersion: each owns its fields, and neither reverts."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import pytest
from tests.cluster.support.admin import ApiError, Json
from tests.cluster.support.workspace import FLEET, Workspace
from tests.support.argocd import health
from tests.support.kstatus import kstatus

GITOPS = "gitops"
TRAINER = "trainer"


def manifest(**spec: Any) -> Json:
    """The content of the repository: everything except the version."""
    return {
        "apiVersion": "rlfleet.dev/v1alpha1",
        "kind": "WeightVersion",
        "metadata": {"name": FLEET},
        "spec": {
            "fleetRef": {"name": FLEET},
            "source": {"path": "/weights/step_{version}"},
            **spec,
        },
    }


def published(version: str) -> Json:
    """The trainer's object: the version, and nothing else."""
    head = {k: manifest()[k] for k in ("apiVersion", "kind", "metadata")}
    return head | {"spec": {"version": version}}


def owned_by(found: Json, manager: str) -> set[str]:
    """Fields of the spec that a manager owns."""
    return {
        field.removeprefix("f:")
        for entry in found["metadata"]["managedFields"]
        if entry["manager"] == manager
        for field in entry["fieldsV1"].get("f:spec", {})
    }


@pytest.mark.usefixtures("shared_operator")
async def test_a_trainer_that_applies_the_version_and_a_repository_that_owns_the_rest(
    workspace: Workspace,
) -> None:
    await workspace.make_fleet(replicas=2, version="1")
    await workspace.admin.delete(workspace.path("weightversions"))
    path = workspace.path("weightversions")

    await workspace.admin.apply(path, manifest(version="1"), manager=GITOPS)
    await workspace.applied("1", replicas=2)
    made = await workspace.admin.apply(path, published("2"), manager=TRAINER, force=True)
    assert owned_by(made, TRAINER) == {"version"}
    assert "version" not in owned_by(made, GITOPS)
    await workspace.applied("2", replicas=2)

    # From here on the repository names no version: a sync changes what it owns, and no more.
    tuned = manifest(rollout={"maxFailures": 1})
    made = await workspace.admin.apply(path, tuned, manager=GITOPS)
    assert (made["spec"]["version"], made["spec"]["rollout"]["maxFailures"]) == ("2", 1)
    await workspace.applied("2", replicas=2)
    await _kubectl_apply(workspace, published("3"))
    await workspace.applied("3", replicas=2)

    found = [await workspace.fleet(), await workspace.weights()]
    assert {kstatus(one) for one in found} == {"Current"}
    assert [status["status"] for status in health(found)] == ["Healthy", "Healthy"]
    # The operator owns the status, and nothing of the spec.
    managers = {e["manager"] for e in found[1]["metadata"]["managedFields"]}
    assert managers == {GITOPS, TRAINER, "rlfleet-operator"}
    assert owned_by(found[1], "rlfleet-operator") == set()


async def _kubectl_apply(workspace: Workspace, body: Json) -> None:
    """The command of the page: kubectl checks what it sends, too."""
    words = ("apply", "--server-side", f"--field-manager={TRAINER}", "-f", "-")
    call = partial(
        workspace.cluster.kubectl, "-n", workspace.namespace, *words, stdin=json.dumps(body)
    )
    await asyncio.to_thread(call)


async def test_a_trainer_that_patches_owns_the_version_as_well(workspace: Workspace) -> None:
    await workspace.make_fleet(replicas=1)
    path = workspace.path("weightversions")
    await workspace.admin.delete(path)
    await workspace.admin.apply(path, manifest(version="1"), manager=GITOPS)

    patch = {"spec": {"version": "2"}}
    made = await workspace.admin.merge(f"{path}?fieldManager={TRAINER}", patch)
    assert owned_by(made, TRAINER) == {"version"}
    made = await workspace.admin.apply(path, manifest(), manager=GITOPS)
    assert made["spec"]["version"] == "2"


async def test_a_repository_that_still_names_a_version_gets_a_conflict_with_its_owner(
    workspace: Workspace,
) -> None:
    await workspace.make_fleet(replicas=1)
    path = workspace.path("weightversions")
    await workspace.admin.delete(path)
    await workspace.admin.apply(path, manifest(version="1"), manager=GITOPS)
    await workspace.admin.apply(path, published("2"), manager=TRAINER, force=True)

    with pytest.raises(ApiError, match=r'conflict with "trainer".*\.spec\.version') as refused:
        await workspace.admin.apply(path, manifest(version="1"), manager=GITOPS)

    assert refused.value.status == 409
    assert (await workspace.weights())["spec"]["version"] == "2"


@pytest.mark.parametrize(("scaled", "replicas"), [(False, 1), (True, 4)])
async def test_replicas_that_a_manifest_no_longer_names(
    workspace: Workspace, *, scaled: bool, replicas: int
) -> None:
    """The value stays if `kubectl scale` owns it too; if the manifest alone did, it is the default."""
    await workspace.make_fleet(replicas=2)
    path = workspace.path("inferencefleets")
    made = await workspace.fleet()
    await workspace.admin.delete(path)
    head = {k: made[k] for k in ("apiVersion", "kind")} | {"metadata": {"name": FLEET}}
    spec = {k: made["spec"][k] for k in ("model", "weights")}
    await workspace.admin.apply(path, head | {"spec": spec | {"replicas": 3}}, manager=GITOPS)
    if scaled:
        await workspace.kubectl("scale", f"ifl/{FLEET}", "--replicas=4")

    made = await workspace.admin.apply(path, head | {"spec": spec}, manager=GITOPS)

    assert made["spec"]["replicas"] == replicas
