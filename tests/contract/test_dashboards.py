"""Dashboards show every series, and name only series and labels that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.support.series import ALL_SERIES, VLLM_SERIES, WORKER_SERIES, selectors

FOLDER = Path(__file__).parents[2] / "charts/rlfleet/files/dashboards"
DASHBOARDS = {file.stem: json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json"))}
OF_THE_TARGET = frozenset({"namespace", "pod"})
"""Labels that Prometheus adds to the series of every pod."""
OF_A_WORKER = frozenset({"fleet"})
"""Labels that the PodMonitor adds to the series of a worker."""
PARTS = ("_bucket", "_sum", "_count")
GROUPING = re.compile(r"\b(?:by|on) \(([\w, ]+)\)")
LEGEND = re.compile(r"{{(\w+)}}")
VARIABLE = re.compile(r"\$(\w+)")
BUILT_IN = frozenset({"__rate_interval"})


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


PANELS = [
    pytest.param(panel, id=f"{name}: {panel['title']}")
    for name, dashboard in DASHBOARDS.items()
    for panel in panels(dashboard)
]


def variables(dashboard: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {variable["name"]: variable for variable in dashboard["templating"]["list"]}


def labels_of(series: str) -> frozenset[str]:
    """All labels that the series has in Prometheus."""
    name = next((series.removesuffix(p) for p in PARTS if series.endswith(p)), series)
    if name not in ALL_SERIES:
        name = series
    kind, labels = ALL_SERIES[name]
    assert (kind == "histogram") == (name != series), f"{series} of a {kind}"
    bucket = {"le"} if series.endswith("_bucket") else frozenset()
    worker = OF_A_WORKER if name in WORKER_SERIES | VLLM_SERIES else frozenset()
    return labels | OF_THE_TARGET | worker | bucket


def test_there_are_two() -> None:
    assert [dashboard["uid"] for dashboard in DASHBOARDS.values()] == list(DASHBOARDS)
    assert list(DASHBOARDS) == ["rlfleet-fleets", "rlfleet-operator"]


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_names_series_and_labels_that_exist(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        expression = target["expr"]
        selected = selectors(expression)
        known = frozenset().union(*(labels_of(name) for name, _ in selected))
        grouped = {label for names in GROUPING.findall(expression) for label in names.split(", ")}

        assert selected
        for name, labels in selected:
            assert labels <= labels_of(name)
        assert grouped <= known
        assert set(LEGEND.findall(target["legendFormat"])) <= grouped


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_has_the_variables_that_its_expressions_use(name: str) -> None:
    has = variables(DASHBOARDS[name])
    used = VARIABLE.findall(json.dumps([panel["targets"] for panel in panels(DASHBOARDS[name])]))

    assert set(used) - BUILT_IN <= set(has)
    for variable in has.values():
        for series, labels in selectors(str(variable.get("query", ""))):
            assert labels | {variable["name"]} <= labels_of(series)


def test_every_series_is_on_a_dashboard() -> None:
    shown = {
        series
        for dashboard in DASHBOARDS.values()
        for panel in panels(dashboard)
        for target in panel["targets"]
        for series, _ in selectors(target["expr"])
    }
    named = shown | {name.removesuffix(part) for name in shown for part in PARTS}

    assert sorted(set(ALL_SERIES) - named) == []


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_says_what_it_shows_and_asks_the_chosen_prometheus(panel: dict[str, Any]) -> None:
    sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]

    assert panel["description"].endswith(".")
    assert {source["uid"] for source in sources} == {"${datasource}"}


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_have_ids_of_their_own_and_do_not_overlap(name: str) -> None:
    all_panels = DASHBOARDS[name]["panels"]
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in all_panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]

    assert len({panel["id"] for panel in all_panels}) == len(all_panels)
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < 24
