"""Every reason that asks for something has its cause and its remedy on the page."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from fleet_operator.api.conditions import ConditionReason
from fleet_operator.core import lagging
from fleet_worker.protocol import Reason
from rlfleet.cli.app import app
from rlfleet.cli.explanation import meaning_of
from rlfleet.cli.reasons import OF_WORKERS, REMEDIES

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs/reference"
PAGE = (REFERENCE / "troubleshooting.md").read_text()
ASK_FOR_NOTHING = frozenset(
    {
        ConditionReason.ALL_WORKERS_SERVING,
        ConditionReason.HALTED,  # `Stalled` has the reason
        ConditionReason.COMPARING,
        ConditionReason.JUDGING,
        ConditionReason.LOADING,
        ConditionReason.MINIMUM_SERVING,
        ConditionReason.PAUSING,
        ConditionReason.REPLACING_WORKERS,
        ConditionReason.RESUMING,
        ConditionReason.ROLLING_OUT,
        ConditionReason.ROUTER_READY,
        ConditionReason.STAGING,
        ConditionReason.UP_TO_DATE,
    }
)


def sections() -> dict[str, str]:
    """Reason → its section."""
    found = re.split(r"^### (\w+)$", PAGE, flags=re.MULTILINE)[1:]
    return {
        name: text.partition("\n## ")[0] for name, text in zip(found[::2], found[1::2], strict=True)
    }


def test_each_reason_that_asks_for_something_has_one_section() -> None:
    assert sorted(re.findall(r"^### (\w+)$", PAGE, re.MULTILINE)) == sorted(
        reason.value for reason in set(ConditionReason) - ASK_FOR_NOTHING
    )


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


def test_the_command_line_knows_the_remedies_of_each_section() -> None:
    assert set(REMEDIES) == set(sections())
    assert [reason for reason, remedies in REMEDIES.items() if not all(remedies)] == []


def test_a_remedy_of_the_command_line_has_the_words_of_its_section() -> None:
    assert REMEDIES["SourceUnknown"] == (
        "Let the trainer send the weights again.",
        "New workers take part from then on.",
        "If the operator drives the fleet now, create a WeightVersion that names a directory.",
    )
    assert [remedy.count("`") % 2 for remedy in REMEDIES["CanaryRefused"]] == [0, 0]


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
    own = set(re.findall(r'return "(\w+)", ', inspect.getsource(lagging)))

    assert {"NotAnswering", "Quarantined"} <= own
    assert set(OF_WORKERS) == own | {reason.value for reason in OF_LOADS}
    assert set(OF_WORKERS) & {reason.value for reason in ConditionReason} == set()
    found = meaning_of("NotAnswering")
    assert found is not None
    assert "port 8081" in " ".join(found.remedies)
