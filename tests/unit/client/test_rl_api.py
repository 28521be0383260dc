"""The client by the RL API's URL, over its real application and a fake API server."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from tests.support.fake_cluster import READER, TRAINER
from tests.support.fake_objects import TIME, patches
from tests.support.families import IPV6, needs_ipv6
from tests.support.identities import D1
from tests.support.pages import ROOT, blocks
from tests.support.rl_api import RlApi as Api
from tests.support.rl_api import rl_api

from free_ports import free_port
from rlfleet import (
    AsyncWeights,
    Forbidden,
    NotConfigured,
    NotFound,
    Refused,
    RlfleetError,
    Superseded,
    TimedOut,
    Unavailable,
    Weights,
)
from rlfleet import arguments as known_arguments
from rlfleet.ports import Kind

Use = Callable[..., Any]


async def blocking(api: Api, method: str, *arguments: Any, **options: Any) -> Any:
    def use() -> Any:
        with Weights("policy", namespace="rl", url=api.url, token=TRAINER) as weights:
            return getattr(weights, method)(*arguments, **options)

    return await asyncio.to_thread(use)


async def on_a_loop(api: Api, method: str, *arguments: Any, **options: Any) -> Any:
    async with AsyncWeights("policy", namespace="rl", url=api.url, token=TRAINER) as weights:
        return await getattr(weights, method)(*arguments, **options)


@pytest.fixture(params=[blocking, on_a_loop], ids=["blocking", "asyncio"])
def call(request: pytest.FixtureRequest) -> Use:
    return request.param


# --- the same results as by kubeconfig ------------------------------------------------------------


async def test_a_version_is_applied_with_the_rollout_that_the_object_shows(api, call):
    rollout = await call(api, "publish", "43", path="/weights/step_43", run_id="run-7")
    here = await AsyncWeights("policy", objects=api.objects).wait()

    assert rollout.applied
    assert (rollout.version, rollout.run_id) == ("43", "run-7")
    assert (rollout.timings, rollout.workers) == (here.timings, here.workers)
    assert rollout.timings.max_worker_pause_seconds == 0.5
    assert rollout.weights.status == here.weights.status
    assert rollout.weights.spec == here.weights.spec
    spec = patches(api.objects)[0]["spec"]
    assert spec["source"] == {"path": "/weights/step_{version}", "uri": None, "huggingFace": None}
    assert spec["digest"] is None


@needs_ipv6
async def test_the_url_may_have_an_address_of_ipv6(call):
    async with rl_api(IPV6) as api:
        rollout = await call(api, "publish", "43", path="/weights/step_43")

    assert rollout.applied
    assert "[::1]" in api.url


async def test_a_stall_is_refused_with_its_reason_and_message(api, call):
    api.objects._obeys = False
    api.objects.script.append(lambda: api.objects.stall("CheckpointTruncated"))

    with pytest.raises(Refused) as refused:
        await call(api, "publish", "43", timeout_seconds=60)

    assert (refused.value.version, refused.value.reason) == ("43", "CheckpointTruncated")
    assert refused.value.message == "because of CheckpointTruncated"


async def test_a_spec_that_the_api_cannot_take_is_refused(api, call, monkeypatch):
    """Such as one of a client that does not know the bound."""
    monkeypatch.setitem(known_arguments._RULES, "path", (re.compile("/.*"), ""))

    with pytest.raises(Refused) as refused:
        await call(api, "publish", "43", path="/weights/" + "x" * 2000)

    assert refused.value.reason == "Invalid"
    assert "source.path" in refused.value.message
    assert patches(api.objects) == []


async def test_a_version_that_another_writer_replaces_is_superseded(api, call):
    api.objects._obeys = False
    api.objects.script.append(lambda: api.objects.desire(version="44"))

    with pytest.raises(Superseded) as superseded:
        await call(api, "publish", "43")
    assert superseded.value.by == "44"


async def test_a_wait_for_a_long_rollout_times_out_and_the_version_stays_desired(api, call):
    api.objects._obeys = False
    api.objects.script.append(lambda: api.objects.look("Staging"))

    await call(api, "publish", "43", wait=False)
    await call(api, "current")

    with pytest.raises(TimedOut, match="phase Staging"):
        await call(api, "wait", timeout_seconds=0.3)
    assert (await call(api, "current")).spec.version == "43"


async def test_a_read_returns_the_object_and_the_fleets_status(api, call):
    local = AsyncWeights("policy", objects=api.objects)
    there, here = await call(api, "current"), await local.current()
    assert (there.spec, there.status, there.is_observed) == (here.spec, here.status, True)
    assert there.metadata.generation == here.metadata.generation
    assert [e.version for e in await call(api, "history")] == ["42", "41"]

    api.cluster.fleet["status"] |= {"replicas": 2, "readyReplicas": 2, "pinned": []}
    assert await call(api, "workers") == await local.workers()


async def test_rollback_suspend_resume_and_retry_are_the_apis(api, call):
    assert (await call(api, "rollback", "41", digest=D1)).version == "41"
    spec = patches(api.objects)[0]["spec"]
    assert (spec["rollbackTo"], spec["digest"]) == ("41", D1)

    assert (await call(api, "suspend")).spec.suspend
    assert not (await call(api, "resume")).spec.suspend

    api.objects.stall("FailureBudgetExceeded")
    assert (await call(api, "retry")).applied
    assert await call(api, "metrics", trained_version="42")


async def test_a_watch_shows_changes_deletion_and_a_new_object(api):
    seen: list[tuple[str, str]] = []
    objects = api.objects
    spec = {"fleetRef": {"name": "policy"}, "version": "50", "source": {"path": "/w/50"}}
    objects._obeys = False
    objects.script.extend(
        [
            lambda: None,
            lambda: objects.desire(version="43"),
            lambda: None,
            objects.delete,
            lambda: None,
            lambda: objects.make(spec, uid="uid-2"),
        ]
    )

    async with AsyncWeights("policy", namespace="rl", url=api.url, token=READER) as weights:
        async with asyncio.timeout(20):
            async for event in weights.watch():
                seen.append((event.type, event.weights.spec.version))
                if len(seen) == 4:
                    break

    assert seen == [("ADDED", "42"), ("MODIFIED", "43"), ("DELETED", "43"), ("ADDED", "50")]


# --- failures -------------------------------------------------------------------------------------


async def test_an_answer_that_is_lost_makes_no_second_change(api, call):
    api.odd.append(("PUT", web.Response(status=504, text="a proxy gave up")))

    assert (await call(api, "publish", "43", timeout_seconds=20)).applied
    assert [r for r in api.requests if r.startswith("PUT")] == [
        "PUT /fleets/rl/policy/v1/rl/weights"
    ] * 2
    assert len(patches(api.objects)) == 1


async def test_a_state_that_fails_for_a_while_is_read_again(api, call):
    api.odd.append(("GET", web.Response(status=503, headers={"Retry-After": "0"})))

    assert (await call(api, "current")).spec.version == "42"


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (lambda: web.Response(status=404, text="not here"), NotFound, "no RL API at this address"),
        (lambda: web.json_response([1, 2]), RlfleetError, "not a document"),
        (lambda: web.json_response({"weights": {"name": "x"}}), RlfleetError, "one release"),
        (lambda: web.Response(status=301, headers={"Location": "http://x"}), RlfleetError, "301"),
    ],
    ids=["404", "list", "older", "redirect"],
)
async def test_an_answer_of_another_server_is_not_a_state(api, call, answer, error, words):
    api.odd.append(("GET", answer()))

    with pytest.raises(error, match=words):
        await call(api, "current")


async def test_a_token_without_rights_is_forbidden_at_once(api):
    async with AsyncWeights("policy", namespace="rl", url=api.url, token=READER) as weights:
        with pytest.raises(Forbidden, match="may not patch"):
            await weights.publish("43")
    async with AsyncWeights("policy", namespace="rl", url=api.url, token="no-one") as weights:
        with pytest.raises(Forbidden):
            await weights.current()


async def test_a_fleet_without_weights_is_not_found_and_none_is_created(api, call):
    api.objects.delete()
    for method, arguments in (("current", ()), ("publish", ("43",))):
        with pytest.raises(NotFound, match="create one"):
            await call(api, method, *arguments)
    with pytest.raises(NotFound, match="create one"):
        await call(api, "publish", "43", path="/weights/43", create_for="policy")


async def test_the_fleet_of_the_address_is_the_only_one_that_may_be_wanted(api, call):
    with pytest.raises(Refused, match=r"'judge'.*'policy'"):
        await call(api, "publish", "43", path="/weights/43", create_for="judge")


async def test_a_port_without_a_server_is_unavailable():
    url = f"http://127.0.0.1:{free_port()}"
    async with AsyncWeights("policy", namespace="rl", url=url, token=TRAINER) as weights:
        with pytest.raises(Unavailable, match="does not answer"):
            await weights._place.get(Kind.WEIGHTS, "policy")


# --- where it is ----------------------------------------------------------------------------------


async def test_the_environment_names_the_api_so_that_code_needs_no_change(
    api, monkeypatch, tmp_path
):
    token = tmp_path / "token"
    token.write_text("expired\n")
    monkeypatch.setenv("RLFLEET_API_URL", api.url)
    monkeypatch.setenv("RLFLEET_API_TOKEN_FILE", str(token))
    monkeypatch.setenv("RLFLEET_NAMESPACE", "rl")

    async with AsyncWeights("policy") as weights:
        with pytest.raises(Forbidden):
            await weights.current()
        token.write_text(f"{TRAINER}\n")
        assert (await weights.current()).spec.version == "42"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs a token"),
        ({"token": "a", "token_file": "b"}, "give one of them"),
        ({"token": "two\nlines"}, "one line of visible ASCII"),
        ({"token_file": "/does/not/exist"}, "cannot be read"),
        ({"token": "a", "url": "ftp://host"}, "must be https"),
        ({"token": "a", "url": "https://me:secret@host"}, "without credentials"),
        ({"token": "a", "ca": "/does/not/exist"}, "cannot be used as an authority"),
        ({"token": "a", "namespace": None}, "namespace is not known"),
        ({"token": "a", "kubeconfig": "file"}, "give one of them"),
        ({"token": "a", "url": None}, "give url="),
    ],
    ids=lambda found: "" if isinstance(found, dict) else found,
)
async def test_an_access_that_cannot_be_used_is_a_sentence_without_secrets(options, words):
    given = {"namespace": "rl", "url": "https://host"} | options
    with pytest.raises(NotConfigured, match=words) as error:
        await AsyncWeights("policy", **given).current()
    assert "secret" not in str(error.value)
    assert "two" not in str(error.value)


async def test_a_named_kubeconfig_goes_before_the_environment(monkeypatch):
    monkeypatch.setenv("RLFLEET_API_URL", "https://host")
    with pytest.raises(NotConfigured, match="/no/kubeconfig"):
        Weights("policy", kubeconfig="/no/kubeconfig")


# --- the page -------------------------------------------------------------------------------------

PAGE = "docs/how-to/publish-from-python.md"
OTHER_LIBRARIES = ("import wandb", "from openai", "import httpx")
"""First words of blocks of other libraries; test_examples.py and test_sampling.py run what they call."""


async def test_the_programs_of_the_page_run_by_url_without_a_change(api, tmp_path):
    pin = {"version": "41", "digest": f"sha256:{'1' * 64}", "source": {"path": "/weights/41"}}
    api.cluster.fleet["status"]["pinned"] = [pin | {"runID": "run-7"}]
    past = {"result": "Applied", "startedAt": TIME, "totalSeconds": 1, "runID": "run-7"}
    api.objects.desire(runID="run-7")
    api.objects.apply(history=[past | {"version": "42"}, past | {"version": "40"}])
    token = tmp_path / "token"
    token.write_text(TRAINER)
    named = [text for text in blocks(PAGE, "python") if text.startswith("# By the URL")]
    others = [text for text in blocks(PAGE, "python") if not text.startswith(OTHER_LIBRARIES)]
    assert (len(named), len(others)) == (1, 4)
    variables = {"RLFLEET_API_URL": api.url, "RLFLEET_API_TOKEN_FILE": str(token)}

    for text in others:
        script, more = text, variables
        if text in named:
            script = text.replace("https://rl.example.com", api.url)
            script, more = script.replace("/run/secrets/rlfleet/token", str(token)), {}
        done = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "error", "-c", script),
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "client"), **more},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await done.communicate()
        assert done.returncode == 0, f"{text}\n{output.decode()}"
        assert output
