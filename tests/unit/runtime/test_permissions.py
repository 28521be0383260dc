"""Missing permissions are reported at the start, by name."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from fleet_operator.errors import Retryable, Terminal
from fleet_operator.runtime import permissions

LEASE = permissions.LeasePlace(namespace="system", name="operator")
Question = tuple[str, str, str, str, str, str]


class Judge:
    """Answers access reviews. Implements the one method of `ports.Kube` that is used."""

    def __init__(self, *denied: str, error: Exception | None = None) -> None:
        self.denied, self.error = denied, error
        self.asked: list[Question] = []

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        if self.error:
            raise self.error
        found = body["spec"]["resourceAttributes"]
        names = ("namespace", "group", "resource", "subresource", "verb", "name")
        question = tuple(found.get(name, "") for name in names)
        self.asked.append(question)
        _, _, resource, subresource, verb, _ = question
        right = f"{verb} {'/'.join(filter(None, (resource, subresource)))}"
        return {"status": {"allowed": right not in self.denied}}


async def check(judge: Judge, *namespaces: str) -> None:
    await permissions.Permissions(judge, namespaces, LEASE).check()


async def test_with_every_right_the_operator_starts():
    await check(Judge())


async def test_every_needed_verb_is_checked_in_every_namespace():
    judge = Judge()
    await check(judge, "a", "b")
    asked = {q[:5] for q in judge.asked if q[0] in {"a", "b"}}
    needed = {
        (namespace, group, *resource.partition("/")[::2], verb)
        for namespace in ("a", "b")
        for group, resource, verbs in permissions.NEEDED
        for verb in verbs
    }
    leases = ("coordination.k8s.io", "leases", "")
    needed |= {(n, *leases, verb) for n in ("a", "b") for verb in permissions.HEARTBEAT_VERBS}

    assert asked == needed


async def test_the_secrets_of_named_fleets_are_checked_by_name_and_no_other_is():
    judge = Judge("get secrets")
    with pytest.raises(Terminal, match="get secrets in a"):
        await permissions.Permissions(judge, (), LEASE, (("a", "policy"), ("b", "judge"))).check()

    assert {q for q in judge.asked if (q[2], q[4]) == ("secrets", "get")} == {
        ("a", "", "secrets", "", "get", "policy-admin-token"),
        ("b", "", "secrets", "", "get", "judge-admin-token"),
    }
    assert ("", "", "secrets", "", "create", "") in judge.asked


async def test_without_namespaces_the_rights_in_all_of_them_are_checked():
    judge = Judge()
    await check(judge)

    assert {q[0] for q in judge.asked} == {"", "system"}


async def test_the_rights_on_the_lease_are_checked_by_name_in_its_namespace():
    judge = Judge()
    await check(judge, "a")

    assert {q for q in judge.asked if q[2] == "leases"} == {
        ("a", "coordination.k8s.io", "leases", "", "get", ""),  # of releases that overlap
        ("a", "coordination.k8s.io", "leases", "", "create", "operator.system"),
        ("a", "coordination.k8s.io", "leases", "", "patch", "operator.system"),
        ("system", "coordination.k8s.io", "leases", "", "create", ""),
        ("system", "coordination.k8s.io", "leases", "", "get", "operator"),
        ("system", "coordination.k8s.io", "leases", "", "update", "operator"),
    }


@pytest.mark.parametrize(
    ("denied", "message"),
    [
        pytest.param("watch pods", "watch pods in all namespaces", id="of the core"),
        pytest.param(
            "patch weightversions/status",
            "patch weightversions/status.rlfleet.dev in all namespaces",
            id="of a subresource",
        ),
        pytest.param(
            "update leases", "update leases.coordination.k8s.io in system", id="of the Lease"
        ),
    ],
)
async def test_a_missing_verb_is_named(denied, message):
    with pytest.raises(Terminal, match=message):
        await check(Judge(denied))


async def test_all_that_is_missing_is_named_at_once():
    with pytest.raises(Terminal) as raised:
        await check(Judge("watch pods", "create secrets"), "rl")

    assert "watch pods in rl, create secrets in rl" in str(raised.value)


async def test_a_server_that_cannot_answer_now_does_not_count_as_a_missing_right():
    with pytest.raises(Retryable):
        await check(Judge(error=Retryable("429")))


async def test_permissions_that_were_answered_are_not_requested_again():
    judge = Judge()
    rights = permissions.Permissions(judge, ("rl",), LEASE)
    answer, judge.create = judge.create, _busy_at_the_third(judge)

    with pytest.raises(Retryable):
        await rights.check()
    answered = len(judge.asked)
    judge.create = answer
    await rights.check()

    assert 0 < answered < len(judge.asked)
    assert len(judge.asked) == len(set(judge.asked))


def _busy_at_the_third(judge: Judge):
    answer, calls = judge.create, itertools.count(1)

    async def create(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if next(calls) % 3 == 0:
            raise Retryable("429")
        return await answer(path, body)

    return create
