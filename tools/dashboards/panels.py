"""Panels and variables that both dashboards use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from grafana_foundation_sdk.builders import common as build
from grafana_foundation_sdk.builders import dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    BigValueTextMode,
    GraphDrawStyle,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    Panel,
    Threshold,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
CHOSEN = 'namespace=~"$namespace", fleet=~"$fleet"'
"""Selects the fleets of the variables."""
TAG = "rlfleet"
_QUARTER, _THIRD, _FULL = 4, 8, 24
"""Widths, of 24 columns."""


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression. `legend`: how its series are named, with `{{label}}` for labels."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """Panels under one heading."""

    title: str
    panels: Sequence[Builder[Panel]]


def number(
    title: str,
    description: str,
    query: Query,
    *,
    unit: str = "short",
    red_from: float | None = None,
) -> stat.Panel:
    """The present value, or the name of the series if the query has a legend."""
    steps = [Threshold(value=None, color="green" if red_from is not None else "text")]
    if red_from is not None:
        steps.append(Threshold(value=red_from, color="red"))
    return (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .with_target(_target(query, "A").instant())
        .unit(unit)
        .thresholds(dashboard.ThresholdsConfig().steps(steps))
        .reduce_options(build.ReduceDataOptions().calcs(["lastNotNull"]))
        .text_mode(BigValueTextMode.NAME if query.legend else BigValueTextMode.VALUE)
        .color_mode(BigValueColorMode.VALUE)
        .graph_mode(BigValueGraphMode.NONE)
        .height(4)
        .span(_QUARTER)
    )


def graph(
    title: str, description: str, *queries: Query, unit: str = "short", stacked: bool = False
) -> timeseries.Panel:
    """Values over time. `stacked`: parts of a whole, drawn on top of each other."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .min(0)
        .draw_style(GraphDrawStyle.LINE)
        .fill_opacity(30 if stacked else 0)
        .legend(
            build.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)  # noqa: FBT003 - the SDK's way
        )
        .tooltip(
            build.VizTooltipOptions()
            .mode(TooltipDisplayMode.MULTI)
            .sort(common.SortOrder.DESCENDING)
        )
        .height(8)
        .span(_THIRD)
    )
    if stacked:
        panel = panel.stacking(build.StackingConfig().mode(StackingMode.NORMAL))
    for letter, query in zip("ABCDEF", queries, strict=False):
        panel = panel.with_target(_target(query, letter).range())
    return panel


def grid(
    title: str, description: str, *queries: Query, columns: Mapping[str, str], hidden: Iterable[str]
) -> table.Panel:
    """Present values as a table, one row for each set of labels that the queries share.

    `columns` has the heading of each label or value, in order; the value of the second query is
    `Value #B`. `hidden` has the names without a column.
    """
    layout = {
        "excludeByName": dict.fromkeys(["Time", *hidden], True),
        "indexByName": {name: place for place, name in enumerate(columns)},
        "renameByName": dict(columns),
    }
    panel = (
        table.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .transformations(
            [
                DataTransformerConfig(id_val="merge", options={}),
                DataTransformerConfig(id_val="organize", options=layout),
            ]
        )
        .height(7)
        .span(_FULL)
    )
    for letter, query in zip("ABCDEF", queries, strict=False):
        panel = panel.with_target(_target(query, letter).instant().format(PromQueryFormat.TABLE))
    return panel


def page(
    uid: str,
    title: str,
    description: str,
    variables: Iterable[Builder[object]],
    sections: Iterable[Section],
) -> dashboard.Dashboard:
    """A dashboard with a link to the other one."""
    made = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags([TAG])
        .timezone("browser")
        .refresh("30s")
        .time("now-3h", "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(
            dashboard.DashboardLink("rlfleet")
            .type(DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .include_vars(True)  # noqa: FBT003 - the SDK's way
            .keep_time(True)  # noqa: FBT003 - the SDK's way
        )
    )
    for variable in variables:
        made = made.with_variable(variable)
    numbers = count(1)
    for section in sections:
        made = made.with_row(dashboard.Row(section.title).id(next(numbers)))
        for panel in section.panels:
            made = made.with_panel(panel.id(next(numbers)))
    return made


def datasource() -> dashboard.DatasourceVariable:
    """The Prometheus that all panels ask."""
    return dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")


def label_of(name: str, series: str) -> dashboard.QueryVariable:
    """Any of the values that a label has in a series: all of them at first."""
    return (
        dashboard.QueryVariable(name)
        .label(name.capitalize())
        .datasource(SOURCE)
        .query(f"label_values({series}, {name})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)  # noqa: FBT003 - the SDK's way
        .include_all(True)  # noqa: FBT003 - the SDK's way
        .all_value(".*")
        .current(VariableOption(selected=True, text="All", value="$__all"))
    )


def window() -> dashboard.IntervalVariable:
    """The time over which rare events are counted: rollouts, pauses and loads."""
    return (
        dashboard.IntervalVariable("window")
        .label("Window")
        .values("10m,30m,1h,6h,1d")
        .current(VariableOption(selected=True, text="1h", value="1h"))
    )


def _target(query: Query, letter: str) -> prometheus.Dataquery:
    return (
        prometheus.Dataquery()
        .expr(query.expression)
        .legend_format(query.legend)
        .datasource(SOURCE)
        .ref_id(letter)
    )
