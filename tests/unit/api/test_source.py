"""Where weights come from, and the placeholder that lets a trainer patch one field."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from fleet_operator.api.source import WeightSource, from_protocol

PATH = WeightSource.model_validate({"path": "/weights/step_{version}"})
REPOSITORY = WeightSource.model_validate(
    {"huggingFace": {"repo": "lab/policy", "revision": "step-{version}"}}
)


@pytest.mark.parametrize(
    ("source", "filled"),
    [
        pytest.param(PATH, "/weights/step_42", id="in a path"),
        pytest.param(REPOSITORY, "hf://lab/policy@step-42", id="in a revision"),
        pytest.param(
            WeightSource(path="/w/{version}/{version}"), "/w/42/42", id="wherever it stands"
        ),
        pytest.param(WeightSource(path="/weights/fixed"), "/weights/fixed", id="or nowhere"),
    ],
)
def test_the_placeholder_is_replaced(source, filled):
    assert str(source.resolve("42")) == filled


def test_only_the_revision_of_a_repository_is_replaced():
    source = WeightSource.model_validate({"huggingFace": {"repo": "lab/{version}"}})

    assert str(source.resolve("42")) == "hf://lab/{version}@main"


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({}, id="none"),
        pytest.param({"path": "/w/a", "huggingFace": {"repo": "a/b"}}, id="two"),
        pytest.param({"path": "weights"}, id="a relative path"),
        pytest.param({"path": "/"}, id="the root"),
        pytest.param({"path": "/a//b"}, id="an empty part"),
        pytest.param({"path": "/a/"}, id="a slash at the end"),
        pytest.param({"path": "/a\x00b"}, id="a zero byte"),
    ],
)
def test_a_source_is_either_a_plain_absolute_path_or_a_repository(given):
    with pytest.raises(ValidationError):
        WeightSource.model_validate(given)


@pytest.mark.parametrize("source", [PATH, REPOSITORY], ids=str)
def test_a_source_is_equal_after_the_round_trip_to_a_worker(source):
    assert from_protocol(source.resolve("7").to_protocol()) == source.resolve("7")
