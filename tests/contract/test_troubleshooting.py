"""Every reason that asks for something has its cause and its remedy on the page."""

from __future__ import annotations

import re
from pathlib import Path

from fleet_worker.protocol import Reason
from rlfleet.cli.app import app
from rlfleet.cli.explanation import meaning_of
from rlfleet_resources.reasons import ConditionReason, LaggardReason, Severity

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs/reference"
PAGE = (REFERENCE / "troubleshooting.md").read_text()


def sections() -> dict[str, str]:
    """Reason → its section."""
    found = re.split(r"^### (\w+)$", PAGE, flags=re.MULTILINE)[1:]
    return {
        name: text.partition("\n## ")[0] for name, text in zip(found[::2], found[1::2], strict=True)
    }


def test_each_reason_that_asks_for_something_has_one_section() -> None:
    assert sorted(re.findall(r"^### (\w+)$", PAGE, re.MULTILINE)) == sorted(
        reason.value for reason in ConditionReason if reason.advice
    )


def test_a_reason_asks_for_something_unless_all_is_fine() -> None:
    asking = {reason for reason in ConditionReason if reason.advice}

    assert asking == {r for r in ConditionReason if r.severity is not Severity.FINE}
    assert all(reason.advice for reason in LaggardReason)


def test_each_reason_is_set_by_something() -> None:
    """The refusal of a stage becomes the reason of a condition by its name."""
    operator = "".join(p.read_text() for p in (ROOT / "operator").rglob("*.py"))
    of_workers = {reason.value for reason in Reason}
    unset = [
        r.value
        for r in ConditionReason
        if f".{r.name}" not in operator and r.value not in of_workers
    ]

    assert unset == []


ENTRY = re.compile(
    r"\n\n\*\*Symptom\*\*: .*`.+`.*"
    r"\n\n\*\*Look\*\*: .*`(?:kubectl|rlfleet) .+`.*"
    r"\n\n\*\*Cause\*\*: .+"
    r"\n\n\*\*Do\*\*: .+\n"
)


def test_each_section_has_a_symptom_a_command_a_cause_and_a_remedy() -> None:
    assert [name for name, text in sections().items() if not ENTRY.match(text)] == []


def test_the_commands_of_the_command_line_exist() -> None:
    verbs = set(re.findall(r"`rlfleet ([a-z]+)", PAGE))
    known = {each.callback.__name__ for each in app.registered_commands if each.callback}

    assert verbs
    assert verbs - known == set()


def test_the_command_line_shows_advice_without_links() -> None:
    found = meaning_of("writerefused")

    assert found is not None
    assert found.name == "WriteRefused"
    assert found.remedies[-1] == "Compare the rights with what the operator needs."
    known = [meaning_of(reason) for reason in (*ConditionReason, *LaggardReason)]
    assert [f.name for f in known if f and "](" in " ".join(f.remedies)] == []


def test_each_section_ends_with_the_advice_of_its_reason() -> None:
    advice = {name: text.partition("**Do**: ")[2].strip() for name, text in sections().items()}

    assert {name: f"{text[0].upper()}{text[1:]}" for name, text in advice.items()} == {
        reason.value: " ".join(reason.advice) for reason in ConditionReason if reason.advice
    }


def test_the_page_of_conditions_links_to_each_section() -> None:
    conditions = (REFERENCE / "conditions.md").read_text()

    assert set(re.findall(r"\(troubleshooting\.md#(\w+)\)", conditions)) == {
        name.lower() for name in sections()
    }


OF_LOADS = (
    Reason.NOT_AVAILABLE,
    Reason.SOURCE_ABSENT, Reason.SOURCE_NOT_READY, Reason.ENGINE_FAILED, Reason.PROBE_FAILED,
)  # fmt: skip
"""Why a worker has not staged or loaded a version, where no condition has the same reason."""


def test_each_reason_of_a_lagging_worker_is_explained() -> None:
    words = {reason.value for reason in LaggardReason}

    assert {reason.value for reason in OF_LOADS} <= words
    assert words & {reason.value for reason in ConditionReason} == set()
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == words
    found = meaning_of("NotAnswering")
    assert found is not None
    assert "port 8081" in " ".join(found.remedies)


def test_a_reason_with_which_workers_refuse_files_refuses_the_version() -> None:
    """Else the history would call a version superseded that its files have refused."""
    refusing = {r.value for r in ConditionReason if r.severity is Severity.REFUSES}
    of_files = {reason.value for reason in Reason if reason.value in set(ConditionReason)}

    assert of_files <= refusing
