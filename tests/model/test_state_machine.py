"""The same simulation in Hypothesis' hands: it looks for a history that breaks a promise, and tells
the shortest one that it finds.

Rules are the actions of trainers and users, faults, and the operator's steps one by one. The
simulation checks the promises after every step. At the end a history must come to a good end
and rest.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.model.fake_worker import ALL
from tests.model.faults import Faults
from tests.model.random_actions import KINDS
from tests.model.simulator import NODES, Simulation
from tests.model.swarm import UPDATES, random_rollout

HISTORIES = int(os.environ.get("HISTORIES", "60"))
ORDINALS = st.integers(0, 3)
VERSIONS = st.integers(1, 6).map(str)
SLOW_SECONDS = [0.0, 2.0]
ROLLOUTS = st.randoms().map(lambda chance: random_rollout(chance, max(SLOW_SECONDS)))


class FleetMachine(RuleBasedStateMachine):
    """One fleet."""

    @initialize(
        rollout=ROLLOUTS,
        replicas=st.integers(1, 3),
        slow_seconds=st.sampled_from(SLOW_SECONDS),
        update=st.sampled_from(UPDATES),
    )
    def a_fleet_is_there(self, rollout, replicas, slow_seconds, update):
        self.fleet = Simulation(
            seed=0, replicas=replicas, rollout=rollout, slow_seconds=slow_seconds, update=update
        )
        self.fleet.shuffles = False
        self.fleet.settle()
        self.fleet.log.clear()

    # --- operators --------------------------------------------------------------------------------

    @rule(times=st.integers(1, 4))
    def the_operator_works(self, times):
        for _ in range(times):
            self.fleet.reconcile()
            self.fleet.tick(0.1)

    @rule(after=st.integers(0, 6))
    def the_operator_dies_in_the_middle(self, after):
        self.fleet.faults = Faults(operator_dies_after=after)
        self.fleet.reconcile()
        self.fleet.faults = Faults()

    @rule(after=st.integers(0, 4))
    def the_operator_freezes_in_the_middle(self, after):
        leader = self.fleet.leader
        self.fleet.decide()
        for _ in range(min(after, len(leader.todo))):
            self.fleet.act()
        self.fleet.freeze_operator()

    @precondition(lambda self: self.fleet.former_leaders)
    @rule(actions=st.integers(1, 4))
    def a_former_leader_goes_on(self, actions):
        for _ in range(actions):
            if self.fleet.former_leaders:
                self.fleet.wake_former(self.fleet.former_leaders[0])

    @rule(fault=st.sampled_from(["answer_lost", "call_lost", "api_refuses", "status_unwritten"]))
    def the_operator_works_on_a_bad_wire(self, fault):
        self.fleet.faults = Faults(**{fault: 1.0})
        self.fleet.reconcile()
        self.fleet.faults = Faults()

    @rule(seconds=st.sampled_from([0.0, 2.0, 12.0]))
    def watches_are_late(self, seconds):
        self.fleet.lag_seconds = seconds

    @rule(seconds=st.sampled_from([1.0, 5.0, 12.0, 35.0, 120.0]))
    def time_passes(self, seconds):
        self.fleet.tick(seconds)

    # --- trainers and users -------------------------------------------------------------------------

    @rule(version=VERSIONS)
    def the_trainer_publishes(self, version):
        self.fleet.publish(version)

    @rule(version=VERSIONS, run=st.sampled_from([None, "run"]), back=st.booleans())
    def the_trainer_publishes_in_a_run(self, version, run, back):
        fields = {"version": version, "runID": run, "rollbackTo": version if back else None}
        self.fleet.ask("trainer", f"asks for {fields}", fields)

    @rule(version=VERSIONS)
    def the_trainer_publishes_an_adapter(self, version):
        self.fleet.publish_adapter("lora", version)

    @rule(suspend=st.booleans())
    def a_user_suspends(self, suspend):
        self.fleet.control(suspend=suspend)

    @rule()
    def a_user_asks_to_try_again(self):
        self.fleet.retry(f"at {self.fleet.now}")

    @rule(replicas=st.integers(0, 4))
    def a_user_scales(self, replicas):
        self.fleet.scale(replicas)

    @rule(number=st.integers(1, 3))
    def a_user_changes_the_template(self, number):
        self.fleet.change_fleet(f"changes the template ({number})", engine={"args": [f"-{number}"]})

    @rule(strategy=st.sampled_from(["Synchronized", "InFlight", "Rolling"]))
    def a_user_changes_the_strategy(self, strategy):
        self.fleet.control(rollout={"strategy": strategy})

    # --- workers and nodes ------------------------------------------------------------------------

    @rule(
        ordinal=ORDINALS,
        action=st.sampled_from(["kill", "hang", "continues", "cut off", "reached"]),
    )
    def a_worker_is_lost_or_found(self, ordinal, action):
        for pod in self._pods(ordinal):
            if action == "kill":
                self.fleet.kill(pod)
            elif action in {"hang", "continues"}:
                self.fleet.hang(pod, hung=action == "hang")
            else:
                self.fleet.cut_off(pod, cut=action == "cut off")

    @rule(ordinal=ORDINALS, version=VERSIONS, action=st.sampled_from(["breaks", "refuses"]))
    def a_version_is_bad_for_a_worker(self, ordinal, version, action):
        for pod in self._pods(ordinal):
            if action == "breaks":
                self.fleet.will_break(version, pod)
            else:
                self.fleet.spoil(version, pod)

    @rule(
        ordinal=ORDINALS,
        lie=st.sampled_from(["obeys", "ignores", "claims", "refuses", "resets"]),
        kind=st.sampled_from([*KINDS, ALL]),
    )
    def a_worker_does_not_follow_calls(self, ordinal, lie, kind):
        for pod in self._pods(ordinal):
            match lie:
                case "obeys":
                    self.fleet.obey(pod)
                case "ignores":
                    self.fleet.ignore(pod, kind)
                case "claims":
                    self.fleet.ignore(pod, "load", "apply", claims=True)
                case "refuses":
                    self.fleet.reject(pod, kind)
                case _:
                    self.fleet.reset(pod, kind)

    @rule(ordinal=ORDINALS, action=st.sampled_from(["evicted", "deleted", "orphaned", "crashing"]))
    def a_pod_is_lost(self, ordinal, action):
        for pod in self._pods(ordinal):
            if action == "evicted":
                self.fleet.evict(pod)
            elif action == "deleted":
                self.fleet.delete(pod)
            elif action == "orphaned":
                pod.owner = ""
            else:
                self.fleet.crash_loop(pod, over=bool(pod.problem))

    @rule(node=st.sampled_from(NODES), power=st.booleans())
    def a_node_is_lost_or_found(self, node, power):
        if self.fleet.nodes[node] is None:
            self.fleet.lose_node(node, power=power)
        else:
            self.fleet.return_node(node)

    # --- what must hold ---------------------------------------------------------------------------

    @invariant()
    def every_promise_holds(self):
        if hasattr(self, "fleet"):
            self.fleet.check()

    def teardown(self):
        if not hasattr(self, "fleet"):
            return
        self.fleet.settle_or_say()
        if self.fleet.converged():
            assert self.fleet.run_quietly() == 0, f"promise 7\n{self.fleet.story()}"

    def _pods(self, ordinal):
        return [p for p in self.fleet.pods.values() if p.ordinal == ordinal and not p.deleted_at]


TestFleet = FleetMachine.TestCase
TestFleet.settings = settings(
    max_examples=HISTORIES,
    stateful_step_count=25,
    report_multiple_bugs=False,  # the first one is made as short as can be
    derandomize="HISTORIES" not in os.environ,  # the same in every run, unless asked for more
    suppress_health_check=list(HealthCheck),
)
