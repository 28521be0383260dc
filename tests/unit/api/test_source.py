"""Where weights come from, and the placeholder that lets a trainer patch one field."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from fleet_operator.core.actions import to_protocol
from rlfleet_resources.source import TRANSFERRED, UNREADABLE, WeightSource

PATH = WeightSource.model_validate({"path": "/weights/step_{version}"})
URI = WeightSource(uri="s3://lab/step_{version}")
REPOSITORY = WeightSource.model_validate(
    {"huggingFace": {"repo": "lab/policy", "revision": "step-{version}"}}
)


@pytest.mark.parametrize(
    ("source", "filled"),
    [
        pytest.param(PATH, "/weights/step_42", id="in a path"),
        pytest.param(URI, "s3://lab/step_42", id="in a URI"),
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
        pytest.param({"path": "/w/a", "uri": "s3://lab/a"}, id="a path and a URI"),
        pytest.param({"uri": "s3://lab"}, id="a whole bucket"),
        pytest.param({"uri": "s3://user@lab/a"}, id="a URI with a user"),
        pytest.param({"uri": "hf://lab/policy/config.json@main"}, id="a file of a repository"),
        pytest.param({"uri": "hf://lab/{version}"}, id="a repository for each version"),
        pytest.param({"uri": "http://lab/a"}, id="a URI of a server"),
        pytest.param({"path": "weights"}, id="a relative path"),
        pytest.param({"path": "/"}, id="the root"),
        pytest.param({"path": "/a//b"}, id="an empty part"),
        pytest.param({"path": "/a/"}, id="a slash at the end"),
        pytest.param({"path": "/a\x00b"}, id="a zero byte"),
    ],
)
def test_a_source_is_exactly_one_plain_path_uri_or_repository(given):
    with pytest.raises(ValidationError):
        WeightSource.model_validate(given)


@pytest.mark.parametrize("source", [PATH, URI, REPOSITORY], ids=str)
def test_a_source_is_equal_after_the_round_trip_to_a_worker(source):
    assert WeightSource.of(to_protocol(source.resolve("7")).key()) == source.resolve("7")


FIXED = [
    WeightSource(path="/weights/7"),
    WeightSource.model_validate({"huggingFace": {"repo": "lab/policy", "revision": "main"}}),
    WeightSource(uri="s3://lab/7"),
]


def test_each_kind_of_source_is_tried_here():
    assert {source.key().kind for source in FIXED} == {
        field.alias for field in WeightSource.model_fields.values()
    }


@pytest.mark.parametrize("source", FIXED, ids=str)
def test_a_source_and_its_name_are_made_of_each_other(source):
    assert WeightSource.of(source.key()) == source
    assert to_protocol(source).key() == source.key()
    assert str(to_protocol(source)) == source.text()


@pytest.mark.parametrize("source", [TRANSFERRED, UNREADABLE], ids=str)
def test_weights_without_a_source_have_a_name_of_which_no_source_is_made(source):
    with pytest.raises(ValueError, match="kind"):
        WeightSource.of(source.key())


def test_a_branch_may_have_led_to_each_commit_and_a_commit_only_to_itself():
    directory, branch, _ = FIXED
    one, other = branch.at("a" * 40), branch.at("b" * 40)

    assert branch.key().covers(one.key())
    assert one.key().covers(one.key())
    assert not one.key().covers(other.key())
    assert not branch.key().covers(directory.key())
    assert not directory.key().covers(WeightSource(path="/weights/8").key())


@pytest.mark.parametrize(
    ("path", "within"),
    [("/weights", True), ("/weights/7", True), ("/weights7", False), ("/other/7", False)],
)
def test_a_root_holds_itself_and_what_is_below(path, within):
    assert WeightSource(path=path).roots(["/weights"]) == (["/weights"] if within else [])


def test_a_bucket_and_a_prefix_are_roots_of_what_is_below_them():
    roots = ["s3://lab", "s3://lab/run", "s3://lab/running", "gs://lab"]

    assert WeightSource(uri="s3://lab/run/7").roots(roots) == ["s3://lab", "s3://lab/run"]
    assert WeightSource(uri="s3://laboratory/run").roots(roots) == []


@pytest.mark.parametrize(
    ("uri", "named"),
    [
        ("hf://lab/policy@step-{version}", {"repo": "lab/policy", "revision": "step-{version}"}),
        ("hf://lab/policy@refs/pr/1", {"repo": "lab/policy", "revision": "refs/pr/1"}),
        ("hf://lab/policy", {"repo": "lab/policy"}),
        ("hf://gpt2", {"repo": "gpt2"}),
    ],
)
def test_two_spellings_of_a_repository_are_one_source(uri, named):
    one, other = WeightSource(uri=uri), WeightSource.model_validate({"huggingFace": named})

    assert (one, hash(one)) == (other, hash(other))
    assert one.resolve("4") == other.resolve("4")
    assert to_protocol(one) == to_protocol(other)
    assert to_protocol(one).hugging_face is not None
    assert (one.roots(["/w"]), one.is_template) == (None, other.is_template)
    assert one.to_json() == {"uri": uri}, "a patch of the same version must not change its source"


def test_a_repository_is_in_no_root():
    assert REPOSITORY.roots(["/weights"]) is None
