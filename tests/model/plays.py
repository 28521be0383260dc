"""Plays: histories about one subject. A few scenes follow each other, most of them about the same worker.

A mistake about late loads needs a load that ends late, and then a request or a fault at a certain moment of it.
Independent events seldom meet so. In a play each scene waits for a moment of its subject, or for a while. Then each of
its actions happens with a chance of its own, so that two or three often meet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import TYPE_CHECKING, Any

from tests.model.fake_pods import FakePod
from tests.model.mid_work import acts_in_mid_work, rollout_in_mid_work

from fleet_worker.protocol import Phase

if TYPE_CHECKING:
    from tests.model.random_actions import RandomActions

Action = Callable[[], None]
Act = tuple[Sequence[str], Mapping[Action, float]]
"""The moments of a scene, and how likely each action is. It waits for one of them, or for a while: ""."""
Settings = dict[str, Any]


class Subject(StrEnum):
    """The subjects of plays."""

    LATE = "late work"
    BARRIERS = "barriers"
    SWAPS = "swaps without a barrier"
    CANARIES = "canaries"
    PODS = "pods"
    LEADERS = "leaders"
    FILES = "files"
    CALLS = "calls"
    ADAPTERS = "adapters"
    MID_WORK = "faults in mid-work"


SUBJECTS = (
    *(Subject.BARRIERS,) * 4,
    *(Subject.SWAPS,) * 3,
    *(Subject.LATE, Subject.CANARIES, Subject.PODS, Subject.ADAPTERS) * 2,
    *(Subject.MID_WORK,) * 3,
    *(Subject.FILES, Subject.LEADERS) * 2,
    Subject.CALLS,
)
"""How often plays are about each subject: the planner has most rules for barriers and swaps."""
LOOKS_AFTER_A_PLAY = 15
MOST_LOOKS_AFTER_A_PLAY = 60
"""While workers hold their requests: a pause ends in this time, whatever it waits for."""
SECONDS_BETWEEN_LATE_LOOKS = 8.0
_ROUNDS = (1, 2, 2, 3)
_OF_ANOTHER_SUBJECT = 0.15
"""The share of rounds that are about another subject than their play."""
_WAITS_SECONDS = (0.1, 1.0, 3.0, 10.0, 25.0, 45.0)
_PATIENCE_SECONDS = (20.0, 60.0, 60.0, 200.0)
"""After such a time a scene does not wait for its moment any longer."""
_LASTS_SECONDS = (10.0, 30.0, 100.0)
"""How long faults of plays last."""
_FAVOURS = (0.0, 0.0, 1.0, 3.0)
"""How often an action happens in a play, in comparison with its usual chance: most situations need three of them."""
_MOST_LIKELY = 0.9
_LATE_FOR_SURE = 0.3
"""The share of rounds about late work in which one load is, and its worker can then neither resume nor go back."""
_SHARES_OF_A_LIMIT = (0.5, 0.9, 1.1, 1.1, 1.4, 1.4, 2.5, 50.0, 50.0)
_LATE_STRATEGIES = (*("Synchronized",) * 5, "Rolling", "Rolling", "InFlight", "Canary")

_AT_ANY_TIME = (
    *(
        "all are paused",
        "some are paused",
        "some have loaded",
        "all have staged",
        "some have staged",
    ),
    *("a worker is loading", "a worker reads", "versions differ", "a call to load"),
    *("the version is Halted", "the version is Applied", "the version is Loading"),
    *("the odd one is loading", "the odd one is paused", "the odd one has loaded"),
    *("the odd one has staged", "the odd one has refused", "the odd one is joining", ""),
)
_BEFORE_A_LOAD = (
    *("all are paused", "a worker is loading", "some have loaded", "the odd one is loading"),
    *("a worker reads", "the odd one has staged", ""),
)
_AFTER_A_LATE_LOAD = (
    *("it is Halted and one is held", "it is Halted and one is held", "the version is Halted"),
    *("the odd one has loaded", "some have loaded", "the odd one is joining", ""),
)
_IN_A_BARRIER = (
    *("some have loaded", "some have loaded", "all are paused", "the odd one is loading"),
    *("the odd one has refused", "a call to load", "the odd one has staged", "some are paused", ""),
    *("a call to pause", "all have staged"),
)
_AFTER_A_BARRIER = (
    *(
        "some have loaded",
        "all are paused",
        "the odd one has loaded",
        "it is Halted and one is held",
    ),
    *("the odd one is joining", "the odd one has refused", "", ""),
)
_IN_SWAPS = (
    *("the odd one is loading", "versions differ", "a call to apply", "some have staged"),
    *("the odd one is joining", "the odd one has refused", "the version is Loading", ""),
)
_JUDGED = (
    *("the version is Judging", "a call to probe", "a call to fence", "the odd one is loading"),
    *("the odd one has staged", "it is Judging and one is held", ""),
)
_AFTER_A_VERDICT = (
    *("the version is Halted", "the odd one is joining", "the version is Pending"),
    *("the version is Applied", "the version is Loading", "the odd one has loaded", ""),
)
_PODS_CHANGE = (
    *("a pod drains", "a pod is gated", "the odd one is starting", "the odd one is joining"),
    *("a call to admit", "a worker is loading", "a worker is starting", "versions differ", ""),
)
_COMPARES = ("the version is Comparing", "a call to compare", "the version is Applied", "")
_ADAPTER_COMES = (
    *(
        "an adapter is staged",
        "an adapter is staged",
        "an adapter is served",
        "a worker has refused",
    ),
    *("the odd one is joining", "a worker is starting", "a call to admit", ""),
)


@dataclass(frozen=True)
class Scene:
    """One part of a play: what happens when its moment comes, or after some time if it does not come.

    `moment`: "" for none.
    """

    moment: str
    patience_seconds: float
    actions: tuple[Action, ...]


def settings_of(subject: Subject, chance: Random, rollout: Settings) -> Settings:
    """The settings of a play's rollouts. `rollout`: any."""
    is_late = subject is Subject.LATE
    short = {
        "timeouts": {
            "stageSeconds": chance.choice([10, 40, 2000, 2000] if is_late else [10, 40]),
            "pauseSeconds": chance.choice([5, 20]),
            "loadSeconds": chance.choice([10, 20, 40]),
        },
        "pause": {"drainTimeoutSeconds": chance.choice([1, 10])},
    }
    own: Settings = {}
    match subject:
        case Subject.LATE:
            own = short | {"strategy": chance.choice(_LATE_STRATEGIES)}
        case Subject.BARRIERS:
            own = short | {"strategy": chance.choice(["Synchronized"] * 3 + ["Canary"])}
        case Subject.SWAPS:
            own = short | {"strategy": chance.choice(["Rolling", "Rolling", "InFlight"])}
        case Subject.MID_WORK:
            own = short | rollout_in_mid_work(chance)
        case Subject.CANARIES if chance.random() < 0.8:
            canary = {"workers": chance.choice([1, 1, 2])}
            own = short | {"strategy": "Canary", "canary": canary}
        case Subject.CANARIES | Subject.ADAPTERS:
            own = short
        case Subject.PODS if chance.random() < 0.5:
            own = {"strategy": "Rolling", "maxUnavailable": 1}
    return rollout | own


class Plays:
    """The scenes of plays, and actions that other histories do not have. Their worker is the odd one, mostly."""

    def __init__(self, actions: RandomActions) -> None:
        self.its, self.fleet, self.brief = actions, actions.fleet, actions.brief
        self.chance = Random(f"plays of {self.fleet.seed}")  # noqa: S311 - repeatable on purpose

    def scenes_of(self, subject: Subject) -> list[Scene]:
        """The scenes of a play."""
        chance, scenes = self.chance, list[Scene]()
        favours: dict[str, float] = {}
        for _ in range(chance.choice(_ROUNDS)):
            is_other = chance.random() < _OF_ANOTHER_SUBJECT
            about = chance.choice(list(Subject)) if is_other else subject
            for moments, likely in self._acts_of(about):
                moment = chance.choice(moments)
                actions = []
                for action, often in likely.items():
                    favour = favours.setdefault(action.__name__, chance.choice(_FAVOURS))
                    if chance.random() < (
                        often if often == 1.0 else min(_MOST_LIKELY, often * favour)
                    ):
                        actions.append(action)
                chance.shuffle(actions)
                seconds = chance.choice(_PATIENCE_SECONDS if moment else _WAITS_SECONDS)
                scenes.append(Scene(moment, seconds, tuple(actions)))
        return scenes

    def _acts_of(self, subject: Subject) -> list[Act]:
        """The scenes of one round."""
        return {
            Subject.LATE: self._about_late_work,
            Subject.BARRIERS: self._about_barriers,
            Subject.SWAPS: self._about_swaps,
            Subject.CANARIES: self._about_canaries,
            Subject.PODS: self._about_pods,
            Subject.LEADERS: self._about_leaders,
            Subject.FILES: self._about_files,
            Subject.CALLS: self._about_calls,
            Subject.ADAPTERS: self._about_adapters,
            Subject.MID_WORK: lambda: acts_in_mid_work(self),
        }[subject]()

    def _about_late_work(self) -> list[Act]:
        its, brief = self.its, self.brief
        first = {
            its.publish_now: 1.0,
            self.overrun: 0.6,
            self.read_slowly: 0.2,
            brief.break_engine: 0.25,
            self.refuse_loads: 0.25,
            brief.spoil: 0.15,
            its.kill: 0.2,
            self.hide_applied: 0.2,
            its.break_version: 0.15,
        }
        during = {
            its.publish_now: 0.3,
            its.change_strategy: 0.2,
            brief.suspend: 0.1,
            self.change_leaders: 0.15,
            its.kill: 0.1,
            self.publish_without_files: 0.2,
            self.hide_applied: 0.2,
            its.retry: 0.1,
            brief.cut_off: 0.1,
            self.change_to_barrier: 0.2,
            self.rewrite_both: 0.1,
        }
        after = {
            its.publish_now: 0.5,
            self.read_slowly: 0.5,
            self.hide_applied: 0.3,
            its.change_strategy: 0.25,
            its.retry: 0.2,
            brief.suspend: 0.1,
            brief.change_roots: 0.15,
            self.change_leaders: 0.15,
            self.overrun: 0.2,
            brief.hang: 0.1,
            self.publish_without_files: 0.1,
        }
        if self.chance.random() < _LATE_FOR_SURE:
            late = {its.publish_now: 1.0, self.overrun: 1.0}
            return [([""], late), (["it is Halted and one is held"], {self.strand: 1.0})]
        return [([""], first), (_BEFORE_A_LOAD, during), (_AFTER_A_LATE_LOAD, after)]

    def _about_barriers(self) -> list[Act]:
        its, brief = self.its, self.brief
        first = {
            its.publish_now: 1.0,
            self.refuse_loads_for_long: 0.3,
            self.overrun: 0.3,
            self.break_for_long: 0.3,
            its.be_uneven: 0.2,
            its.get_ahead: 0.15,
            brief.spoil: 0.15,
            self.delay_pause: 0.2,
        }
        during = {
            its.publish_now: 0.5,
            self.publish_without_files: 0.3,
            self.hide_applied: 0.3,
            self.change_leaders: 0.3,
            self.change_to_mixing: 0.2,
            self.refuse_statuses_for_long: 0.2,
            self.go_back_to_applied: 0.2,
            its.kill: 0.2,
            brief.cut_off: 0.1,
            self.look_away: 0.15,
            self.see_late: 0.1,
            self.end_leader: 0.1,
            self.join_and_break: 0.2,
            self.lose_answers: 0.1,
        }
        after = {
            its.publish_now: 0.3,
            self.obey: 0.35,
            self.read_slowly: 0.35,
            self.hide_applied: 0.2,
            its.change_strategy: 0.15,
            its.retry: 0.1,
            brief.cut_off: 0.15,
            self.end_leader: 0.2,
            self.go_back_to_applied: 0.1,
            self.change_to_mixing: 0.15,
        }
        return [([""], first), (_IN_A_BARRIER, during), (_AFTER_A_BARRIER, after)]

    def _about_swaps(self) -> list[Act]:
        its, brief = self.its, self.brief
        first = {
            its.publish_now: 1.0,
            self.be_slow: 0.3,
            self.be_all_slow: 0.3,
            self.break_for_long: 0.3,
            its.get_ahead: 0.25,
            its.be_uneven: 0.2,
            self.join_and_break: 0.2,
            self.lose_applied: 0.2,
            its.queue_up: 0.15,
            brief.disobey: 0.1,
        }
        during = {
            self.change_to_barrier: 0.3,
            self.go_back_to_applied: 0.35,
            self.see_late: 0.25,
            self.look_away: 0.2,
            its.publish_now: 0.25,
            self.change_leaders: 0.15,
            self.lose_applied: 0.2,
            self.rewrite_both: 0.15,
            its.kill: 0.2,
            self.refuse_statuses_for_long: 0.15,
            its.delete_pod: 0.15,
            self.end_leader: 0.2,
        }
        after = {
            its.change_strategy: 0.2,
            self.change_to_barrier: 0.2,
            its.retry: 0.15,
            its.publish_now: 0.3,
            self.obey: 0.2,
            self.go_back_to_applied: 0.2,
            brief.hang: 0.15,
            its.kill: 0.2,
            self.look_away: 0.2,
            self.see_late: 0.2,
        }
        return [([""], first), (_IN_SWAPS, during), (_IN_SWAPS, after)]

    def _about_canaries(self) -> list[Act]:
        its, brief = self.its, self.brief
        first = {
            its.publish_now: 1.0,
            self.hide_applied: 0.3,
            self.die_at_each_load: 0.25,
            its.kill: 0.2,
            brief.lose_files: 0.2,
            self.overrun: 0.15,
            brief.hang: 0.15,
            self.lose_baseline: 0.3,
        }
        during = {
            self.be_all_away: 0.25,
            brief.hang: 0.25,
            its.kill: 0.25,
            brief.delay: 0.2,
            brief.die_soon: 0.2,
            brief.suspend: 0.15,
            its.change_strategy: 0.1,
            its.publish_now: 0.15,
            brief.break_engine: 0.2,
            brief.linger: 0.2,
        }
        after = {
            its.publish_now: 0.4,
            its.retry: 0.2,
            self.hide_applied: 0.2,
            its.change_strategy: 0.3,
            its.kill: 0.3,
            brief.change_roots: 0.1,
        }
        return [([""], first), (_JUDGED, during), (_AFTER_A_VERDICT, after)]

    def _about_pods(self) -> list[Act]:
        its, brief = self.its, self.brief
        first = {
            its.change_template: 0.6,
            its.scale: 0.5,
            its.publish_now: 0.5,
            its.queue_up: 0.4,
            brief.hold_pods: 0.2,
            brief.refuse_templates: 0.15,
            self.scale_down_next_to_silence: 0.3,
            self.change_to_refused_template: 0.25,
        }
        then = {
            its.scale: 0.4,
            self.scale_down: 0.4,
            self.scale_down_next_to_silence: 0.3,
            brief.hang: 0.3,
            its.change_template: 0.3,
            its.kill: 0.2,
            its.delete_pod: 0.2,
            its.gate: 0.3,
            its.publish_now: 0.4,
            its.queue_up: 0.3,
            brief.cut_off: 0.2,
            brief.linger: 0.2,
            brief.ask_for_long: 0.3,
        }
        return [([""], first), (_PODS_CHANGE, then), (_PODS_CHANGE, then)]

    def _about_leaders(self) -> list[Act]:
        its, brief = self.its, self.brief
        first = {
            its.publish_now: 1.0,
            brief.delay: 0.4,
            brief.die_soon: 0.4,
            brief.freeze: 0.2,
            brief.refuse_statuses: 0.2,
        }
        then = {
            its.publish_now: 0.4,
            its.go_back_now: 0.2,
            brief.lose_answer: 0.4,
            brief.delay: 0.4,
            brief.die_soon: 0.4,
            brief.freeze: 0.3,
            its.kill: 0.2,
            its.wake_former: 0.3,
            brief.refuse_statuses: 0.2,
            its.set_clock: 0.1,
            its.pause_machine: 0.15,
            its.be_away: 0.15,
            its.create_again: 0.1,
            its.delete_lease: 0.05,
            self.overrun: 0.2,
            its.change_strategy: 0.2,
            its.kill_all: 0.15,
            self.lose_answers: 0.15,
        }
        stores = {self.be_overtaken: 0.6, its.kill_all: 0.4, self.change_to_mixing: 0.2}
        applied = ["the applied version is to be stored"], stores
        return [([""], first), applied, (_AT_ANY_TIME, then), (_AT_ANY_TIME, then)]

    def _about_files(self) -> list[Act]:
        its, brief = self.its, self.brief
        first = {its.publish_now: 0.7, its.begin_run: 0.2, its.go_back_now: 0.2}
        again = {
            its.create_again: 0.3,
            self.rewrite_and_create_again: 0.4,
            its.name_other_path: 0.2,
            brief.refuse_statuses: 0.2,
            brief.delay: 0.3,
            self.roll_back_and_create_again: 0.15,
        }
        then = {
            self.rewrite_and_create_again: 0.4,
            its.kill: 0.2,
            brief.lose_answer: 0.3,
            its.edit_source: 0.2,
            brief.die_soon: 0.2,
            its.add_digest: 0.2,
            its.restart_on_rewritten: 0.15,
            its.rewrite: 0.2,
            its.retry: 0.1,
            its.return_to_other_files: 0.15,
            its.roll_back_operator: 0.1,
        }
        return [([""], first), (["the version is Applied"], again), (_COMPARES, then)]

    def _about_calls(self) -> list[Act]:
        its, brief = self.its, self.brief
        first = {
            its.publish_now: 1.0,
            brief.disobey: 0.5,
            its.lie: 0.2,
            its.get_ahead: 0.3,
            brief.spoil: 0.3,
            brief.break_engine: 0.3,
            brief.drive_by_hand: 0.1,
        }
        then = {
            its.go_back_now: 0.3,
            its.publish_now: 0.3,
            its.change_strategy: 0.2,
            self.overrun: 0.3,
            brief.take_address: 0.2,
            brief.cut_off: 0.3,
            brief.hang: 0.2,
            its.kill: 0.2,
            brief.disobey: 0.3,
            its.garble: 0.1,
        }
        return [([""], first), (_AT_ANY_TIME, then), (_AT_ANY_TIME, then)]

    def _about_adapters(self) -> list[Act]:
        adapters, brief = self.its.adapters, self.brief
        first = {
            adapters.publish: 0.8,
            adapters.publish_both_spoilt: 0.2,
            brief.refuse_statuses: 0.4,
            adapters.crowd: 0.3,
            adapters.change_slots: 0.2,
            adapters.name_like_model: 0.3,
        }
        then = {
            adapters.publish: 0.4,
            adapters.delete: 0.3,
            adapters.return_to_served: 0.3,
            adapters.restart_on_unfinished: 0.3,
            self.its.kill: 0.3,
            adapters.use_slots: 0.2,
            adapters.rewrite_and_create_again: 0.3,
            adapters.drive_by_hand: 0.3,
            adapters.name_digest: 0.3,
            adapters.fail_in_engine: 0.2,
            adapters.leave_unfinished: 0.2,
            adapters.change_slots: 0.2,
            adapters.name_usual_path: 0.5,
        }
        return [([""], first), (_ADAPTER_COMES, then), (_ADAPTER_COMES, then)]

    # --- actions ------------------------------------------------------------------------------------

    def overrun(self) -> None:
        """The next load of the odd one lasts about as long as it may, or longer, or does not end."""
        if pod := self._odd():
            limit_seconds = self.fleet.promises.rollout.timeouts.load_seconds
            self._linger(pod, "load", self.chance.choice(_SHARES_OF_A_LIMIT) * limit_seconds)

    def change_to_refused_template(self) -> None:
        """The template changes while the API server refuses to record it, for a while."""
        self.brief.refuse_templates()
        self.its.change_template()

    def scale_down(self) -> None:
        """The fleet gets one replica less, while workers may start or have just opened."""
        if self.fleet.replicas > 1:
            self.fleet.scale(self.fleet.replicas - 1)

    def scale_down_next_to_silence(self) -> None:
        """The odd one hangs, and the fleet gets one replica less when it may have left the Service."""
        if pod := self._odd():
            self.fleet.hang(pod)
            seconds = self.chance.choice([5.0, 15.0, 25.0])
            self.brief.later.append((self.fleet.now + seconds, self.scale_down))
            self._after(lambda: self.fleet.hang(pod, hung=False))

    def read_slowly(self, seconds: Sequence[float] = (5.0, 30.0, 100.0, 300.0)) -> None:
        """Another worker reads the next version for long."""
        odd = self._odd()
        others = [p for p in self.fleet.pods.values() if p is not odd and p.deleted_at is None]
        if others:
            self._linger(self.chance.choice(others), "stage", self.chance.choice(seconds))

    def delay_pause(self) -> None:
        """The next pause comes to the odd one late."""
        if pod := self._odd():
            seconds = self.chance.choice([5.0, 20.0, 50.0])
            self.fleet.note("fault", f"the next pause comes to {pod.name} {seconds:.0f} s late")
            pod.delays, pod.suspect = ("pause", seconds), True

    def be_all_slow(self) -> None:
        """Loads of all workers take a large part of the time that they may take."""
        limit_seconds = self.fleet.promises.rollout.timeouts.load_seconds
        for pod in self.fleet.pods.values():
            pod.worker.slow_seconds = self.chance.choice([0.3, 0.5, 0.7]) * limit_seconds
        self.fleet.note("fault", "workers are slow")

    def _linger(self, pod: FakePod, step: str, seconds: float) -> None:
        self.fleet.note("fault", f"the next {step} of {pod.name} takes {seconds:.0f} s longer")
        pod.worker.lingers, pod.suspect = (step, seconds), True

    def refuse_loads(self) -> None:
        """The odd one refuses to load, for a while."""
        if pod := self._odd():
            self.fleet.reject(pod, "load")
            self._after(lambda: self.fleet.obey(pod))

    def hide_applied(self) -> None:
        """The odd one, or no worker, can read the applied weights for a while. So it cannot go back."""
        applied, odd = self.fleet.leader.fleet.applied, self._odd()
        if applied is None or odd is None:
            return
        pods = list(self.fleet.pods.values()) if self.chance.random() < 0.5 else [odd]
        path = str(applied.source)
        self.fleet.spoil_path(path, *pods)

        def repair() -> None:
            for pod in pods:
                pod.worker.bad_sources.discard(path)

        self._after(repair)

    def strand(self) -> None:
        """The odd one cannot read the applied weights for long, and another worker reads the next version for long."""
        applied, odd = self.fleet.leader.fleet.applied, self._odd()
        if applied is not None and odd is not None:
            odd.worker.bad_sources.add(path := str(applied.source))
            later = self.fleet.now + 300.0, lambda: odd.worker.bad_sources.discard(path)
            self.brief.later.append(later)
            self.its.publish_now()
            self.read_slowly((300.0,))

    def lose_baseline(self) -> None:
        """Other files lie under the path of the applied weights. All workers but one restart on them, and that one
        hangs.
        """
        applied, odd = self.fleet.leader.fleet.applied, self._odd()
        if applied is None or odd is None or self.fleet.is_rewritten(path := str(applied.source)):
            return
        self.fleet.rewrite(path)
        for pod in list(self.fleet.pods.values()):
            if pod is not odd and pod.deleted_at is None:
                self.fleet.kill(pod)
        self.fleet.hang(odd)
        self._after(lambda: self.fleet.hang(odd, hung=False))
        self._after(lambda: self.fleet.restore(path))

    def die_at_each_load(self) -> None:
        """The odd one dies whenever it loads, for a while."""
        if (pod := self._odd()) is None:
            return

        def look(left: int = 150) -> None:
            pod.worker.lingers, pod.suspect = ("load", 30.0 if left else 0.0), True
            if pod.worker.phase is Phase.LOADING:
                self.fleet.kill(pod, back_after_seconds=self.chance.choice([1.0, 20.0]))
            if left:
                self.brief.later.append((self.fleet.now + 0.5, lambda: look(left - 1)))

        look()

    def be_all_away(self) -> None:
        """All processes end at once, and are away for long."""
        seconds = self.chance.choice([20.0, 120.0])
        for pod in list(self.fleet.pods.values()):
            if pod.deleted_at is None:
                self.fleet.kill(pod, back_after_seconds=seconds)

    def change_leaders(self) -> None:
        """A leader ends, and the next ones end after half a minute each."""

        def change(left: int) -> None:
            self.fleet.note("fault", "the operator ends")
            self.fleet.start_operator()
            if left:
                seconds = self.chance.choice([10.0, 35.0])
                self.brief.later.append((self.fleet.now + seconds, lambda: change(left - 1)))

        change(self.chance.choice([0, 6, 6]))

    def end_leader(self) -> None:
        """A leader ends, and the next one knows of no call that it has made."""
        self.fleet.note("fault", "the operator ends")
        self.fleet.start_operator()

    def see_late(self) -> None:
        """The leader sees answers of workers late, for a while."""
        self.fleet.note("fault", "answers come late")
        self.fleet.faults.stale_view = 1.0
        seconds = self.chance.choice([0.5, 2.0, 5.0])
        later = self.fleet.now + seconds, lambda: setattr(self.fleet.faults, "stale_view", 0.0)
        self.brief.later.append(later)

    def look_away(self) -> None:
        """The operator does not look for as long as pauses can wait for it, and then it may see old answers first."""
        self.fleet.tick(self.chance.choice([10.0, 19.0]))
        if self.chance.random() < 0.5:
            self.see_late()

    def change_leader_and_look_away(self) -> None:
        """The next leader sees each worker once. Then it does not look for long, and sees the old answers first."""
        self.end_leader()

        def look_away() -> None:
            self.fleet.tick(self.chance.choice([10.0, 19.0]))
            self.see_late()

        self.brief.later.append((self.fleet.now + 0.5, look_away))

    def be_overtaken(self) -> None:
        """The leader freezes, and does what it has decided when the next one has just read the status."""
        former = self.fleet.leader
        self.fleet.freeze_operator()
        for _ in range(len(former.todo) + 1):
            if former in self.fleet.former_leaders:
                self.fleet.wake_former(former)

    def lose_answers(self) -> None:
        """All answers get lost, for a while: those to calls, and mostly those to looks."""
        self.fleet.note("fault", "answers get lost")
        self.fleet.faults.answer_lost = 1.0
        seconds = self.chance.choice([1.0, 5.0, 15.0])
        if self.chance.random() < 0.7:
            self.see_late()
        later = self.fleet.now + seconds, lambda: setattr(self.fleet.faults, "answer_lost", 0.0)
        self.brief.later.append(later)

    def refuse_statuses_for_long(self) -> None:
        """No status can be written for longer than a rollout may take."""
        self.fleet.note("cluster", "refuses statuses")
        self.fleet.faults.status_unwritten = 1.0

        def take() -> None:
            self.fleet.faults.status_unwritten = 0.0
            self.fleet.note("cluster", "takes statuses")

        self.brief.later.append((self.fleet.now + 150.0, take))

    def refuse_loads_for_long(self) -> None:
        """The odd one refuses to load, until it obeys again."""
        if pod := self._odd():
            self.fleet.reject(pod, "load")

    def break_for_long(self) -> None:
        """The engine of the odd one breaks whenever it loads the version or the next one."""
        if pod := self._odd():
            for version in (self.fleet.version, self.brief.following()):
                self.fleet.will_break(version, pod)

    def join_and_break(self) -> None:
        """The odd one restarts, and its engine breaks when it loads the next version."""
        if pod := self._odd():
            self.break_for_long()
            self.fleet.kill(pod)

    def obey(self) -> None:
        """All workers obey, and their engines are repaired."""
        for pod in self.fleet.pods.values():
            self.fleet.obey(pod)
            pod.worker.breaking_versions.clear()

    def be_slow(self) -> None:
        """The next swap of the odd one takes a large part of the time that it may take."""
        if pod := self._odd():
            limit_seconds = self.fleet.promises.rollout.timeouts.load_seconds
            self._linger(pod, "load", self.chance.choice([0.4, 0.6, 0.8]) * limit_seconds)

    def go_back_to_applied(self) -> None:
        """The trainer asks again for what the fleet serves."""
        applied, spec = self.fleet.leader.fleet.applied, self.fleet.desired.base_spec
        if applied is None or spec is None or applied.version in self.fleet.odd_versions:
            return
        fields = {"version": applied.version, "rollbackTo": applied.version}
        fields |= {"runID": applied.run_id, "digest": None}
        self.fleet.ask("trainer", f"goes back to {applied.version}", fields)

    def lose_applied(self) -> None:
        """Other files lie under the path of the applied weights, and the odd one restarts on them."""
        applied, odd = self.fleet.leader.fleet.applied, self._odd()
        if applied is None or odd is None or self.fleet.is_rewritten(path := str(applied.source)):
            return
        self.fleet.rewrite(path)
        self.fleet.kill(odd)
        self._after(lambda: self.fleet.restore(path))

    def change_to_mixing(self) -> None:
        """From now on versions may mix."""
        if not self.its.is_deleted:
            self.fleet.odd_versions.clear()
            self.fleet.control(rollout={"strategy": self.chance.choice(["Rolling", "InFlight"])})

    def change_to_barrier(self) -> None:
        """From now on versions must not mix."""
        if not self.its.is_deleted:
            self.fleet.odd_versions.clear()  # no canary judged all of them
            self.fleet.control(rollout={"strategy": "Synchronized"})

    def change_to_barrier_unseen(self) -> None:
        """The same, while the leader knows of its last calls, but sees no answer."""
        self.see_late()
        self.change_to_barrier()

    def suspend_under_canaries(self) -> None:
        """From now on canaries judge, and the version is suspended for a while."""
        if not self.its.is_deleted:
            self.fleet.odd_versions.clear()  # no canary judged all of them
            self.fleet.control(rollout={"strategy": "Canary"})
            self.brief.suspend()

    def publish_without_files(self) -> None:
        """The trainer publishes a version, and writes its files later."""
        self.its.publish_now()
        self.brief.publish_early()

    def rewrite_both(self) -> None:
        """The files of the applied and of the desired version are written over."""
        applied, spec = self.fleet.leader.fleet.applied, self.fleet.desired.base_spec
        paths = {str(applied.source)} if applied is not None else set[str]()
        paths |= {str(spec.source.resolve(spec.version))} if spec is not None else set()
        for path in sorted(paths):
            if not self.fleet.is_rewritten(path):
                self.fleet.rewrite(path)

    def rewrite_and_create_again(self) -> None:
        """The files of what the fleet serves are written over, and then its WeightVersion is created again."""
        applied = self.fleet.leader.fleet.applied
        if applied is not None and not self.fleet.is_rewritten(path := str(applied.source)):
            self.fleet.rewrite(path)
        self.its.create_again()

    def roll_back_and_create_again(self) -> None:
        """The same while an operator leads that cannot read all pins. The later one comes back after it."""
        self.fleet.roll_back_operator(self.chance)
        self.rewrite_and_create_again()
        self._after(self.fleet.update_operator)

    def _after(self, what: Action) -> None:
        self.brief.later.append((self.fleet.now + self.chance.choice(_LASTS_SECONDS), what))

    def _odd(self) -> FakePod | None:
        return self.its.odd.some_pod(self.chance)
