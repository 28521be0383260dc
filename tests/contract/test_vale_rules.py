"""Every rule of the language finds what it forbids and passes what it allows, in one run of Vale."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from prose import vale

pytestmark = pytest.mark.timeout(1800)  # Vale is built where it is missing
LONG = " ".join(f"word-{number}" for number in range(31))


class Example(NamedTuple):
    """Paragraphs that a rule must find, each on its own, and a text that it must pass."""

    bad: tuple[str, ...]
    good: str


EXAMPLES = {
    "Archaic": Example(
        (
            "All workers stop but for one.",
            "The worker has a port beside the public one.",
            "The load failed, hence the worker is broken.",
            "The operator relies upon the Lease.",
            "Fence the worker lest it serves.",
        ),
        "All workers stop except for one. A busy worker relies on its latch.",
    ),
    "Compounds": Example(
        (
            "The call has a time-out.",
            "A roll-out begins.",
            "The check-point is on a shared filesystem.",
            "The namespace has one end-point.",
        ),
        "The call has a timeout. A rollout reads a checkpoint from a file system.",
    ),
    "Filler": Example(
        (
            "Patch the object in order to publish.",
            "The operator is able to retry.",
            "The worker simply retries.",
            "Of course the worker retries.",
        ),
        "Patch the object to publish. The operator can retry.",
    ),
    "InternalIds": Example(
        ("The rule TK-4 holds.", "See DI-12 for the reason."),
        "The rule of decision 4 holds with SHA-256 and UTF-8.",
    ),
    "Invented": Example(
        (
            "A laggard serves the old version.",
            "Newcomers wait.",
            "A joiner waits.",
            "The wire has six surfaces.",
            "A rewind is refused.",
            "The fleet speaks with one voice.",
        ),
        "A lagging worker serves the old version. New workers wait. `status.laggards` lists them.",
    ),
    "Names": Example(
        (
            "The worker runs VLLM.",
            "It runs on kubernetes.",
            "A Lora adapter is loaded.",
            "The source is on HuggingFace.",
            "A weightversion names it.",
        ),
        "The worker runs vLLM on Kubernetes with a LoRA adapter from Hugging Face.",
    ),
    "Negation": Example(
        ("A deleted directory is no change.", "Routers are no workers of the fleet."),
        "A deleted directory is not a change. There is no worker that is no longer admitted.",
    ),
    "Passive": Example(
        (
            "Nothing is to be set.",
            "The API server is asked again.",
            "The status is believed.",
            "It is known that the pod exists.",
        ),
        "The operator asks the API server again. The pod is ready.",
    ),
    "People": Example(
        (
            "The leader is the one who holds the Lease.",
            "A worker keeps the version that he has.",
            "Nobody renews the pause.",
            "The status shows it to everybody.",
            "Somebody deletes the pod.",
            "The fleet needs a person.",
        ),
        "The worker keeps its version, and no component renews the pause. You delete the pod.",
    ),
    "Plurals": Example(
        ("1 workers cannot load it.", "The fleet has 0 worker.", "Restart the pod(s)."),
        "1 worker cannot load it after 0.1 seconds, and 10 workers may fail. Call `list(s)`.",
    ),
    "Repetition": Example(
        ("The worker loads the the weights.", "It serves serves again."),
        "The worker loads the weights that it had staged.",
    ),
    "Semicolons": Example(
        ("The worker stages; it pauses; it loads.",),
        "The worker stages; it pauses. It loads.",
    ),
    "SentenceLength": Example(
        (f"{LONG}.", f"* {LONG}."),
        f"{LONG.partition(' ')[2]}. The next sentence counts from one again.",
    ),
    "SoMany": Example(
        (
            "Wait for so many seconds.",
            "So long does one fence try.",
            "A watch may end so much later.",
        ),
        "Wait for `seconds`. The worker serves as long as the latch is open.",
    ),
    "That": Example(
        ("The version that the worker that the fleet has serves is the one that was asked for.",),
        "The version that the worker serves is the one that the spec names. That is all.",
    ),
    "Translated": Example(
        (
            "The worker is made anew.",
            "The reason is said in the status.",
            "The worker goes on serving.",
            "The worker is brought to version 2.",
            "The operator gives up the version.",
            "The operator gave up.",
            "The pause lasts for ever.",
            "The verdict stands in the status.",
            "The token is none.",
            "The status told the version.",
            "The rollout goes on at once.",
            "The file lies below the root.",
            "The image is not to be had.",
            "It is tried again by itself.",
        ),
        "The worker is recreated and keeps serving version 2. The operator abandons version 3."
        " One drain goes on the list, and the next goes on a list of its own.",
    ),
    "WhatClause": Example(
        ("What the worker holds is kept.", "The worker keeps its weights; what it staged is gone."),
        "The worker keeps its weights. What does the worker keep?",
    ),
}
BAD = "The worker is made anew."
FIELD = """\
spec:
  versions:
    - schema:
        description: >-
          A first line,
          and {bad}
        message: {bad}
"""
MODULE = f'''\
"""{BAD}"""

# {BAD}
LIMIT = 1  # {BAD}
ANEW = "made anew"

NAME = "made anew"
"""{BAD}"""
'''
COMMENTED = ("charts/rlfleet/templates", "crds/samples/valid", "docs/tutorial", "examples/flux")
"""Folders of manifests whose comments are checked."""
PLACES = {
    "crds/weightversions.yaml": (6, 7),
    "charts/rlfleet/values.yaml": (1, 3),
    **{f"{folder}/fleet.yaml": (1,) for folder in COMMENTED},
    "charts/rlfleet/templates/NOTES.txt": (1,),
    "docs/reference/worker.md": (5,),
    "operator/fleet_operator/api/fleet.py": (1, 3, 4, 8),
    "worker/fleet_worker/entry.py": (1, 3, 4, 8),
    "tests/unit/core/test_entry.py": (1, 3, 4, 8),
    "docs/decisions/0029-later.md": (1,),
    "docs/decisions/0004-epochs.md": (1,),
    "docs/reference/inferencefleet.md": (),
}
"""File → lines with a finding, of what `vale.ini` names: prose is found, code is not."""


def texts() -> Iterator[tuple[str, str]]:
    for rule, example in EXAMPLES.items():
        yield f"{rule}-bad.md", "".join(f"{paragraph}\n\n" for paragraph in example.bad)
        yield f"{rule}-good.md", f"{example.good}\n"
    yield "crds/weightversions.yaml", FIELD.format(bad=BAD)
    yield "charts/rlfleet/values.yaml", f"# -- {BAD}\nanew: 1\nport: 2  # {BAD}\n"
    for folder in COMMENTED:
        yield f"{folder}/fleet.yaml", f"# {BAD}\nmessage: made anew\n"
    for file in (place for place in PLACES if place.endswith(".py")):
        yield file, MODULE
    yield "charts/rlfleet/templates/NOTES.txt", f"{BAD}\n  kubectl make anew\n"
    yield "docs/reference/worker.md", f"```\n{BAD}\n```\n\n{BAD}\n"
    for page in ("decisions/0029-later", "decisions/0004-epochs", "reference/inferencefleet"):
        yield f"docs/{page}.md", f"{BAD}\n\n`made anew`\n\n{LONG}.\n"


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """File → what Vale finds in it, by the configuration of `make lint`."""
    folder = tmp_path_factory.mktemp("prose")
    for name, text in texts():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    done = vale.run(".", folder=folder, output="JSON")
    assert done.returncode == 1, done.stderr
    return {Path(name).as_posix(): found for name, found in json.loads(done.stdout).items()}


def test_every_rule_has_an_example() -> None:
    assert {file.stem for file in vale.RULES.glob("*.yml")} == set(EXAMPLES)


@pytest.mark.parametrize("rule", sorted(EXAMPLES))
def test_a_rule_finds_each_of_its_bad_examples(
    rule: str, findings: dict[str, list[dict[str, Any]]]
) -> None:
    found = Counter(
        finding["Line"]
        for finding in findings.get(f"{rule}-bad.md", [])
        if finding["Check"] == f"Rlfleet.{rule}"
    )

    assert sorted(found) == [1 + 2 * number for number in range(len(EXAMPLES[rule].bad))]


@pytest.mark.parametrize("rule", sorted(EXAMPLES))
def test_a_good_example_breaks_no_rule(
    rule: str, findings: dict[str, list[dict[str, Any]]]
) -> None:
    assert findings.get(f"{rule}-good.md", []) == []


@pytest.mark.parametrize("place", sorted(PLACES))
def test_prose_is_checked_where_it_is(
    place: str, findings: dict[str, list[dict[str, Any]]]
) -> None:
    lines = {f["Line"] for f in findings.get(place, []) if f["Check"] == "Rlfleet.Translated"}

    assert sorted(lines) == list(PLACES[place])


def test_old_decisions_may_have_long_sentences_and_later_ones_may_not(
    findings: dict[str, list[dict[str, Any]]],
) -> None:
    old, later = (
        [f["Check"] for f in findings[f"docs/decisions/{page}.md"]]
        for page in ("0004-epochs", "0029-later")
    )

    assert "Rlfleet.SentenceLength" in later
    assert "Rlfleet.SentenceLength" not in old


def test_a_finding_says_what_to_write(findings: dict[str, list[dict[str, Any]]]) -> None:
    (first, *_) = findings["docs/decisions/0029-later.md"]

    assert "recreated" in first["Message"]
