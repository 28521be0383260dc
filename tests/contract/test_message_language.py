"""Messages in the code and names of tests obey the rules of words, as `make lint` checks them."""

from __future__ import annotations

from pathlib import Path

import pytest

from prose import messages

pytestmark = pytest.mark.timeout(1800)  # Vale is built where it is missing
BAD = {
    "Archaic": "the worker has a port beside the public one",
    "Invented": "all newcomers wait for the barrier",
    "Negation": "the file is no checkpoint of the model",
    "Passive": "nothing is to be set in the spec",
    "People": "the lease that nobody renews ends",
    "SoMany": "wait for so many seconds before a retry",
    "Translated": "the worker goes on serving the version",
}
"""Rule → a message that breaks it."""
GOOD = '''\
"""It goes on in a docstring, which `vale.ini` checks."""

DEFAULT_PROMPTS = ("Once upon a time there was",)
NAME = "goes on"

def f(worker):
    raise ValueError(f"see status.laggards, and `the newcomers` of {worker} with version 2")

def test_a_worker_keeps_its_version(): ...
'''


def tree(folder: Path) -> None:
    modules = {
        "operator/fleet_operator/core/plan.py": GOOD,
        "worker/fleet_worker/text.py": "".join(
            f'{rule} = "{text}"\n' for rule, text in BAD.items()
        ),
        "client/rlfleet/parts.py": 'raise E(\n    f"the {name} of the fleet "\n    f"is no {kind} checkpoint"\n)\n',
        "tools/demo/story.py": 'say(f"version {good:>{width}} goes on serving now")\n',
        "tests/unit/test_names.py": "".join(
            f"def test_{text.replace(' ', '_')}(): ...\n" for text in BAD.values()
        )
        + f"\n{GOOD}",
    }
    for name, text in modules.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """Place and rule of each finding."""
    tree(folder := tmp_path_factory.mktemp("code"))
    found = (finding.split(": ", 2) for finding in messages.check(folder))
    return [(place, rule.removeprefix("Rlfleet.")) for place, rule, _ in found]


@pytest.mark.parametrize(("line", "rule"), list(enumerate(BAD, start=1)), ids=BAD)
def test_a_message_and_a_test_name_that_break_a_rule_are_found(
    line: int, rule: str, findings: list[tuple[str, str]]
) -> None:
    assert (f"worker/fleet_worker/text.py:{line}", rule) in findings
    assert (f"tests/unit/test_names.py:{line}", rule) in findings


def test_a_message_of_several_parts_is_one_text(findings: list[tuple[str, str]]) -> None:
    assert ("client/rlfleet/parts.py:2", "Negation") in findings
    assert ("tools/demo/story.py:1", "Translated") in findings


def test_docstrings_data_names_and_code_are_not_messages(findings: list[tuple[str, str]]) -> None:
    assert len(findings) == 2 * len(BAD) + 2
