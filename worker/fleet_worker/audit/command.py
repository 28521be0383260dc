"""`python -m fleet_worker audit REPLIES.jsonl --checkpoints …`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fleet_worker.audit.judge import Tally, judge, table
from fleet_worker.audit.records import BadRecordError, Record, read_records
from fleet_worker.audit.versions import (
    Checkpoints,
    DigestIn,
    Source,
    UnknownVersionError,
    WrongBytesError,
    neighbours,
)
from fleet_worker.process.manifest import digest_in, only_weights

WRONG_LABEL = 1
UNUSABLE = 2

# Measured with a tiny model in bfloat16: at most 0.08 for 32,000 tokens with right labels, and 3.7 in
# the mean with wrong ones. Larger models round more and their versions differ less.
_TOLERANCE = 0.25

Recompute = Callable[[Source, Sequence[Record]], list[list[float]]]
"""(weights, records) → log-probability of every sampled token of every record."""


def audit(
    arguments: Sequence[str],
    recompute: Recompute | None = None,
    digest: DigestIn = digest_in,
) -> int:
    """Audit a file of replies and print the table.

    Args:
        arguments: Command line.
        recompute: Computes log-probabilities. None for transformers in float32.
        digest: Computes the digest of a directory.

    Returns:
        0 if every token fits its label, 1 if a token does not, 2 if the input cannot be audited.
    """
    parsed = _parser().parse_args(arguments)
    try:
        checkpoints = Checkpoints.parse(parsed.checkpoints, parsed.adapters)
        records = _records(Path(parsed.replies))
        seen = {span.weights for record in records for span in record.judged}
        checkpoints.check_bytes(seen, digest)
        tallies, order = run(
            records,
            checkpoints,
            recompute or _by_transformers(parsed.device, parsed.against),
            parsed.tolerance,
        )
    except (BadRecordError, UnknownVersionError, WrongBytesError, ValueError, OSError) as error:
        print(f"audit: {error}", file=sys.stderr)  # noqa: T201 - a command
        return UNUSABLE
    unjudged = sum(
        span.end - span.start
        for record in records
        for span in set(record.weight_versions) - set(record.judged)
    )
    for line in table(tallies, order, unjudged=unjudged):
        print(line)  # noqa: T201 - a command
    return WRONG_LABEL if any(tally.wrong for tally in tallies.values()) else 0


def run(
    records: Sequence[Record], checkpoints: Checkpoints, recompute: Recompute, tolerance: float
) -> tuple[dict[str, Tally], list[str]]:
    """Recompute and judge all records. Each checkpoint is loaded once.

    Returns:
        Version → tally, and the versions in the order of the run.
    """
    named = [{span.weights for span in record.judged} for record in records]
    order = checkpoints.in_order(set().union(*named))
    adjacent = {version: neighbours(order, version) for version in set().union(*named)}
    needed = [versions.union(*(adjacent[v] for v in versions)) for versions in named]
    # Before any model is loaded, so that a missing checkpoint fails at once.
    sources = {v: checkpoints.source_of(v) for v in set().union(*needed)}
    results: list[dict[str, list[float]]] = [{} for _ in records]
    for version in order:
        chosen = [i for i, versions in enumerate(needed) if version in versions]
        if not chosen:
            continue
        computed = recompute(sources[version], [records[i] for i in chosen])
        for i, values in zip(chosen, computed, strict=True):
            results[i][version] = values
    tallies: dict[str, Tally] = {}
    for record, recomputed in zip(records, results, strict=True):
        judge(record, recomputed, adjacent, tallies, tolerance=tolerance)
    return tallies, order


def _records(replies: Path) -> list[Record]:
    with replies.open(encoding="utf-8") as lines:
        records = [record for record in read_records(lines) if record.token_ids]
    if not records:
        raise BadRecordError(f"{replies} has no tokens to audit")
    if not any(record.judged for record in records):
        raise BadRecordError(
            f"{replies} has only tokens that may have read keys and values of older weights "
            "(kv_from): clear the cache with each update, and record again"
        )
    return records


def _by_transformers(device: str, model: str | None) -> Recompute:
    from fleet_worker.audit.teacher import log_probabilities  # noqa: PLC0415 - imports torch

    def recompute(source: Source, records: Sequence[Record]) -> list[list[float]]:
        with only_weights(source.directory) as directory:
            return log_probabilities(
                directory,
                [(record.prompt_token_ids, record.token_ids) for record in records],
                device=device,
                adapter=source.adapter,
                model=model,
            )

    return recompute


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fleet_worker audit",
        description="Recompute which weights made which token; exits 1 on a wrong label.",
    )
    parser.add_argument("replies", help="JSON lines, see docs/reference/worker.md")
    parser.add_argument(
        "--checkpoints",
        nargs="+",
        required=True,
        metavar="[RUN/]VERSION[@DIGEST]=DIR|TEMPLATE",
        help="checkpoints in the order of the run; a template has {version} and optionally {run}",
    )
    parser.add_argument(
        "--adapters",
        nargs="+",
        default=[],
        metavar="VERSION[@DIGEST]=DIR|TEMPLATE",
        help="the same for the versions of a LoRA adapter",
    )
    parser.add_argument(
        "--against",
        metavar="MODEL",
        help="directory of the fleet's model: tensors are cast to its types first, as workers do",
    )
    parser.add_argument("--tolerance", type=float, default=_TOLERANCE, help="nats (%(default)s)")
    parser.add_argument("--device", default="cpu", help="for torch (%(default)s)")
    return parser
