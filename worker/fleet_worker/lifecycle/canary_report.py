"""Judge a version by canary prompts: finite numbers, repetition, distance from a baseline.

The baseline is a run of the same prompts on the weights that clients get. The new weights score the tokens
that the baseline sampled, and the two distributions are compared at each position.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fleet_worker.engine.records import Position
from fleet_worker.protocol import ProbeReport

_GRAM = 4

WeightsName = tuple[str, str | None, str | None]
"""Version, run and digest."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """Continuation of one prompt by a version."""

    prompt: tuple[int, ...]
    positions: tuple[Position, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        """Ids of the continuation."""
        return tuple(position.token for position in self.positions)


@dataclass(frozen=True, slots=True)
class Run:
    """All continuations of one version."""

    version: str
    continuations: tuple[Continuation, ...]
    run_id: str | None = None
    digest: str | None = None

    @property
    def weights(self) -> WeightsName:
        """Version, run and digest: two runs may use the same numbers."""
        return self.version, self.run_id, self.digest

    def is_on(self, weights: WeightsName) -> bool:
        """Whether the weights are these, as far as their digests are known."""
        version, run_id, digest = weights
        known = self.digest is not None and digest is not None
        return (self.version, self.run_id) == (version, run_id) and (
            not known or self.digest == digest
        )


class History:
    """The last run of the prompts, and its baseline.

    Fields:
        report: the result of the last run.
    """

    def __init__(self) -> None:
        self.report: ProbeReport | None = None
        self._runs: tuple[Run, ...] = ()

    def note(self, run: Run, compare_with: WeightsName | None = None) -> Run | None:
        """Note a new run.

        The weights before it may be ones that a canary has refused. So the operator names the weights
        that clients get, and their run is kept for as long as it does.

        Args:
            run: The new run.
            compare_with: The weights of the baseline. An operator of an earlier release names none.

        Returns:
            The last run on these weights, or without a name on other weights than those of the new
            run. None without one.
        """
        kept = (k for k in reversed(self._runs) if k.weights != run.weights)
        baseline = next((k for k in kept if compare_with is None or k.is_on(compare_with)), None)
        self._runs = (run,) if baseline is None else (baseline, run)
        return baseline


Scores = Sequence[Sequence[Position]]
"""Positions of a baseline's continuations, scored by the new version."""


def report(run: Run, baseline: Run | None, scores: Scores) -> ProbeReport:
    """Return the report on a run.

    Args:
        run: The run of the version to judge.
        baseline: The run to compare it with, if there is one.
        scores: The baseline's continuations, scored by the version to judge. Empty without a
            baseline.
    """
    pairs = []
    if baseline is not None:
        for continuation, scored in zip(baseline.continuations, scores, strict=True):
            pairs += list(zip(continuation.positions, scored, strict=True))
    seen = [p for c in run.continuations for p in c.positions] + [new for _, new in pairs]
    comparable = [(old, new) for old, new in pairs if _is_finite(old) and _is_finite(new)]
    return ProbeReport(
        version=run.version,
        run_id=run.run_id,
        digest=run.digest,
        compared_with=baseline.version if baseline is not None else None,
        compared_with_run_id=baseline.run_id if baseline is not None else None,
        compared_with_digest=baseline.digest if baseline is not None else None,
        finite=all(_is_finite(position) for position in seen),
        repetition=max((repetition(c.tokens) for c in run.continuations), default=0.0),
        logprob_drift=_mean([abs(old.logprob - new.logprob) for old, new in comparable]),
        kl=_mean([divergence(old, new) for old, new in comparable]),
        tokens=len(comparable),
    )


def repetition(tokens: Sequence[int]) -> float:
    """Return the share of the most frequent 4-gram of a text, or 0 if none occurs twice."""
    grams = [tuple(tokens[start : start + _GRAM]) for start in range(len(tokens) - _GRAM + 1)]
    if not grams:
        return 0.0
    count = Counter(grams).most_common(1)[0][1]
    return count / len(grams) if count > 1 else 0.0


def divergence(old: Position, new: Position) -> float:
    """Return the Kullback-Leibler divergence of `new` from `old`, in nats.

    It covers the tokens that both know, and all others as one token. It is never more than the
    divergence over the whole vocabulary, and is 0 only if these probabilities agree.
    """
    tokens = sorted(old.known.keys() & new.known.keys())
    ps = [math.exp(old.known[token]) for token in tokens]
    qs = [math.exp(new.known[token]) for token in tokens]
    ps.append(max(0.0, 1 - sum(ps)))
    qs.append(max(0.0, 1 - sum(qs)))
    # A probability near 0 may round to 0, which would give an infinite quotient.
    least = 1e-12
    terms = (p * math.log(max(p, least) / max(q, least)) for p, q in zip(ps, qs, strict=True))
    return max(0.0, sum(terms))


def _is_finite(position: Position) -> bool:
    # Tokens that cannot be sampled may have probability 0, but not the sampled token.
    not_numbers = any(math.isnan(value) for value in position.known.values())
    return math.isfinite(position.logprob) and not not_numbers


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
