"""Alerts name series that exist, and each one has a runbook and a test of its expression.

`make test-alerts` runs the tests of the expressions with promtool.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.support.builders import NOW, applied_status, history_of, make_fleet
from tests.support.series import ALL_SERIES, OPERATOR_SERIES, Series, selectors

from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.status_metrics import ShownFleet, ShownWeights
from rlfleet_resources.conditions import new_condition
from rlfleet_resources.fleet_status import AppliedWeights, FleetStatus
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.source import WeightSource
from rlfleet_resources.weights_status import RolloutEffect, RolloutPhase

ROOT = Path(__file__).parents[2]
RULES = yaml.safe_load((ROOT / "charts/rlfleet/files/alerts.yaml").read_text())
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
TESTS = yaml.safe_load((Path(__file__).parent / "alerts_test.yaml").read_text())["tests"]
RUNBOOKS = (ROOT / "docs/reference/alerts.md").read_text()
PROMISES = ("**Meaning**:", "**Impact**:", "**Do**:")

KEY = ("rl", "policy")


def exported() -> Series:
    """The operator's export once each series has a sample."""
    metrics = Metrics("rlfleet-system/rlfleet")
    condition = new_condition(
        (), ConditionType.READY, is_true=True, reason=ConditionReason.ALL_WORKERS_SERVING,
        message="", generation=1, now=NOW,
    )  # fmt: skip
    source = WeightSource(path="/weights/1")
    applied = AppliedWeights(version="1", source=source, applied_at=NOW)
    fleet = FleetStatus(
        desired_version="1", applied_version="1", applied=applied, conditions=(condition,)
    )
    effect = RolloutEffect(version="2", min_changed_share=0.5)
    ended = applied_status("1", history=history_of("1"), effect=effect, conditions=(condition,))
    begun = ended.model_copy(update={"phase": RolloutPhase.STAGING, "applied": applied})
    shown = (ShownFleet(KEY, fleet), ShownWeights(KEY, "policy", "", begun))
    metrics.show_statuses(lambda: shown, {KEY: 4}.get)
    metrics.count_rollouts(KEY, "", applied_status("1"), ended)
    metrics.count_call("load", "done", 0.1)
    metrics.show_silent(KEY, make_fleet())
    metrics.show_missing({"inferencefleets": ("status.new",)})
    metrics.count_request("get", 0.1)
    metrics.count_wait(KEY, 0.1)
    for counter in (metrics.failures, metrics.writes):
        counter.labels("any").inc()
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        f.name + "_total" * (f.type == "counter"): _kind(f)
        for f in families
        if f.name.startswith("rlfleet_") and not f.name.endswith("_created")
    }


def _kind(family: Metric) -> tuple[str, frozenset[str]]:
    """Type and labels. `_created` series have no row: they come with each counter and histogram."""
    labels = {label for sample in family.samples for label in sample.labels}
    return family.type, frozenset(labels - {"le"})


def test_the_page_lists_every_series_with_its_type_and_its_labels() -> None:
    assert exported() == OPERATOR_SERIES


@pytest.mark.parametrize("alert", sorted(ALERTS))
def test_an_alert_names_series_and_labels_that_exist(alert: str) -> None:
    selected = selectors(ALERTS[alert]["expr"])

    assert selected
    for name, labels in selected:
        assert labels <= ALL_SERIES[name][1]


@pytest.mark.parametrize("alert", sorted(ALERTS))
def test_a_runbook_has_the_meaning_the_impact_and_the_remedy_of_an_alert(alert: str) -> None:
    section = RUNBOOKS.partition(f"\n## {alert}\n")[2].partition("\n## ")[0]

    assert [promise for promise in PROMISES if promise not in section] == []
    assert ALERTS[alert]["labels"]["severity"] in {"warning", "critical"}


def test_no_runbook_is_left_over() -> None:
    assert re.findall(r"^## (\w+)$", RUNBOOKS, re.MULTILINE) == [
        rule["alert"] for group in RULES["groups"] for rule in group["rules"]
    ]


def test_each_expression_is_tested_firing_and_ended() -> None:
    def values(test: dict[str, Any]) -> list[int]:
        return [len(each["exp_samples"]) for each in test["promql_expr_test"]]

    own = {test["name"]: values(test) for test in TESTS if ": " not in test["name"]}
    assert own == {alert: [1, 0] for alert in ALERTS}
    assert {test["name"].partition(": ")[0] for test in TESTS} == ALERTS.keys()


def test_the_sample_of_inhibitions_names_alerts_and_labels_that_exist() -> None:
    (sample,) = re.findall(r"```yaml\n(inhibit_rules:.*?)```", RUNBOOKS, re.DOTALL)
    rules = yaml.safe_load(sample)["inhibit_rules"]

    assert len(rules) == 4
    for rule in rules:
        for side in ("source_matchers", "target_matchers"):
            (pattern,) = [
                text.partition("=")[2].strip(' ~"') for text in rule[side] if "alertname" in text
            ]
            named = {alert for alert in ALERTS if re.fullmatch(pattern, alert)}
            assert named, pattern
            if "(" in pattern:
                assert len(named) == pattern.count("|") + 1, pattern
            for alert in named if "equal" in rule and ".+" not in pattern else ():
                labels = set().union(*(labels for _, labels in _series_of(alert)))
                assert set(rule["equal"]) <= labels, alert


def _series_of(alert: str) -> list[tuple[str, frozenset[str]]]:
    return [(name, ALL_SERIES[name][1]) for name, _ in selectors(ALERTS[alert]["expr"])]
