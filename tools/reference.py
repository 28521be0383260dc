"""Write the reference pages that follow from the sources: CRDs, conditions, values of the chart.

    python3 tools/reference.py            write docs/reference/*.md and the table of the chart's README
    python3 tools/reference.py --check    exit 1 if a page is out of date

Needs the development environment (PyYAML).
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from chart_page import readme_with_values, values_page

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = REPOSITORY / "docs" / "reference"
REASONS = REPOSITORY / "client" / "rlfleet" / "cli" / "reasons.py"
CONDITIONS = REPOSITORY / "operator" / "fleet_operator" / "api" / "conditions.py"
VALUES = REPOSITORY / "charts" / "rlfleet" / "values.yaml"
CHART_README = VALUES.with_name("README.md")
TROUBLESHOOTING = PAGES / "troubleshooting.md"
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


def conditions_page(source: str, troubleshooting: str) -> str:
    """The page of condition types and reasons, from their constants and sentences.

    A reason with a section on the page `troubleshooting` links to it.
    """
    sections = set(re.findall(r"^### (\w+)$", troubleshooting, re.MULTILINE))
    lines = [
        "# Conditions and reasons\n\n",
        NOTICE,
        (
            "A condition's `lastTransitionTime` changes only with its status. Its message names pods and "
            "numbers and the remedy. `Stalled` is present only while attention is needed. The "
            "[glossary](glossary.md) defines words such as latch, stage and epoch. A reason that asks for "
            "something links to its cause and remedy.\n"
        ),
    ]
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name in {"ConditionType", "ConditionReason"}:
            title = "Types" if node.name == "ConditionType" else "Reasons"
            lines.append(f"\n## {title}\n\n| Name | Meaning |\n| --- | --- |\n")
            for word, text in _constants(node):
                link = f"[`{word}`](troubleshooting.md#{word.lower()})"
                lines.append(f"| {link if word in sections else f'`{word}`'} | {_cell(text)} |\n")
    return "".join(lines)


def reasons_module(source: str, troubleshooting: str) -> str:
    """The tables of reasons that the command line explains: meanings, and remedies of the page."""
    reasons = next(
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name == "ConditionReason"
    )
    lines = [
        '"""The meaning of each reason of a condition, and the remedies of those that ask for something.\n\n',
        "`make generate` writes this file from `ConditionReason` and docs/reference/troubleshooting.md.\n",
        '"""\n\n',
        "# fmt: off\n",
        "MEANINGS = {\n",
    ]
    lines += [
        f"    {json.dumps(word)}: {json.dumps(' '.join(text.split()))},\n"
        for word, text in _constants(reasons)
    ]
    lines += [
        "}\n\n",
        "REMEDIES = {\n",
        *(
            f"    {json.dumps(word)}: {_tuple(_sentences(text))},\n"
            for word, text in remedies(troubleshooting).items()
        ),
        "}\n\n",
        "OF_WORKERS = {\n",
        *(
            f"    {json.dumps(word)}: ({json.dumps(meaning)}, {_tuple(_sentences(remedy))}),\n"
            for word, meaning, remedy in reasons_of_workers(troubleshooting)
        ),
        "}\n",
        '"""Reasons of lagging workers that no condition has: the meaning and the remedies."""\n',
    ]
    return "".join(lines)


def _tuple(words: list[str]) -> str:
    return f"({', '.join(map(json.dumps, words))}{',' if len(words) == 1 else ''})"


def remedies(troubleshooting: str) -> dict[str, str]:
    """Reason → the part **Do** of its section."""
    return dict(
        re.findall(
            r"^### (\w+)$(?:(?!^##).)*?^\*\*Do\*\*: (.+?)$",
            troubleshooting,
            re.MULTILINE | re.DOTALL,
        )
    )


def reasons_of_workers(troubleshooting: str) -> list[tuple[str, str, str]]:
    """Reason, meaning and remedy of each row of the table of lagging workers."""
    _, _, section = troubleshooting.partition("\n## Reasons of lagging workers\n")
    return re.findall(
        r"^\| `(\w+)` \| (.+?) \| (.+?) \|$", section.partition("\n## ")[0], re.MULTILINE
    )


def _sentences(text: str) -> list[str]:
    """Sentences of Markdown without its links. A dot within code ends none."""
    plain = re.sub(r" \(\[[^]]+\]\([^)]+\)\)", "", text)
    plain = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", plain)
    found = re.findall(r"(?:`[^`]*`|[^`])+?(?:\.(?= [A-Z`])|$)", plain[0].upper() + plain[1:])
    return [sentence.strip() for sentence in found]


def _constants(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Values of a StrEnum with the string that follows each."""
    for assigned, told in zip(node.body, node.body[1:], strict=False):
        match assigned, told:
            case (
                ast.Assign(value=ast.Constant(value=str(word))),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield word, text
            case _:
                pass


def main() -> None:
    """Write or check."""
    pages = {
        PAGES / "conditions.md": conditions_page(
            CONDITIONS.read_text(), TROUBLESHOOTING.read_text()
        ),
        PAGES / "values.md": values_page(VALUES.read_text(), NOTICE),
        CHART_README: readme_with_values(CHART_README.read_text(), VALUES.read_text()),
        REASONS: reasons_module(CONDITIONS.read_text(), TROUBLESHOOTING.read_text()),
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
