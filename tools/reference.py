"""Write the reference pages that follow from the sources: CRDs, reasons, values of the chart.

    python3 tools/reference.py            write docs/reference/*.md and the table of the chart's README
    python3 tools/reference.py --check    exit 1 if a page is out of date

Needs the development environment (PyYAML).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from chart_page import readme_with_values, values_page
from rlfleet_resources.reasons import ConditionReason, ConditionType, LaggardReason

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = REPOSITORY / "docs" / "reference"
VALUES = REPOSITORY / "charts" / "rlfleet" / "values.yaml"
CHART_README = VALUES.with_name("README.md")
TROUBLESHOOTING = PAGES / "troubleshooting.md"
_OF_WORKERS = "\n## Reasons of lagging workers\n"
NOTICE = "<!-- Written by tools/reference.py; `make generate` updates it. -->\n\n"


def crd_page(crd: dict[str, Any]) -> str:
    """The page of one resource: what it is, its columns, every field."""
    names = crd["spec"]["names"]
    (version,) = crd["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    lines = [
        f"# {names['kind']}\n\n",
        NOTICE,
        (
            f"`{crd['spec']['group']}/{version['name']}`, namespaced, short name "
            f"`{names['shortNames'][0]}`, category `rl`.\n\n"
        ),
        schema["description"] + "\n\n",
        "## What `kubectl get` shows\n\n",
        "| Column | From |\n| --- | --- |\n",
    ]
    lines += [
        f"| {c['name']}{' (with `-o wide`)' if c.get('priority') else ''} | `{c['jsonPath']}` |\n"
        for c in version["additionalPrinterColumns"]
    ]
    for part in ("spec", "status"):
        lines += [
            f"\n## {part}\n\n",
            "| Field | Type | Default | Meaning |\n",
            "| --- | --- | --- | --- |\n",
        ]
        lines += [_row(*field) for field in _fields(schema["properties"][part], part)]
    rules = list(_rules(schema, ""))
    lines += ["\n## Refused at `kubectl apply`\n\n"]
    lines += [f"* {rule}\n" for rule in rules]
    return "".join(lines)


def _fields(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any], bool]]:
    required = schema.get("required", ())
    for name, child in schema.get("properties", {}).items():
        yield f"{path}.{name}", child, name in required
        yield from _fields(child, f"{path}.{name}")
        yield from _fields(child.get("items", {}), f"{path}.{name}[]")


def _row(path: str, schema: dict[str, Any], required: bool) -> str:  # noqa: FBT001 - a row's columns
    default = schema.get("default")
    shown = "required" if required else "" if default is None else f"`{json.dumps(default)}`"
    return f"| `{path}` | {_type(schema)} | {shown} | {_cell(schema.get('description', ''))} |\n"


def _type(schema: dict[str, Any]) -> str:
    kind = schema.get("type", "quantity" if "anyOf" in schema else "any")
    share = ", or a percentage" if "%" in schema.get("pattern", "") else ""
    if share:
        kind = "integer"
    if "enum" in schema:
        return " \\| ".join(str(word) for word in schema["enum"])
    if kind == "array":
        item = schema["items"].get("type", "any")
        return f"list of {item}, at most {schema['maxItems']}"
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{kind}, {low} to {high}{share}"
    if low is not None:
        return f"{kind}, at least {low}{share}"
    if "maxLength" in schema:
        return f"{kind}, at most {schema['maxLength']} characters"
    return str(kind)


def _rules(schema: dict[str, Any], path: str) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", ()):
        yield rule.get("message") or f"`{path}`: flags that rlfleet sets itself"
    for name, child in schema.get("properties", {}).items():
        yield from _rules(child, f"{path}.{name}".lstrip("."))
    if "items" in schema:
        yield from _rules(schema["items"], f"{path}[]")


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def conditions_page() -> str:
    """The page of condition types and reasons. A reason that asks for something links to its section."""
    lines = [
        "# Conditions and reasons\n\n",
        NOTICE,
        (
            "A condition's `lastTransitionTime` changes only with its status. Its message names pods and "
            "numbers and the remedy. `Stalled` is present only while attention is needed. The "
            "[glossary](glossary.md) defines words such as latch, stage and epoch. A reason that asks for "
            "something links to its cause and remedy.\n"
        ),
        "\n## Types\n\n| Name | Meaning |\n| --- | --- |\n",
        *(f"| `{kind}` | {_cell(kind.meaning)} |\n" for kind in ConditionType),
        "\n## Reasons\n\n| Name | Meaning | Object |\n| --- | --- | --- |\n",
        *(
            f"| {_linked(reason)} | {_cell(reason.meaning)} | {reason.severity.value} |\n"
            for reason in ConditionReason
        ),
    ]
    return "".join(lines)


def _linked(reason: ConditionReason) -> str:
    named = f"`{reason}`"
    return f"[{named}](troubleshooting.md#{reason.anchor})" if reason.anchor else named


def with_advice(page: str) -> str:
    """The page of troubleshooting with what the tables of reasons say.

    The part **Do** of each section is the advice of its reason. The last section gets a skeleton of those that
    are missing: the rest of a section is written by hand.
    """
    for reason in (one for one in ConditionReason if one.advice):
        told = " ".join(reason.advice)
        advice = f"**Do**: {told[0].lower()}{told[1:]}\n"
        heading = f"\n### {reason}\n"
        if heading not in page:
            parts = (
                f"{heading}\n**Symptom**: STATUS is `{reason}`.\n",
                "\n**Look**: `kubectl -n NAMESPACE describe ifl,wv`\n",
                f"\n**Cause**: {reason.meaning}\n\n{advice}",
            )
            page = page.replace(_OF_WORKERS, "".join(parts) + _OF_WORKERS)
        page = _with(page, heading, r"^\*\*Do\*\*: .*\n", advice)
    rows = (f"| `{r}` | {r.meaning} | {' '.join(r.advice)} |\n" for r in LaggardReason)
    return _with(page, _OF_WORKERS, r"(?:^\| `.*\n)+", "".join(rows))


def _with(page: str, heading: str, pattern: str, text: str) -> str:
    """The page with a text instead of the first place after a heading that has a pattern."""
    before, _, section = page.partition(heading)
    section = re.sub(pattern, lambda _: text, section, count=1, flags=re.MULTILINE)
    return before + heading + section


def main() -> None:
    """Write or check."""
    pages = {
        PAGES / "conditions.md": conditions_page(),
        TROUBLESHOOTING: with_advice(TROUBLESHOOTING.read_text()),
        PAGES / "values.md": values_page(VALUES.read_text(), NOTICE),
        CHART_README: readme_with_values(CHART_README.read_text(), VALUES.read_text()),
    }
    for source in sorted((REPOSITORY / "crds").glob("*.yaml")):
        crd = yaml.safe_load(source.read_text())
        pages[PAGES / f"{crd['spec']['names']['singular']}.md"] = crd_page(crd)
    stale = [p for p, text in pages.items() if not p.exists() or p.read_text() != text]
    if "--check" in sys.argv:
        if stale:
            sys.exit(f"out of date, run `make generate`: {', '.join(p.name for p in stale)}")
        return
    PAGES.mkdir(parents=True, exist_ok=True)
    for page in stale:
        page.write_text(pages[page])


if __name__ == "__main__":
    main()
