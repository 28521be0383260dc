"""`python -m fleet_worker check DIR --against MODEL`: would a worker accept this checkpoint?

The checks are those of a stage, without an engine or a GPU. Nothing is kept in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fleet_worker.checkpoint.delta_chain import FirstBase
from fleet_worker.checkpoint.files import Roots
from fleet_worker.checkpoint.inspector import Inspector
from fleet_worker.checkpoint.reference import Reference, StageRules, open_fitting, read_accepted
from fleet_worker.errors import Refusal
from fleet_worker.lora.files import Kind, kind_of, open_fitting_adapter, read_accepted_adapter
from fleet_worker.process.start_weights import open_model, read_model
from fleet_worker.protocol import Reason, Source

_REFUSED = 1
_USAGE = 2
_WORDS = {Kind.CHECKPOINT: "checkpoint", Kind.ADAPTER: "LoRA adapter"}
Found = dict[str, Any]


def check(arguments: argparse.Namespace, inspector: Inspector | None = None) -> int:
    """Check a checkpoint or a LoRA adapter and print the result; returns the exit code.

    Args:
        arguments: The command line.
        inspector: The checks of the bytes. None for those of a worker.

    Returns:
        0 if a worker on the model would accept it, 1 if not, 2 if the model cannot be read.
    """
    if inspector is None:
        from fleet_worker.checkpoint.inspection import ModelInspector  # noqa: PLC0415 - imports numpy

        inspector = ModelInspector()
    roots = Roots(arguments.weights_root or ["/"])
    try:
        rules = _rules(arguments.against, arguments.revision, roots, inspector)
    except Refusal as refusal:
        print(f"{arguments.against}: {refusal.message}", file=sys.stderr)  # noqa: T201 - output of a command
        return _USAGE
    # A name below a root counts, so links stay as they are.
    path = str(Path(arguments.directory).absolute())
    kind = None
    try:
        rules.roots.check_name(path)
        kind = Kind(arguments.kind) if arguments.kind else _kind_in(path)
        found = _accepted(path, kind, rules, arguments.max_lora_rank)
    except Refusal as refusal:
        found = {"accepted": False, "reason": refusal.reason.value, "message": refusal.message}
        if kind is not None:
            found |= {"kind": _WORDS[kind]}
    _print(path, found, arguments.output)
    return 0 if found["accepted"] else _REFUSED


def _kind_in(path: str) -> Kind:
    """The kind that a directory holds: a checkpoint if it cannot be opened, since that refusal says more."""
    try:
        return kind_of(os.path.realpath(path))
    except Refusal:
        return Kind.CHECKPOINT


def _rules(model: str, revision: str | None, roots: Roots, inspector: Inspector) -> StageRules:
    """The rules of a worker that has started on the model."""
    opened = open_model(model, revision).checkpoint
    try:
        reference = Reference.of(opened, inspector)
        digest = read_model(opened, inspector)  # finds its blocks of zeros, too
        return StageRules(
            roots,
            replace(reference, zero_blocks=opened.zero_blocks),
            inspector,
            budget_bytes=0,
            first_base=FirstBase(opened.path, "", digest),
        )
    finally:
        opened.close()


def _accepted(path: str, kind: Kind, rules: StageRules, max_rank: int) -> Found:
    """The size, the digest and the remarks of a source that passes all checks of a worker. Errors: Refusal."""
    source, is_adapter = Source(path=path), kind is Kind.ADAPTER
    read: Callable[..., tuple[bool, str]] = read_accepted_adapter if is_adapter else read_accepted
    if is_adapter and max_rank == 0:
        raise Refusal(
            Reason.ADAPTERS_OFF, "the worker has no slots for LoRA adapters; set --max-loras"
        )
    if is_adapter:
        opened = open_fitting_adapter(source, rules, max_rank=max_rank)
    else:
        opened = open_fitting(source, rules)
    try:
        _, digest = read(opened, rules, digest=None, budget=0, check_cancelled=lambda: None)
        return {
            "accepted": True,
            "kind": _WORDS[kind],
            "tensors": len(opened.tensors),
            "bytes": opened.size_bytes,
            "digest": digest,
            "remarks": list(opened.remarks),
        }
    finally:
        opened.close()


def _print(path: str, found: Found, output: str) -> None:
    if output == "json":
        text = json.dumps(found)
    elif found["accepted"]:
        facts = f"{found['kind']}, {found['tensors']} tensors, {found['bytes']} bytes"
        lines = [f"{path}: accepted: {facts}, {found['digest']}"]
        lines += [f"remark: {remark}" for remark in found["remarks"]]
        text = "\n".join(lines)
    else:
        kind = f" as a {found['kind']} (--kind reads it as another)" if "kind" in found else ""
        text = f"{path}: refused{kind}, {found['reason']}: {found['message']}"
    print(text)  # noqa: T201 - output of a command
