"""Stories of fleets whose clients have sessions."""

from __future__ import annotations

from tests.model.chronicle import Chronicle


def workers_with_different_numbers_of_sessions() -> Chronicle:
    """A rolling rollout goes by fewest sessions, also if they change between two swaps"""
    its = Chronicle(rollout={"strategy": "Rolling", "maxUnavailable": 1})
    for ordinal, sessions in enumerate((7, 2, 5)):
        its.fleet.pod(ordinal).worker.sessions = sessions
    its.fleet.publish("2")
    its.until(lambda: its.fleet.serving.count("2") == 1)
    its.fleet.note("clients", "begin five sessions on policy-2")
    its.fleet.pod(2).worker.sessions = 10
    return its.end()
