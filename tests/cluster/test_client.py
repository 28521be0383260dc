"""The client on a real API server, with a real operator and fake workers."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.cluster.support.api_proxy import ApiProxy
from tests.cluster.support.workspace import FLEET, Workspace
from tests.support.pages import blocks
from tests.support.waiting import soon

from rlfleet import AsyncWeights, Forbidden, NotFound, Refused, Superseded, Weights
from rlfleet.follow import follow
from rlfleet.kube import AsyncKube
from rlfleet.kubeconfig import load_access
from rlfleet.ports import Kind
from rlfleet.resources import WeightVersion

ROOT = Path(__file__).parents[2]


@pytest.fixture
def weights(workspace: Workspace) -> Iterator[Weights]:
    with Weights(
        FLEET, namespace=workspace.namespace, kubeconfig=workspace.cluster.kubeconfig
    ) as made:
        yield made


async def blocking(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """A call of the blocking client, in a thread of its own."""
    return await asyncio.to_thread(call, *arguments, **options)


# --- with the operator ----------------------------------------------------------------------------


@pytest.mark.usefixtures("shared_operator")
async def test_a_trainer_publishes_reads_and_rolls_back(
    workspace: Workspace, weights: Weights
) -> None:
    await workspace.make_fleet(replicas=3, version="1")
    assert (await blocking(weights.wait, timeout_seconds=60)).version == "1"
    await workspace.applied("1")

    rollout = await blocking(weights.publish, "2", timeout_seconds=60)

    assert rollout.applied
    assert rollout.workers.applied == 3
    assert rollout.timings.total_seconds >= rollout.timings.max_worker_pause_seconds >= 0
    assert rollout.timings.total_seconds > 0
    assert workspace.serving == ["2"] * 3
    now = await blocking(weights.current)
    assert (now.spec.version, now.status.applied_version, now.is_observed) == ("2", "2", True)
    history = await blocking(weights.history)
    assert [(e.version, e.result) for e in history][:1] == [("2", "Applied")]
    fleet = await blocking(weights.workers)
    assert [(v.version, v.workers) for v in fleet.versions] == [("2", 3)]
    assert fleet.endpoint == f"http://policy.{workspace.namespace}.svc:8000"
    figures = await blocking(weights.metrics, trained_version=4)
    assert figures["rlfleet/total_seconds"] == rollout.timings.total_seconds
    assert figures["rlfleet/lag_versions"] == 2

    for version in ("1", "2", "1"):
        back = version == "1"
        call = weights.rollback if back else weights.publish
        assert (await blocking(call, version, timeout_seconds=60)).applied
        assert workspace.serving == [version] * 3


@pytest.mark.usefixtures("shared_operator")
async def test_a_refused_checkpoint_ends_the_wait_and_a_retry_takes_the_repaired_one(
    workspace: Workspace, weights: Weights
) -> None:
    workspace.kubelet.bad_sources.add("/weights/step_2")
    await workspace.make_fleet(replicas=3, version="1")
    await workspace.applied("1")
    began = time.monotonic()

    with pytest.raises(Refused) as refused:
        await blocking(weights.publish, "2", timeout_seconds=600)

    assert time.monotonic() - began < 60
    assert refused.value.reason == (await workspace.condition("Stalled") or {})["reason"]
    assert "version 2 (/weights/step_2)" in refused.value.message
    assert workspace.serving == ["1"] * 3
    workspace.kubelet.bad_sources.clear()
    assert (await blocking(weights.retry, timeout_seconds=60)).applied
    assert workspace.serving == ["2"] * 3


@pytest.mark.usefixtures("shared_operator")
async def test_a_second_writer_is_seen(workspace: Workspace, weights: Weights) -> None:
    await workspace.make_fleet(replicas=2, version="1")
    await workspace.applied("1", replicas=2)
    await blocking(weights.suspend)
    with pytest.raises(Refused, match="Version 2 stays desired") as refused:
        await blocking(weights.publish, "2", timeout_seconds=600)
    assert refused.value.reason == "Suspended"
    rollout = await blocking(weights.publish, "2", wait=False)

    await workspace.publish("3")

    with pytest.raises(Superseded) as raised:
        await blocking(weights.wait, rollout, timeout_seconds=60)
    assert raised.value.by == "3"
    await blocking(weights.resume)
    assert (await blocking(weights.wait, timeout_seconds=60)).version == "3"


@pytest.mark.usefixtures("shared_operator")
async def test_an_object_is_created_for_a_fleet(workspace: Workspace, weights: Weights) -> None:
    await workspace.make_fleet(replicas=1, version="1")
    await workspace.admin.delete(workspace.path("weightversions"))

    with pytest.raises(NotFound, match="policy"):
        await blocking(weights.publish, "1", path="/weights/one")
    publish = {"path": "/weights/one", "create_for": FLEET, "timeout_seconds": 60}
    rollout = await blocking(weights.publish, "1", **publish)

    assert rollout.applied
    found = await workspace.weights()
    assert found["spec"]["source"] == {"path": "/weights/one"}
    managers = {entry["manager"] for entry in found["metadata"]["managedFields"]}
    assert managers == {"trainer", "rlfleet-operator"}


# --- with statuses that the test writes -----------------------------------------------------------


async def test_the_api_server_refuses_what_a_version_may_not_do(
    workspace: Workspace, weights: Weights
) -> None:
    await workspace.make_fleet(replicas=1, version="5")

    with pytest.raises(Refused, match="only grow") as refused:
        await blocking(weights.publish, "4")
    assert refused.value.reason == "Invalid"
    with pytest.raises(Refused, match=r"spec\.source: may only change together"):
        await blocking(weights.publish, "5", path="/weights/other")


async def test_a_field_that_the_crd_does_not_have_is_refused_and_not_dropped(
    workspace: Workspace,
) -> None:
    """As a client finds it whose CRDs are of an older release."""
    await workspace.make_fleet(replicas=1, version="5")
    access = load_access(workspace.cluster.kubeconfig, namespace=workspace.namespace)
    client = AsyncKube(access, "trainer")
    try:
        with pytest.raises(Refused, match=r"spec\.newField"):
            await client.patch(Kind.WEIGHTS, FLEET, {"spec": {"version": "6", "newField": 1}})
    finally:
        await client.close()

    assert (await workspace.weights())["spec"]["version"] == "5"


# --- watches --------------------------------------------------------------------------------------


async def test_a_version_that_the_server_has_forgotten_is_read_again(workspace: Workspace) -> None:
    await workspace.make_fleet(replicas=1, version="1")
    found = WeightVersion.model_validate(await workspace.weights())
    metadata = found.metadata.model_copy(update={"resource_version": "1"})
    kube = AsyncKube(
        load_access(workspace.cluster.kubeconfig, namespace=workspace.namespace), "trainer"
    )
    events = follow(kube, FLEET, seen=found.model_copy(update={"metadata": metadata}))
    async with aclosing(events), asyncio.timeout(30):
        event = await anext(events)

        assert (event.type, event.weights.metadata.resource_version) == (
            "MODIFIED",
            found.metadata.resource_version,
        )
        await workspace.publish("2")
        assert (await anext(events)).weights.spec.version == "2"
    await kube.close()


async def test_a_watch_continues_after_its_connection_was_cut(
    workspace: Workspace, tmp_path: Path
) -> None:
    await workspace.make_fleet(replicas=1, version="1")
    async with ApiProxy(workspace.credentials) as proxy:
        config = proxy.kubeconfig(tmp_path, workspace.credentials.token)
        async with AsyncWeights(FLEET, namespace=workspace.namespace, kubeconfig=config) as weights:
            events = weights.watch()
            async with aclosing(events), asyncio.timeout(60):
                assert (await anext(events)).type == "ADDED"
                for version in ("2", "3"):
                    coming = asyncio.ensure_future(anext(events))
                    await soon(lambda c=coming: proxy.cut_watches() or c.done())
                    await workspace.publish(version)
                    assert (await coming).weights.spec.version == version


# --- rights ---------------------------------------------------------------------------------------


@pytest_asyncio.fixture(loop_scope="session")
async def account(workspace: Workspace, tmp_path: Path) -> Path:
    """A kubeconfig with the rights of a trainer, as docs/reference/rbac.md gives them."""
    page = (ROOT / "docs/reference/rbac.md").read_text()
    role = page.partition("```yaml\n")[2].partition("```")[0]
    role = role.replace("namespace: rl", f"namespace: {workspace.namespace}")
    await asyncio.to_thread(workspace.cluster.kubectl, "apply", "-f", "-", stdin=role)
    await workspace.kubectl("create", "serviceaccount", "trainer")
    subject = f"--serviceaccount={workspace.namespace}:trainer"
    await workspace.kubectl("create", "rolebinding", "trainer", "--role=trainer", subject)
    config = json.loads(workspace.cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {
        "token": (await workspace.kubectl("create", "token", "trainer")).strip()
    }
    file = tmp_path / "trainer"
    file.write_text(json.dumps(config))
    return file


@pytest.mark.usefixtures("shared_operator")
async def test_the_documented_role_is_enough_and_gives_nothing_more(
    workspace: Workspace, account: Path
) -> None:
    await workspace.make_fleet(replicas=1, version="1")
    await workspace.applied("1", replicas=1)
    with Weights(FLEET, namespace=workspace.namespace, kubeconfig=account) as weights:
        assert (await blocking(weights.publish, "2", timeout_seconds=60)).applied
        assert (await blocking(weights.rollback, "1", timeout_seconds=60)).applied
        assert (await blocking(weights.workers)).workers.serving == 1
        for event in weights.watch():
            assert event.type == "ADDED"
            break
    with (
        Weights("other", namespace=workspace.namespace, kubeconfig=account) as weights,
        pytest.raises(Forbidden, match='cannot get resource "weightversions"'),
    ):
        await blocking(weights.publish, "2")
    with (
        Weights(FLEET, namespace="default", kubeconfig=account) as weights,
        pytest.raises(Forbidden, match="get, list, watch and patch"),
    ):
        await blocking(weights.current)


async def test_a_token_that_is_refused_is_named(workspace: Workspace, tmp_path: Path) -> None:
    config = json.loads(workspace.cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": "wrong"}
    file = tmp_path / "wrong"
    file.write_text(json.dumps(config))

    with Weights(FLEET, kubeconfig=file) as weights, pytest.raises(Forbidden, match="renew"):
        await blocking(weights.current)


async def test_a_namespace_that_does_not_exist_is_named(workspace: Workspace) -> None:
    config = workspace.cluster.kubeconfig
    with (
        Weights(FLEET, namespace="gone", kubeconfig=config) as weights,
        pytest.raises(NotFound, match="the name and the namespace"),
    ):
        await blocking(weights.current)


# --- the pages ------------------------------------------------------------------------------------

PAGE = "docs/how-to/publish-from-python.md"
ELSEWHERE = ("import wandb", "from openai", "import httpx", "# By the URL")
"""First words of blocks that need other libraries or the RL API. Unit tests run what they call."""


def programs() -> list[tuple[str, str]]:
    found = [(page, text) for page in (PAGE, "README.md") for text in blocks(page, "python")]
    return [(page, text) for page, text in found if not text.startswith(ELSEWHERE)]


@pytest.mark.usefixtures("shared_operator")
async def test_the_programs_of_the_pages_run(workspace: Workspace) -> None:
    """Without their run, which the fake workers do not know."""
    assert [page for page, _ in programs()] == [PAGE, PAGE, PAGE, "README.md"]
    await workspace.make_fleet(replicas=2, version="41")
    await workspace.applied("41", replicas=2)
    for page, text in programs():
        script = text.replace('namespace="rl"', f'namespace="{workspace.namespace}"')
        script = script.replace(', run_id="run-7"', "")
        done = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "error", "-c", script),
            env={**workspace.cluster.environment(), "PYTHONPATH": str(ROOT / "client")},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await done.communicate()
        assert done.returncode == 0, f"{page}: {text}\n{output.decode()}"
        assert output
    assert (await workspace.weights())["status"]["appliedVersion"] == "43"
