"""Comparison of an object with its desired fields; other fields do not matter."""

from __future__ import annotations

import pytest

from fleet_operator.core.manifests.differences import contains, owns_more


@pytest.mark.parametrize(
    ("actual", "wanted"),
    [
        pytest.param({"a": 1, "b": 2}, {"a": 1}, id="more keys than asked for"),
        pytest.param({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, id="more keys further down"),
        pytest.param({"a": 1}, {}, id="nothing is asked for"),
        pytest.param([{"a": 1, "b": 2}, 3], [{"a": 1}, 3], id="lists of one length, item by item"),
        pytest.param({"a": None}, {"a": None}, id="nothing, where nothing should be"),
        pytest.param(
            {"resources": {"requests": {"cpu": "1500m", "memory": "1Gi", "more": "1"}}},
            {"resources": {"requests": {"cpu": "1.5", "memory": "1024Mi"}, "limits": {}}},
            id="amounts in the notation of the API server, which stores no empty map of them",
        ),
    ],
)
def test_an_equal_object_needs_no_write(actual, wanted):
    assert contains(actual, wanted) is True


@pytest.mark.parametrize(
    ("actual", "wanted"),
    [
        pytest.param({"a": 1}, {"a": 2}, id="another value"),
        pytest.param({"a": 1}, {"b": 1}, id="a key that is missing"),
        pytest.param({}, {"a": None}, id="a missing key differs from a null value"),
        pytest.param({"a": 1}, {"a": {"b": 1}}, id="a value where a map should be"),
        pytest.param(
            {"selector": {"a": 1, "b": 2}}, {"selector": {"a": 1}}, id="a narrower selector"
        ),
        pytest.param("ab", {"a": 1}, id="a text where a map should be"),
        pytest.param([1, 2], [1], id="a longer list"),
        pytest.param([1], [1, 2], id="a shorter list"),
        pytest.param([2, 1], [1, 2], id="a list in another order"),
        pytest.param("ab", ["a", "b"], id="a text where a list should be"),
        pytest.param({"a": [{"b": 1}]}, {"a": [{"b": 2}]}, id="another value far down"),
        pytest.param({"limits": {"cpu": "1"}}, {"limits": {"cpu": "2"}}, id="another amount"),
        pytest.param({"limits": {}}, {"limits": {"cpu": "2"}}, id="an amount that is missing"),
        pytest.param({}, {"limits": {"cpu": "2"}}, id="amounts that are missing"),
    ],
)
def test_a_changed_object_needs_a_write(actual, wanted):
    assert contains(actual, wanted) is False


SERVICE = {
    "metadata": {"name": "policy", "uid": "u", "labels": {"app": "x"}, "ownerReferences": [{"uid": "f", "kind": "F"}]},
    "spec": {
        "type": "LoadBalancer",
        "selector": {"a": "1"},
        "ports": [{"name": "http", "port": 8000, "targetPort": "http"}],
        "loadBalancerSourceRanges": ["10.0.0.0/8"],
    },
}  # fmt: skip
OWNED = {
    "f:metadata": {
        "f:labels": {"f:app": {}},
        "f:ownerReferences": {'k:{"uid":"f"}': {}},
    },
    "f:spec": {
        "f:type": {},
        "f:selector": {},
        "f:loadBalancerSourceRanges": {},
        "f:ports": {
            'k:{"port":8000,"protocol":"TCP"}': {".": {}, "f:name": {}, "f:port": {}, "f:targetPort": {}}
        },
    },
}  # fmt: skip
US = "the operator"


def managed(*entries: dict) -> dict:
    given = {"manager": US, "operation": "Apply", "fieldsType": "FieldsV1"}
    return {"metadata": {"managedFields": [given | entry for entry in entries]}}


def owning(**more: dict) -> dict:
    """As `SERVICE` is owned, with more below `f:spec` or `f:metadata`."""
    fields = {key: value | more.get(key.removeprefix("f:"), {}) for key, value in OWNED.items()}
    return managed({"fieldsV1": fields})


@pytest.mark.parametrize(
    "found",
    [
        pytest.param({"metadata": {}}, id="nothing is known"),
        pytest.param({"metadata": {"managedFields": None}}, id="nothing at all"),
        pytest.param(owning(), id="what it writes"),
        pytest.param(
            managed(
                {"fieldsV1": OWNED},
                {"manager": "kubectl", "fieldsV1": {"f:metadata": {"f:annotations": {"f:x": {}}}}},
                {"operation": "Update", "fieldsV1": {"f:spec": {"f:externalIPs": {}}}},
                {"subresource": "status", "fieldsV1": {"f:status": {"f:loadBalancer": {}}}},
            ),
            id="more is of others, of another way to write, or of a status",
        ),
        pytest.param(managed({}), id="without fields"),
        pytest.param(
            owning(spec={"f:loadBalancerSourceRanges": {'v:"10.0.0.0/8"': {}}}), id="an item of a set"
        ),
        pytest.param(
            owning(spec={"f:ports": {"i:0": {"f:port": {}}}}), id="an item by its place"
        ),
    ],
)  # fmt: skip
def test_the_operator_owns_the_fields_that_it_writes(found):
    assert owns_more(found, SERVICE, manager=US) is False


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(owning(metadata={"f:annotations": {"f:dns": {}}}), id="a map"),
        pytest.param(owning(metadata={"f:labels": {"f:app": {}, "f:team": {}}}), id="a key of a map"),
        pytest.param(owning(spec={"f:sessionAffinity": {}}), id="a field"),
        pytest.param(
            owning(spec={"f:ports": {'k:{"port":9000,"protocol":"TCP"}': {".": {}}}}),
            id="an item of a list of maps",
        ),
        pytest.param(
            owning(spec={"f:ports": {'k:{"port":8000,"protocol":"TCP"}': {"f:nodePort": {}}}}),
            id="a field of an item",
        ),
        pytest.param(owning(spec={"f:loadBalancerSourceRanges": {'v:"11.0.0.0/8"': {}}}), id="an item of a set"),
    ],
)  # fmt: skip
def test_the_operator_owns_fields_that_it_wrote_before(found):
    assert owns_more(found, SERVICE, manager=US) is True
