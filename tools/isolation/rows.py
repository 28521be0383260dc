"""The attacks of the table, with what they cost before the limits that hold now.

A row is measured by the test that names it (marker `attack`). *Before*: a release without these limits, on the
same kind of machine, with the real API server.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One attack. `limit`: what bounds it now. `cause`: why it misses the goal, if it does."""

    attack: str
    before: str
    limit: str
    cause: str = ""


_OBJECTS = "512 KiB of an object, 16 MiB of a page"
_SPECS = "64 KiB of a spec; kopf holds texts"
_TURNS = "turns by namespace, for places and time"
_ANSWERS = "length and parts of an answer; time of a namespace"
_RL_API = "shares of the namespace"
_BUSY = (
    "The API server alone takes 4 to 10 times as long under these attacks (*server*). In a trace, most of the rest was "
    "the operator waiting for a processor: API server, operator and attackers share two."
)
_LOOP = (
    "The RL API's event loop and the attack's own clients share the two cores. With httpx's connections and a thread "
    "for each token it was 0.06 to 0.08 s ([decision 59](decisions/0059-the-rl-api-between-tenants.md)). How much "
    "of the rest is the machine's was not measured: no control without the RL API."
)
_LARGE = (
    "The API server decodes, compares and encodes such an object whole for each write, which takes a core for about "
    "0.3 s. Without an operator, as many writes as a rollout has take 1.4 to 2.4 s under the same attack, which is "
    "longer than the rollout."
)

ROWS = (
    Row(
        "a start with 40 pods of 1.3 MB",
        "operator 737 MB; each change of one ended it",
        _OBJECTS,
        _LARGE,
    ),
    Row("30 InferenceFleets of 1.2 MB", "operator 2.2 GB; rollouts 1.7-2.3 s", _SPECS, _LARGE),
    Row("a start with 30 InferenceFleets of 1.2 MB", "operator 2.2 GB", _SPECS, _LARGE),
    Row("60 InferenceFleets of 0.5 MB", "not measured", _SPECS, _LARGE),
    Row("a start with 60 InferenceFleets of 0.5 MB", "not measured", _SPECS, _LARGE),
    Row(
        "8 fleets with 480 KB of empty lists that change all the time",
        "not measured; 130 ms of the loop for each change",
        "64 KiB of a spec; time of a namespace",
        _LARGE,
    ),
    Row(
        "8 fleets with 60 KB of empty lists that change all the time",
        "not measured; 17 ms of the loop for each change",
        "time of a namespace",
        _LARGE,
    ),
    Row(
        "1,500 small fleets in 1 namespace",
        "27 s, with 300 fleets",
        _TURNS,
        _BUSY,
    ),
    Row("1,500 small fleets in 30 namespaces", "not measured", _TURNS, _BUSY),
    Row(
        "200 adapters that are published all the time",
        "3.2 s, and up to 17 s",
        "turns for changes; steps of a decision",
        _BUSY,
    ),
    Row("8 fleets that scale all the time", "1.0 s", _TURNS, _BUSY),
    Row(
        "1,500 small fleets during a load of 75 s",
        "all leases lapsed, and 3 workers were closed",
        "places for fleets with paused workers",
    ),
    Row("64 workers whose answers have 48 KB", "17-58 s, with 1 MB", _ANSWERS),
    Row("64 workers whose answers have 300 KB", "17-58 s, with 1 MB", _ANSWERS),
    Row(
        "2,000 WeightVersions of one fleet",
        "47-56 s",
        "a fleet has 128 at most, and one turn a second for the others",
        "The API server alone takes 3.3 times as long while the objects come (*server*). In samples of the operator with "
        "1,000 of them (py-spy), nearly half of the loop's time were reconciles of the tenant's fleet: one for each new "
        "WeightVersion. Now there is one in a second for all that wait, which changed this row by nothing: most of its "
        "rollouts ran while the objects came, and the operator waited for a processor.",
    ),
    Row(
        "512 connections to each port",
        "37 s to over 40 s; `/livez` without an answer",
        "32 and 64 connections, one page a second",
    ),
    Row("256 bodies that do not come", "503 for all", _RL_API, _LOOP),
    Row("128 streams and 256 waits", "503 for all", _RL_API, _LOOP),
    Row(
        "20 readers at once of a fleet of 1.2 MB",
        "1.1 s; RL API 215 MB",
        _RL_API,
        "The API server encodes the whole fleet for each read. Without the RL API, requests as those of the other "
        "tenant take 16 times as long while the fleet is read.",
    ),
    Row(
        "20 readers at once of 200 WeightVersions of 250 KB",
        "0.9 s and 499 MB, with 5 readers",
        "a table instead of a list; shares",
        _LOOP,
    ),
)
