"""Judge a version by canary prompts: finite numbers, repetition, distance from a baseline.

The baseline is what the weights that clients get answer to the same prompts. The new weights score
the tokens that the baseline sampled, and the two distributions are compared at each position.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fleet_worker.engine.records import Position
from fleet_worker.protocol import PromptsReport

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
class Answers:
    """The answers of one set of weights to the prompts."""

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
    """The last answers, and their baseline.

    Fields:
        report: the report on the last answers.
    """

    def __init__(self) -> None:
        self.report: PromptsReport | None = None
        self._kept: tuple[Answers, ...] = ()

    def note(self, answers: Answers, compare_with: WeightsName) -> Answers | None:
        """Note new answers.

        The weights before it may be ones that a canary has refused. So the operator names the weights
        that clients get, and their answers are kept for as long as it does.

        Args:
            answers: The new answers.
            compare_with: The weights of the baseline.

        Returns:
            The last answers of these weights. None without any.
        """
        kept = (k for k in reversed(self._kept) if k.weights != answers.weights)
        baseline = next((k for k in kept if k.is_on(compare_with)), None)
        self._kept = (answers,) if baseline is None else (baseline, answers)
        return baseline

    def note_loaded(self, weights: WeightsName) -> None:
        """Forget the report if it is about other weights with the same version and run."""
        if self.report is None:
            return
        *name, digest = weights
        alike = [self.report.version, self.report.run_id] == name
        if alike and (digest is None or digest != self.report.digest):
            self.report = None


Scores = Sequence[Sequence[Position]]
"""Positions of a baseline's continuations, scored by the new version."""


def report(answers: Answers, baseline: Answers | None, scores: Scores) -> PromptsReport:
    """Return the report on answers of the version to judge.

    `scores`: the baseline's continuations, scored by that version; empty without a baseline.
    """
    pairs = []
    if baseline is not None:
        for continuation, scored in zip(baseline.continuations, scores, strict=True):
            pairs += list(zip(continuation.positions, scored, strict=True))
    seen = [p for c in answers.continuations for p in c.positions] + [new for _, new in pairs]
    comparable = [(old, new) for old, new in pairs if _is_finite(old) and _is_finite(new)]
    return PromptsReport(
        version=answers.version,
        run_id=answers.run_id,
        digest=answers.digest,
        compared_with=baseline.version if baseline is not None else None,
        compared_with_run_id=baseline.run_id if baseline is not None else None,
        compared_with_digest=baseline.digest if baseline is not None else None,
        finite=all(_is_finite(position) for position in seen),
        repetition=max((repetition(c.tokens) for c in answers.continuations), default=0.0),
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
