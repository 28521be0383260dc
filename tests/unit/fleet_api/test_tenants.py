"""Requests to the fleets of one namespace cost the fleets of another one nothing."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from typing import Any

import pytest
from tests.support.fake_cluster import (
    ACCESS_REVIEWS,
    READER,
    STRANGER,
    TOKEN_REVIEWS,
    TRAINER,
    token_of,
)
from tests.support.waiting import soon
from tests.unit.fleet_api.conftest import STATIC_KEY, Api

import fleet_api.app
from fleet_api.limits import Slots
from fleet_api.problems import Problem
from fleet_api.whole_body import LEAST_BYTES

EVES = ("eve-0", "eve-1")
STATE, WEIGHTS, EVENTS = "/v1/rl/state", "/v1/rl/weights", "/v1/rl/events"
PUBLICATION = {"version": "43", "wait": False}


@pytest.fixture
def eves(api: Api) -> str:
    """The address of the other tenant's fleet. Two accounts have all rights on it."""
    api.cluster.add_tenant("mallory", *EVES)
    return "//fleets/mallory/policy"


# --- shares ---------------------------------------------------------------------------------------


def taken(slots: Slots, tenants: list[str], held: ExitStack) -> dict[str, int]:
    """How many slots each tenant gets, in turns, until none gets another one."""
    counts = dict.fromkeys(tenants, 0)
    wanting = set(tenants)
    for tenant in itertools.cycle(tenants):
        if tenant in wanting:
            slot = slots.open(tenant)
            held.callback(slot.release)
            if slot.add(1):
                counts[tenant] += 1
            else:
                wanting.remove(tenant)
        if not wanting:
            return counts
    raise AssertionError


@pytest.mark.parametrize("number", [1, 2, 3, 10])
def test_tenants_that_want_everything_get_equal_shares_and_leave_as_much_for_the_next_one(number):
    limit = 660
    slots = Slots(limit)
    with ExitStack() as held:
        greedy = taken(slots, [f"eve-{n}" for n in range(number)], held)
        share = limit // (number + 1)
        assert all(abs(count - share) <= 1 for count in greedy.values())
        assert abs(taken(slots, ["victim"], held)["victim"] - share // 2) <= 1


def test_slots_that_are_free_again_go_to_each_tenant_up_to_its_share():
    numbers: list[int] = []
    slots = Slots(4, numbers.append)
    with slots.slot("first"), slots.slot("first") as slot:
        with pytest.raises(Problem) as refused, slots.slot("first"):
            pass
        assert (refused.value.status, refused.value.reason) == (503, "NamespaceOverloaded")
        slot.release()
        slot.release()
        with slots.slot("first"):
            pass
    assert (numbers[-1], max(numbers)) == (0, 2)


def test_the_only_slot_is_one_for_any_tenant():
    slots = Slots(1)
    with slots.slot("first"):
        with pytest.raises(Problem) as refused, slots.slot("second"):
            pass
        assert refused.value.reason == "Overloaded"
    with slots.slot("second"):
        pass


# --- bodies ---------------------------------------------------------------------------------------


@asynccontextmanager
async def slow_bodies(
    api: Api, number: int, token: str, fleet: str = "/fleets/mallory/policy", method: str = "PUT"
) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Requests of whose body one byte comes."""
    server = api.http.server
    readers = []
    async with AsyncExitStack() as stack:
        for _ in range(number):
            reader, writer = await asyncio.open_connection(server.host, server.port)
            stack.callback(writer.close)
            head = f"{method} {fleet}{WEIGHTS} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}"
            writer.write(f"{head}\r\nContent-Length: 10\r\n\r\n{{".encode())
            readers.append(reader)
        yield readers


async def status_of(reader: asyncio.StreamReader) -> int:
    return int((await asyncio.wait_for(reader.readline(), 10)).split()[1])


@pytest.mark.parametrize("flags", [["--concurrent-requests=2"]])
@pytest.mark.parametrize("sender", ["eve-0", TRAINER])
async def test_bodies_that_do_not_come_hold_no_place_of_a_request(api, eves, sender):
    fleet = "/fleets/rl/policy" if sender == TRAINER else "/fleets/mallory/policy"
    async with slow_bodies(api, 40, sender, fleet):
        await soon(lambda: api.cluster.count(ACCESS_REVIEWS) >= 2)
        assert (await api.get(STATE))[0] == 200
        assert (await api.send("PUT", WEIGHTS, TRAINER, json=PUBLICATION))[0] == 202
    del eves


@pytest.mark.parametrize("flags", [[f"--body-bytes={4 * LEAST_BYTES}"]])
async def test_bodies_that_do_not_come_hold_the_share_of_their_namespace(api, eves, monkeypatch):
    async with slow_bodies(api, 2, EVES[0]) as readers:
        refused = {"version": "43", "wait": False}
        await soon_refused(api, eves, refused)
        monkeypatch.setattr(fleet_api.app, "REFUSED_SECONDS", 0.1)
        began = time.monotonic()
        await soon_refused(api, eves, refused)
        assert time.monotonic() - began >= 0.1, "it would come again at once"
        monkeypatch.setattr(fleet_api.app, "REFUSED_SECONDS", 0.0)
        assert (await api.send("PUT", WEIGHTS, TRAINER, json=PUBLICATION))[0] == 202
        assert not any(reader.at_eof() for reader in readers)
    async with asyncio.timeout(10):
        while (await api.send("PUT", f"{eves}{WEIGHTS}", EVES[1], json=refused))[0] != 202:
            pass  # the memory is free when the server has noticed that the clients left


async def soon_refused(api: Api, eves: str, body: Any) -> None:
    """Wait until a further body of the other namespace is refused."""
    async with asyncio.timeout(10):
        while True:
            status, problem = await api.send("PUT", f"{eves}{WEIGHTS}", EVES[1], json=body)
            if status == 503:
                break
    assert problem["reason"] == "NamespaceOverloaded"
    assert "--body-bytes" in problem["detail"]


async def test_a_body_that_says_it_is_too_long_is_413_before_it_comes(api):
    server = api.http.server
    reader, writer = await asyncio.open_connection(server.host, server.port)
    head = f"PUT /fleets/rl/policy{WEIGHTS} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TRAINER}"
    writer.write(f"{head}\r\nContent-Length: 70000\r\n\r\n".encode())

    assert await status_of(reader) == 413
    writer.close()


# --- streams, rates and requests without a right --------------------------------------------------


@pytest.mark.parametrize("flags", [["--event-streams=8"]])
async def test_two_accounts_of_one_namespace_leave_streams_to_another_namespace(api, eves):
    async def watch(*_: Any) -> Any:
        await asyncio.Event().wait()
        yield None

    for objects in (api.cluster.objects, api.cluster.tenants["mallory"]):
        objects.watch = watch
    statuses = []
    url = eves[1:] + EVENTS
    async with AsyncExitStack() as held:
        for n in range(8):
            headers = {"Authorization": f"Bearer {EVES[n % 2]}"}
            reply = await held.enter_async_context(api.http.get(url, headers=headers))
            statuses.append(reply.status)
        assert statuses == [200] * 4 + [503] * 4
        ours = {"Authorization": f"Bearer {READER}"}
        async with api.http.get(f"/fleets/rl/policy{EVENTS}", headers=ours) as reply:
            assert reply.status == 200


@pytest.mark.parametrize("flags", [["--requests-per-second=0.1"]])
async def test_a_client_that_never_waits_is_refused_a_few_times_in_a_second(api, eves, monkeypatch):
    monkeypatch.setattr(fleet_api.app, "REFUSED_SECONDS", 0.1)
    assert (await api.get(eves + STATE, EVES[0]))[0] == 200
    began = time.monotonic()
    refused = [(await api.get(eves + STATE, EVES[0]))[0] for _ in range(3)]

    assert refused == [429] * 3
    refused = [(await api.get(STATE, token))[0] for token in (STRANGER, "unknown-token")]
    assert refused == [403, 401]
    assert time.monotonic() - began >= 0.5


@pytest.mark.parametrize(("path", "status"), [(STATE, 401), ("//livez", 200)])
async def test_answers_to_many_connections_of_strangers_take_turns(api, monkeypatch, path, status):
    """Two thousand connections whose requests follow each other at once would keep the loop busy."""
    monkeypatch.setattr(fleet_api.app, "STRANGERS_PER_SECOND", 20.0)
    began = time.monotonic()
    flood = [asyncio.create_task(api.get(path, "unknown-token")) for _ in range(30)]
    await soon(lambda: any(each.done() for each in flood))

    assert (await api.get(STATE))[0] == 200
    assert (await api.get(STATE, STRANGER))[0] == 403, "of another caller"
    assert sum(each.done() for each in flood) < 10
    assert {(await each)[0] for each in flood} == {status}
    assert time.monotonic() - began > 1.5


@pytest.mark.parametrize("flags", [["--requests-per-second=0.1"]])
async def test_many_credentials_of_one_namespace_have_one_rate(api):
    tokens = [f"eve-{n}" for n in range(20)]
    api.cluster.add_tenant("mallory", *tokens)
    replies = [await api.get(f"//fleets/mallory/policy{STATE}", token) for token in tokens]
    refused = [problem["detail"] for status, problem in replies if status == 429]

    assert replies[0][0] == 200
    assert refused
    assert all("namespace" in detail for detail in refused)
    assert (await api.get(STATE))[0] == 200


@pytest.mark.parametrize("flags", [["--concurrent-requests=1", "--event-streams=1"]])
async def test_a_request_without_the_right_takes_nothing_from_the_namespace(api):
    hangs, call = asyncio.Event(), api.cluster.call
    asked = 0

    async def slow(method: str, path: str, *rest: Any, **options: Any) -> Any:
        nonlocal asked
        if path == ACCESS_REVIEWS and "other" in options["body"]["spec"]["user"]:
            asked += 1
            await hangs.wait()
        return await call(method, path, *rest, **options)

    api.cluster.call = slow
    strangers = [asyncio.ensure_future(api.get(STATE, STRANGER)) for _ in range(5)]
    try:
        await soon(lambda: asked)
        assert (await api.get(STATE))[0] == 200
    finally:
        hangs.set()
    assert {(await one)[0] for one in strangers} == {403}


@pytest.mark.parametrize(
    "flags", [["--concurrent-requests=2", "--concurrent-proxied-requests=8"]], ids=["10 places"]
)
@pytest.mark.parametrize("reviews", [ACCESS_REVIEWS, TOKEN_REVIEWS])
async def test_requests_of_a_tenant_that_wait_for_reviews_leave_places_to_another(
    api, eves, reviews
):
    """An account has rights to review without an end, one for each name of a fleet, and a namespace has tokens."""
    hangs, call = asyncio.Event(), api.cluster.call

    async def slow(method: str, path: str, *rest: Any, **options: Any) -> Any:
        if path == reviews and "eve" in str(options["body"]):
            await hangs.wait()
        return await call(method, path, *rest, **options)

    assert [(await api.get(STATE, token))[0] for token in (READER, TRAINER)] == [200, 200]
    api.cluster.call = slow
    url = eves.replace("/policy", "/no-{}") + STATE
    flood = [asyncio.ensure_future(api.get(url.format(n), EVES[n % 2])) for n in range(20)]
    try:
        await soon(lambda: any(one.done() for one in flood))
        assert (await api.get(STATE))[0] == 200
        assert (await api.send("PUT", WEIGHTS, TRAINER, json=PUBLICATION))[0] == 202
    finally:
        hangs.set()
        statuses = Counter([(await one)[0] for one in flood])
    assert statuses.keys() == {403, 503}


@pytest.mark.parametrize("flags", [["--concurrent-requests=2", "--concurrent-proxied-requests=8"]])
async def test_tokens_that_each_name_another_tenant_leave_places_to_one_that_was_accepted(api):
    hangs, call = asyncio.Event(), api.cluster.call

    async def slow(method: str, path: str, *rest: Any, **options: Any) -> Any:
        if path == TOKEN_REVIEWS:
            await hangs.wait()
        return await call(method, path, *rest, **options)

    assert [(await api.get(STATE, token))[0] for token in (READER, TRAINER)] == [200, 200]
    api.cluster.call = slow
    flood = [asyncio.ensure_future(api.get(STATE, token_of(f"made-up-{n}"))) for n in range(20)]
    try:
        await soon(lambda: any(one.done() for one in flood))
        assert (await api.get(STATE))[0] == 200
        assert (await api.send("PUT", WEIGHTS, TRAINER, json=PUBLICATION))[0] == 202
    finally:
        hangs.set()
        statuses = Counter([(await one)[0] for one in flood])
    assert statuses.keys() == {401, 503}


@pytest.mark.parametrize("flags", [["--concurrent-requests=2", "--concurrent-proxied-requests=8"]])
async def test_a_static_key_shares_no_place_with_strangers_of_its_address(api):
    hangs, call = asyncio.Event(), api.cluster.call

    async def slow(method: str, path: str, *rest: Any, **options: Any) -> Any:
        if path == TOKEN_REVIEWS:
            await hangs.wait()
        return await call(method, path, *rest, **options)

    (api.keys / "rl.policy").write_text(STATIC_KEY)
    api.cluster.call = slow
    flood = [asyncio.ensure_future(api.get(STATE, f"junk-{n}")) for n in range(20)]
    try:
        await soon(lambda: any(one.done() for one in flood))
        own = [await api.get(STATE, STATIC_KEY)]
        own.append(await api.get(f"//t/{STATIC_KEY}/fleets/rl/policy{STATE}", None))
        assert [status for status, _ in own] == [200, 200]
    finally:
        hangs.set()
        await asyncio.gather(*flood)
