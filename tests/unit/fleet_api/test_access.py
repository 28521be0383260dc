"""Callers, their rights, and the limits for all of them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.fake_cluster import (
    ACCESS_REVIEWS,
    READER,
    STRANGER,
    TOKEN_REVIEWS,
    TRAINER,
    FakeCluster,
    token_of,
)
from tests.unit.fleet_api.conftest import STATIC_KEY, Api

from fleet_api.authentication import (
    ACCEPTED_SECONDS,
    MAX_REVIEWS,
    MAX_REVIEWS_AT_ONCE,
    REFUSED_AGAIN_SECONDS,
    REFUSED_SECONDS,
    Authenticator,
    Caller,
    named_tenant,
)
from fleet_api.authorization import Authorizer, Right
from fleet_api.keys import StaticKeys
from fleet_api.limits import MAX_BODY_BYTES, MAX_CLIENTS, Rate, Slots
from fleet_api.problems import Problem
from fleet_api.route import READING_METHODS
from fleet_api.ttl_cache import TtlCache
from fleet_operator.places import Places
from rlfleet.errors import Forbidden, Unavailable
from rlfleet.ports import Kind

STATE = "/v1/rl/state"


def routes_of_fleets(api: Api, key: str = "no-key-of-a-fleet") -> list[tuple[str, str]]:
    return [
        (
            route.method,
            route.resource.canonical.format(namespace="rl", name="policy", key=key, pod="policy-0"),
        )
        for route in api.http.app.router.routes()
        if route.resource is not None and "{name}" in route.resource.canonical
    ]


async def test_no_route_of_a_fleet_answers_without_credentials(api):
    routes = routes_of_fleets(api)

    assert len(routes) >= 2
    for method, path in routes:
        for token in (None, "malformed token", "unknown-token"):
            status, problem = await api.send(method, f"/{path}", token)
            assert status == 401, (method, path, token)
            if method != "HEAD":
                assert problem["reason"] == "Unauthorized"


async def test_only_health_and_the_openapi_document_are_open(api):
    fleets = {path for _, path in routes_of_fleets(api)}
    others = {
        (route.method, route.resource.canonical)
        for route in api.http.app.router.routes()
        if route.resource is not None and "{name}" not in route.resource.canonical
    }

    assert fleets
    assert {path for _, path in others} == {"/livez", "/readyz", "/openapi.json"}
    assert {method for method, _ in others} <= READING_METHODS


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer  ", "Basic dXNlcjpwYXNz", "Bearer a b", "Bearer \u00e9", "token"],
)
async def test_a_malformed_header_is_401_and_never_reaches_the_api_server(api, header):
    status, problem = await api.get(STATE, None, headers={"Authorization": header})

    assert (status, problem["status"], problem["reason"]) == (401, 401, "Unauthorized")
    assert api.cluster.count(TOKEN_REVIEWS) == 0


async def test_a_refusal_is_a_problem_document_that_asks_for_a_bearer_token(api):
    async with api.http.get("/fleets/rl/policy/v1/rl/state") as reply:
        assert reply.content_type == "application/problem+json"
        assert reply.headers["WWW-Authenticate"].startswith("Bearer")
        assert set(await reply.json()) == {"type", "title", "status", "reason", "detail"}


async def test_an_account_without_the_right_cannot_learn_which_fleets_exist(api):
    here = await api.get(STATE, STRANGER)
    gone = await api.get("//fleets/rl/absent/v1/rl/state", STRANGER)

    assert (here[0], gone[0]) == (403, 403)
    assert here[1]["detail"] == gone[1]["detail"].replace("absent", "policy")
    assert api.cluster.objects.requests == []


async def test_a_right_on_the_fleet_alone_shows_its_workers_and_not_its_weights(api):
    api.cluster.rights["system:serviceaccount:rl:reader"] = {
        ("get", "inferencefleets", "rl", "policy")
    }

    assert (await api.get("/v1/rl/workers"))[0] == 200
    status, problem = await api.get(STATE)
    assert (status, problem["reason"]) == (403, "Forbidden")
    assert "get weightversions 'policy' in namespace 'rl'" in problem["detail"]


async def test_decisions_of_the_api_server_are_cached_for_seconds(api):
    for _ in range(3):
        assert (await api.get(STATE))[0] == 200

    assert (api.cluster.count(TOKEN_REVIEWS), api.cluster.count(ACCESS_REVIEWS)) == (1, 2)


async def test_a_review_names_the_whole_account(api):
    await api.get("/v1/rl/workers", TRAINER)
    ((_, _, review),) = [c for c in api.cluster.calls if c[1] == ACCESS_REVIEWS]
    user = api.cluster.users[TRAINER]

    assert review is not None
    assert review["spec"] == {
        "user": user["username"],
        "uid": user["uid"],
        "groups": user["groups"],
        "extra": user["extra"],
        "resourceAttributes": {
            "group": "rlfleet.dev",
            "version": "v1alpha1",
            "resource": "inferencefleets",
            "namespace": "rl",
            "name": "policy",
            "verb": "get",
        },
    }


async def test_two_accounts_of_one_name_are_two_accounts(api):
    await api.get("/v1/rl/workers", TRAINER)
    user = api.cluster.users[TRAINER]
    api.cluster.users["another"] = user | {"extra": {"scopes": ["none"]}}
    await api.get("/v1/rl/workers", "another")

    assert api.cluster.count(ACCESS_REVIEWS) == 2


def authenticator(
    cluster: FakeCluster,
    now: Sequence[float] = (0.0,),
    *,
    places: Places | None = None,
    **options: Any,
) -> Authenticator:
    """Without static keys; `now` has its time."""
    reviews = places or Places(MAX_REVIEWS_AT_ONCE)
    return Authenticator(cluster, StaticKeys(None), reviews, monotonic=lambda: now[0], **options)


async def test_a_revoked_token_works_no_longer_than_its_review_is_cached():
    now, cluster = [0.0], FakeCluster()
    known = authenticator(cluster, now)
    header = f"Bearer {READER}"
    await known.caller(header, "rl", "policy")
    del cluster.users[READER]
    now[0] = ACCEPTED_SECONDS - 0.1
    await known.caller(header, "rl", "policy")

    now[0] = ACCEPTED_SECONDS
    with pytest.raises(Problem) as refused:
        await known.caller(header, "rl", "policy")
    assert refused.value.status == 401


async def test_unknown_tokens_do_not_push_out_the_reviews_of_good_ones():
    cluster = FakeCluster()
    made = authenticator(cluster)
    await made.caller(f"Bearer {READER}", "rl", "policy")
    for number in range(MAX_REVIEWS + 1):
        with pytest.raises(Problem) as refused:
            await made.caller(f"Bearer unknown-{number}", "rl", "policy", f"address-{number}")
        assert refused.value.status == 401
    reviews = cluster.count(TOKEN_REVIEWS)

    await made.caller(f"Bearer {READER}", "rl", "policy")

    assert cluster.count(TOKEN_REVIEWS) == reviews


class SlowCluster(FakeCluster):
    """Answers when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = asyncio.Event()
        self.at_once = 0
        self.most_at_once = 0

    async def settle(self) -> None:
        """Let all requests come that may."""
        for _ in range(10):
            await asyncio.sleep(0)

    async def call(self, *arguments: Any, **options: Any) -> Any:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await self.go_on.wait()
        self.at_once -= 1
        return await super().call(*arguments, **options)


async def test_requests_with_one_token_at_the_same_time_are_one_review_also_if_the_first_leaves():
    cluster = SlowCluster()
    known = authenticator(cluster)
    rights = Authorizer(cluster, Places(1), monotonic=lambda: 0.0)
    first, *others = [
        asyncio.create_task(known.caller(f"Bearer {READER}", "rl", "policy")) for _ in range(80)
    ]
    await asyncio.sleep(0)
    first.cancel()
    cluster.go_on.set()
    callers = await asyncio.gather(*others)
    right = Right("get", Kind.FLEETS, "rl", "policy")
    await asyncio.gather(*(rights.require(one, right, ("rl", "policy")) for one in callers))

    assert first.cancelled()
    assert (cluster.count(TOKEN_REVIEWS), cluster.count(ACCESS_REVIEWS)) == (1, 1)


async def test_unknown_tokens_of_an_address_reach_the_api_server_at_a_bounded_rate():
    now, cluster = [0.0], SlowCluster()
    known = authenticator(cluster, now, unknown_per_second=5)
    junk = [
        asyncio.create_task(known.caller(f"Bearer junk-{number}", "rl", "policy", "10.0.0.1"))
        for number in range(500)
    ]
    await asyncio.sleep(0)
    cluster.go_on.set()
    answers = await asyncio.gather(*junk, return_exceptions=True)
    statuses = [answer.status for answer in answers if isinstance(answer, Problem)]

    assert (len(statuses), set(statuses)) == (500, {401, 429})
    assert cluster.count(TOKEN_REVIEWS) == statuses.count(401) <= MAX_REVIEWS_AT_ONCE + 10
    assert cluster.most_at_once <= MAX_REVIEWS_AT_ONCE
    assert await known.caller(f"Bearer {READER}", "rl", "policy", "10.0.0.2")
    with pytest.raises(Problem) as refused:
        await known.caller(f"Bearer {TRAINER}", "rl", "policy", "10.0.0.1")
    assert refused.value.headers == {"Retry-After": "1"}
    now[0] = 1.0
    assert await known.caller(f"Bearer {TRAINER}", "rl", "policy", "10.0.0.1")


async def test_unknown_tokens_do_not_lock_out_a_good_one_behind_the_same_proxy():
    now, cluster = [0.0], FakeCluster()
    known = authenticator(cluster, now)
    await known.caller(f"Bearer {READER}", "rl", "policy", "proxy")
    statuses = set()
    for number in range(500):
        now[0] += 0.05
        with pytest.raises(Problem) as refused:
            await known.caller(f"Bearer junk-{number}", "rl", "policy", "proxy")
        statuses.add(refused.value.status)
        # Its review has ended after 20 s, and is made once more.
        await known.caller(f"Bearer {READER}", "rl", "policy", "proxy")

    assert (now[0] > ACCEPTED_SECONDS, statuses) == (True, {401, 429})


async def test_unknown_tokens_behind_a_proxy_use_up_no_rate_of_a_tenant_that_they_do_not_name():
    cluster = FakeCluster()
    known = authenticator(cluster)
    for number in range(2):
        cluster.users[token_of("rl", number)] = {"username": f"system:serviceaccount:rl:a-{number}"}
    await known.caller(f"Bearer {token_of('rl', 0)}", "rl", "policy", "proxy")

    async def flood(address: str, *tenants: str) -> int:
        before = cluster.count(TOKEN_REVIEWS)
        for tenant in tenants:
            token = f"{token_of(tenant, 9)}-{address}"
            with pytest.raises(Problem) as refused:
                await known.caller(f"Bearer {token}", "rl", "policy", address)
        assert refused.value.status == 429
        return cluster.count(TOKEN_REVIEWS) - before

    strangers = [f"x-{number}" for number in range(50)]
    elsewhere = await flood("another", *strangers)
    await flood("proxy", *strangers)
    # A tenant that is known from one address has no rate of its own at another one.
    assert await flood("a-third", "rl", *strangers) == elsewhere
    assert await known.caller(f"Bearer {token_of('rl', 1)}", "rl", "policy", "proxy")


async def test_a_token_that_is_refused_again_does_not_count_again_for_its_address():
    now, cluster = [0.0], FakeCluster()
    known = authenticator(cluster, now)
    for again in range(2):
        now[0] += REFUSED_AGAIN_SECONDS
        for number in range(200):
            now[0] += 0 if again else 1
            with pytest.raises(Problem) as refused:
                await known.caller(f"Bearer expired-{number}", "rl", "policy", "proxy")
            assert refused.value.status == 401

    assert cluster.count(TOKEN_REVIEWS) > 200
    assert await known.caller(f"Bearer {TRAINER}", "rl", "policy", "proxy")


async def test_good_tokens_of_one_address_are_not_limited():
    cluster = FakeCluster()
    known = authenticator(cluster, unknown_per_second=1)
    for number in range(100):
        cluster.users[f"token-{number}"] = cluster.users[READER]
        await known.caller(f"Bearer token-{number}", "rl", "policy", "10.0.0.1")


async def test_a_token_for_another_audience_is_refused():
    class Elsewhere(FakeCluster):
        async def call(self, *arguments, **options):
            answer = await super().call(*arguments, **options)
            return {"status": answer["status"] | {"audiences": ["another-service"]}}

    known = Authenticator(
        Elsewhere(), StaticKeys(None), Places(1), monotonic=lambda: 0, audiences=("rlfleet-api",)
    )

    with pytest.raises(Problem, match="not for the audience rlfleet-api"):
        await known.caller(f"Bearer {READER}", "rl", "policy")


async def test_reviews_of_one_namespaces_accounts_leave_places_for_another_tenant():
    cluster, places = SlowCluster(), Places(MAX_REVIEWS_AT_ONCE)
    rights = Authorizer(cluster, places, monotonic=lambda: 0.0)

    def ask(namespace: str, number: int) -> asyncio.Task[None]:
        name = f"system:serviceaccount:{namespace}:account-{number}"
        # The path names the other tenant's fleet: whose reviews these are is not for the caller to choose.
        right = Right("get", Kind.FLEETS, "rl", f"fleet-{number}")
        caller = Caller(name=name, credential=name)
        return asyncio.create_task(rights.require(caller, right, ("rl", right.name)))

    flood = [ask("other", number) for number in range(500)]
    await cluster.settle()
    of_the_flood = cluster.at_once
    own = ask("rl", 0)
    await cluster.settle()

    assert of_the_flood < MAX_REVIEWS_AT_ONCE
    assert cluster.at_once == of_the_flood + 1
    cluster.go_on.set()
    await asyncio.gather(*flood, own, return_exceptions=True)


async def test_reviews_of_new_tokens_from_one_address_leave_places_for_known_ones_behind_it():
    now, cluster = [0.0], SlowCluster()
    places = Places(MAX_REVIEWS_AT_ONCE)
    known = authenticator(cluster, now, places=places)
    cluster.go_on.set()
    await known.caller(f"Bearer {READER}", "rl", "policy", "proxy")
    cluster.go_on.clear()
    now[0] = ACCEPTED_SECONDS
    flood = [
        asyncio.create_task(known.caller(f"Bearer junk-{number}", "rl", "policy", "proxy"))
        for number in range(500)
    ]
    await cluster.settle()
    of_the_flood = cluster.at_once
    own = asyncio.create_task(known.caller(f"Bearer {READER}", "rl", "policy", "proxy"))
    await cluster.settle()

    assert of_the_flood < MAX_REVIEWS_AT_ONCE
    assert cluster.at_once == of_the_flood + 1
    cluster.go_on.set()
    await asyncio.gather(*flood, own, return_exceptions=True)


@pytest.mark.parametrize("named", ["mallory", None])
async def test_a_new_token_waits_for_no_flood_behind_the_same_proxy_that_names_another_tenant(
    named,
):
    cluster = SlowCluster()
    reviews = authenticator(cluster)

    def sent(token: str) -> asyncio.Task[object]:
        return asyncio.create_task(reviews.caller(f"Bearer {token}", "rl", "policy", "proxy"))

    flood = [sent(token_of(named, n) if named else f"junk-{n}") for n in range(500)]
    await cluster.settle()
    own = sent(token_of("rl"))
    await cluster.settle()
    cluster.go_on.set()
    await asyncio.wait([own])

    assert sum(task.done() for task in flood) <= 2 * MAX_REVIEWS_AT_ONCE
    await asyncio.gather(*flood, own, return_exceptions=True)


async def test_a_name_that_was_not_checked_gives_no_share_of_its_own():
    cluster = FakeCluster()
    known = authenticator(cluster)
    first, second = token_of("rl", 0), token_of("rl", 1)
    cluster.users[first] = {"username": "system:serviceaccount:rl:a-0"}
    await known.caller(f"Bearer {first}", "rl", "policy", "proxy")
    unnamed = known.sender("junk", "proxy")

    assert known.sender(first, "proxy") == "system:serviceaccount:rl"
    assert known.sender(second, "proxy") != unnamed
    assert {known.sender(token_of(f"made-up-{n}"), "proxy") for n in range(9)} == {unnamed}
    # A tenant that is known from one address has no share of its own at another one.
    assert known.sender(second, "another") == known.sender("junk", "another") != unnamed


@pytest.mark.parametrize("payload", ["", "W10", "eyJzdWIiOjF9", "_w", "A", "W1tb" * 1800, "e30"])
def test_a_token_that_names_no_tenant_is_reviewed_without_a_name(payload):
    assert named_tenant(f"e30.{payload}.c2ln") == ""


# --- static keys ----------------------------------------------------------------------------------


async def test_a_static_key_permits_its_fleet_without_a_review(api):
    (api.keys / "rl.policy").write_text(f"{STATIC_KEY}\n")

    assert (await api.get(STATE, STATIC_KEY))[0] == 200
    assert (api.cluster.count(TOKEN_REVIEWS), api.cluster.count(ACCESS_REVIEWS)) == (0, 0)


async def test_a_static_key_of_another_fleet_is_401(api):
    (api.keys / "rl.other").write_text(STATIC_KEY)
    (api.keys / "other.policy").write_text(STATIC_KEY)

    assert (await api.get(STATE, STATIC_KEY))[0] == 401


async def test_keys_of_two_fleets_with_the_same_bytes_have_two_rates(api):
    for name in ("rl.policy", "other.policy"):
        (api.keys / name).write_text(STATIC_KEY)
    keys = Authenticator(api.cluster, StaticKeys(api.keys), Places(1), monotonic=lambda: 0.0)

    holders = [keys.holder(STATIC_KEY, namespace, "policy") for namespace in ("rl", "other")]
    assert len({holder.credential for holder in holders}) == 2
    assert len({holder.tenant for holder in holders}) == 2


@pytest.mark.parametrize("content", ["", "\n\n", "short", " \n short \n"])
async def test_a_file_without_a_long_key_permits_nothing(api, content):
    (api.keys / "rl.policy").write_text(content)

    for token in ("short", "x"):
        assert (await api.get(STATE, token))[0] == 401


async def test_a_static_key_may_be_in_the_path_for_clients_that_send_no_headers(api):
    (api.keys / "rl.policy").write_text(f"{STATIC_KEY}\n")
    (api.keys / "rl.other").write_text("a-static-key-of-another\n")

    for key, status in (
        (STATIC_KEY, 200),
        (STATIC_KEY.replace("-", "%2D"), 200),
        ("a-static-key-of-another", 401),
        (STATIC_KEY[:-1], 401),
        (READER, 401),
    ):
        where = f"//t/{key}/fleets/rl/policy"
        assert (await api.get(f"{where}{STATE}", None))[0] == status
        answered, problem = await api.get(f"{where}{STATE}", READER)
        assert (answered == 200) == (status == 200), "a header does not repair a path"
        assert status == 200 or key not in json.dumps(problem)
    assert api.cluster.count(TOKEN_REVIEWS) == 0


async def test_a_key_in_the_path_changes_its_fleet_and_is_in_no_audit_line(api, caplog):
    caplog.set_level(logging.INFO)
    (api.keys / "rl.policy").write_text(STATIC_KEY)
    where = f"//t/{STATIC_KEY}/fleets/rl/policy/update_weights"
    body = {"weight_dir": "/weights/step_43"}

    assert (await api.send("POST", where, None, json=body))[0] == 200
    (line,) = [one for one in caplog.records if getattr(one, "event", "") == "audit"]
    assert "/t/{key}/fleets/{namespace}/{name}/update_weights" in line.getMessage()
    assert STATIC_KEY not in json.dumps(line.__dict__, default=str)


def test_the_name_of_a_fleet_is_never_a_path(tmp_path):
    (tmp_path / "secret").write_text(STATIC_KEY)

    assert not StaticKeys(tmp_path / "keys").allow(STATIC_KEY, "..", "/secret")


@pytest.mark.parametrize("name", ["..", "%2e%2e", "Policy", "a" * 64, "a%2Fb", "a.b"])
async def test_a_name_that_cannot_be_one_is_404(api, name):
    status, problem = await api.get(f"//fleets/rl/{name}/v1/rl/state")

    assert (status, problem["reason"]) == (404, "NotFound")
    assert api.cluster.calls == []


# --- failures and limits --------------------------------------------------------------------------


async def test_an_api_server_that_does_not_answer_is_503_and_says_when_to_return(api):
    def fail(path: str) -> None:
        raise Unavailable("no answer", retry_after_seconds=7)

    api.cluster.fail = fail
    async with api.http.get(
        "/fleets/rl/policy/v1/rl/state", headers={"Authorization": f"Bearer {READER}"}
    ) as reply:
        assert (reply.status, reply.headers["Retry-After"]) == (503, "7")


async def test_a_missing_right_of_the_api_itself_is_not_the_callers_fault(api):
    def fail(path: str) -> None:
        raise Forbidden("tokenreviews is forbidden")

    api.cluster.fail = fail
    status, problem = await api.get(STATE)

    assert (status, problem["reason"]) == (500, "AccountForbidden")


async def test_an_internal_error_reveals_no_details(api, caplog):
    def fail(path: str) -> None:
        raise ZeroDivisionError("an inner detail")

    api.cluster.fail = fail
    status, problem = await api.get(STATE)

    assert (status, problem["reason"]) == (500, "InternalError")
    assert "inner" not in json.dumps(problem)
    assert "an inner detail" in caplog.text


async def test_an_unknown_path_and_an_unknown_method_are_problems(api):
    assert (await api.get("/v1/rl/nothing"))[0] == 404
    status, problem = await api.send("DELETE", STATE)
    assert (status, problem["reason"]) == (405, "MethodNotAllowed")


def test_a_client_that_sends_too_fast_is_refused_until_it_has_waited():
    now = [0.0]
    rate = Rate(2, lambda: now[0])
    for _ in range(4):
        rate.take("one")
    with pytest.raises(Problem) as refused:
        rate.take("one")
    assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "1"})
    rate.take("another")

    now[0] = 0.6
    rate.take("one")
    with pytest.raises(Problem):
        rate.take("one")


def test_the_number_of_clients_whose_rate_is_known_is_bounded():
    rate = Rate(2, lambda: 0.0)
    for number in range(MAX_CLIENTS + 100):
        rate.take(f"invented-{number}")

    assert len(rate._left) == MAX_CLIENTS


class TestBehindOneProxy:
    """All clients have one address."""

    @pytest.fixture
    def flags(self) -> list[str]:
        return ["--requests-per-second=5", "--proxied-requests-per-second=5"]

    @pytest.mark.parametrize("refused", ["expired-token", None, "malformed token"])
    @pytest.mark.parametrize("path", [STATE, "/v1/models"])
    async def test_a_client_whose_credentials_are_refused_uses_up_its_own_requests_only(
        self, api, refused, path
    ):
        statuses = [(await api.get(path, refused))[0] for _ in range(40)]

        assert set(statuses) == {401, 429}
        assert api.cluster.count(TOKEN_REVIEWS) <= 1
        assert (await api.get(STATE, READER))[0] == 200
        assert (await api.get(STATE, "another-unknown-token"))[0] == 401
        assert (await api.get(STATE, TRAINER))[0] == 200

    async def test_a_caller_that_sends_too_fast_does_not_slow_the_others(self, api):
        (api.keys / "rl.policy").write_text(f"{STATIC_KEY}\nanother-key-of-policy\n")
        for fast, slow in ((READER, TRAINER), (STATIC_KEY, "another-key-of-policy")):
            statuses = [(await api.get(STATE, fast))[0] for _ in range(40)]
            assert set(statuses) == {200, 429}
            assert (await api.get(STATE, slow))[0] == 200

    async def test_the_open_document_and_unknown_paths_use_up_no_requests_of_callers(self, api):
        for path in ("//openapi.json", "//nothing"):
            statuses = {(await api.get(path, READER))[0] for _ in range(40)}
            assert 429 in statuses
        assert (await api.get(STATE, READER))[0] == 200

    async def test_many_clients_with_expired_tokens_do_not_stop_new_ones(self):
        now, cluster = [0.0], FakeCluster()
        known = authenticator(cluster, now)
        for second in range(120):
            now[0] = float(second)
            for number in range(100):
                with pytest.raises(Problem):
                    await known.caller(f"Bearer expired-{number}", "rl", "policy", "proxy")
        reviews = cluster.count(TOKEN_REVIEWS)

        assert await known.caller(f"Bearer {TRAINER}", "rl", "policy", "proxy")
        assert reviews < 100 * (2 + 120 / REFUSED_AGAIN_SECONDS)

    async def test_a_token_that_worked_is_reviewed_again_soon_after_a_refusal(self):
        now, cluster = [0.0], FakeCluster()
        known = authenticator(cluster, now)
        await known.caller(f"Bearer {READER}", "rl", "policy", "proxy")
        user = cluster.users.pop(READER)
        for _ in range(3):  # the API server's authenticator fails for a while
            now[0] += ACCEPTED_SECONDS
            with pytest.raises(Problem):
                await known.caller(f"Bearer {READER}", "rl", "policy", "proxy")
        cluster.users[READER] = user
        now[0] += REFUSED_SECONDS

        assert await known.caller(f"Bearer {READER}", "rl", "policy", "proxy")


def test_no_more_requests_run_than_there_are_slots():
    slots = Slots(1)

    with slots.slot():
        with pytest.raises(Problem) as refused, slots.slot():
            pass
        assert refused.value.status == 503
    with slots.slot():
        pass


def test_a_cache_forgets_what_is_old_and_what_there_is_no_room_for():
    now = [0.0]
    cache: TtlCache[str, str] = TtlCache(2, lambda: now[0])
    for key in "abc":
        cache.put(key, key, 5)
    assert [cache.get(key) for key in "abc"] == [None, "b", "c"]

    now[0] = 5
    assert [cache.get(key) for key in "bc"] == [None, None]
    assert len(cache) == 0


async def test_health_needs_no_token_and_a_stopping_replica_is_not_ready(api, lifecycle):
    assert await api.get("//livez", None) == (200, "ok\n")
    assert await api.get("//readyz", None) == (200, "ok\n")

    lifecycle.stopping.set()
    assert (await api.get("//readyz", None))[0] == 503
    assert (await api.get("//livez", None))[0] == 200


async def test_no_token_is_ever_logged(api, caplog):
    caplog.set_level(logging.DEBUG)
    (api.keys / "rl.policy").write_text(STATIC_KEY)
    wrong = "a-key-that-is-wrong"
    for token in (READER, STRANGER, "unknown-token", STATIC_KEY):
        for method, path in routes_of_fleets(api, key=STATIC_KEY if token == READER else wrong):
            await api.send(method, f"/{path}", token, data=b"x" * (MAX_BODY_BYTES + 1))

    text = caplog.text + json.dumps([record.__dict__ for record in caplog.records], default=str)
    for token in (READER, STRANGER, "unknown-token", STATIC_KEY, wrong):
        assert token not in text
