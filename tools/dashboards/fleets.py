"""The dashboard of fleets and their rollouts, from the operator's series."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from dashboards.panels import (
    CHOSEN,
    Query,
    Section,
    datasource,
    graph,
    grid,
    label_of,
    number,
    page,
    window,
)

_ENDED = f'{CHOSEN}, kind=~"$kind"'
_STALLED = f'{CHOSEN}, type="Stalled", status="True"'
_NEEDY = f'{CHOSEN}, type=~"Stalled|Stale", status="True"'
_OWNER = "namespace, fleet"
_LEGEND = "{{namespace}}/{{fleet}}"
_WEIGHTS = "namespace, fleet, weightversion, adapter"
_WEIGHTS_LEGEND = "{{namespace}}/{{weightversion}}"
_LORA = f'{CHOSEN}, adapter!=""'
_ADAPTER_LEGEND = "{{namespace}}/{{fleet}} {{adapter}}"
_VERSIONS = "desired, applied, desired_run_id, applied_run_id, applied_digest"


def fleets() -> dashboard.Dashboard:
    """The dashboard."""
    variables = [
        datasource(),
        label_of("namespace", "rlfleet_fleet_ready_replicas"),
        label_of("fleet", 'rlfleet_fleet_ready_replicas{namespace=~"$namespace"}'),
        label_of("kind", "rlfleet_rollouts_total").label("Kind of rollout"),
        window(),
    ]
    return page(
        "rlfleet-fleets",
        "rlfleet / Fleets and rollouts",
        "What each fleet serves, how far it lags, and where its rollouts spend their time.",
        variables,
        [_overview(), _weights(), _rollouts(), _capacity()],
    )


def _overview() -> Section:
    return Section(
        "Overview",
        [
            number(
                "Fleets",
                "InferenceFleets that the leader drives.",
                Query(f"count(max by ({_OWNER}) (rlfleet_fleet_ready_replicas{{{CHOSEN}}}))"),
            ),
            number(
                "Fleets that need attention",
                "Fleets with the condition Stalled or Stale. The table below has the reasons.",
                Query(
                    f"count(max by ({_OWNER}) (rlfleet_fleet_condition{{{_NEEDY}}} == 1)) or vector(0)"
                ),
                red_from=1,
            ),
            number(
                "Rollouts that need attention",
                "WeightVersions with the condition Stalled. The table below has the reasons.",
                Query(f"count(rlfleet_weightversion_condition{{{_STALLED}}} == 1) or vector(0)"),
                red_from=1,
            ),
            number(
                "Unavailable fleets",
                "Fleets of which fewer than replicas - maxUnavailable workers serve. Fleets with 0 "
                "replicas are not counted.",
                Query(
                    f'count(rlfleet_fleet_condition{{{CHOSEN}, type="Available", status="False"}} == 1'
                    f" and on ({_OWNER}) rlfleet_fleet_spec_replicas{{{CHOSEN}}} > 0) or vector(0)"
                ),
                red_from=1,
            ),
            number(
                "Greatest lag",
                "Desired minus applied version, of the fleet that lags most. Only versions with "
                "numbers have a lag.",
                Query(f"max(rlfleet_fleet_lag_versions{{{CHOSEN}}})"),
                red_from=11,
            ),
            number(
                "Oldest weights",
                "Time since all workers of a fleet first served its applied version.",
                Query(f"max(time() - rlfleet_fleet_applied_timestamp_seconds{{{CHOSEN}}})"),
                unit="s",
            ),
            grid(
                "Needs attention",
                "What the operator cannot solve without help. kubectl describe ifl,wv shows the messages, "
                "which name the cause and the remedy.",
                Query(
                    f"max by ({_OWNER}, reason) (rlfleet_fleet_condition{{{_NEEDY}}} == 1) or "
                    f"max by ({_WEIGHTS}, reason) (rlfleet_weightversion_condition{{{_STALLED}}} == 1)"
                ),
                columns={
                    "namespace": "Namespace",
                    "fleet": "Fleet",
                    "weightversion": "WeightVersion",
                    "adapter": "LoRA adapter",
                    "reason": "Reason",
                },
                hidden=["Value", "Value #A"],
            ),
            grid(
                "Fleets",
                "Versions, readiness and age of each fleet. Unknown values are empty.",
                Query(f"max by ({_OWNER}, {_VERSIONS}) (rlfleet_fleet_version_info{{{CHOSEN}}})"),
                Query(f"max by ({_OWNER}) (rlfleet_fleet_ready_replicas{{{CHOSEN}}})"),
                Query(f"max by ({_OWNER}) (rlfleet_fleet_lag_versions{{{CHOSEN}}})"),
                Query(
                    f"time() - max by ({_OWNER}) (rlfleet_fleet_applied_timestamp_seconds{{{CHOSEN}}})"
                ),
                Query(
                    f"max by ({_OWNER}, reason) "
                    f'(rlfleet_fleet_condition{{{CHOSEN}, type="Ready"}} == 1)'
                ),
                columns={
                    "namespace": "Namespace",
                    "fleet": "Fleet",
                    "reason": "Reason of Ready",
                    "Value #B": "Ready workers",
                    "desired": "Desired",
                    "applied": "Applied",
                    "Value #C": "Lag",
                    "Value #D": "Age (s)",
                    "desired_run_id": "Desired run",
                    "applied_run_id": "Applied run",
                    "applied_digest": "Digest",
                },
                hidden=["Value #A", "Value #E"],
            ),
        ],
    )


def _weights() -> Section:
    return Section(
        "Weights",
        [
            graph(
                "Lag",
                "Desired minus applied version. A line that climbs: the trainer publishes faster than "
                "the fleet applies.",
                Query(f"max by ({_OWNER}) (rlfleet_fleet_lag_versions{{{CHOSEN}}})", _LEGEND),
            ),
            graph(
                "Lag of LoRA adapters",
                "Desired version minus the last one that all workers served, for each adapter.",
                Query(
                    f"max by ({_WEIGHTS}) (rlfleet_weightversion_lag_versions{{{_LORA}}})",
                    _ADAPTER_LEGEND,
                ),
            ),
            graph(
                "Lag in time",
                "Time since the trainer published the first version that is newer than the applied one.",
                Query(
                    f"max by ({_WEIGHTS}) (rlfleet_weightversion_lag_seconds{{{CHOSEN}}})",
                    _WEIGHTS_LEGEND,
                ),
                unit="s",
            ),
            graph(
                "Age of the applied version",
                "Falls to 0 with each applied version.",
                Query(
                    f"time() - max by ({_OWNER}) (rlfleet_fleet_applied_timestamp_seconds{{{CHOSEN}}})",
                    _LEGEND,
                ),
                unit="s",
            ),
            graph(
                "Age of the applied version of LoRA adapters",
                "Time since all workers first served it. Falls to 0 with each applied version.",
                Query(
                    f"time() - max by ({_WEIGHTS}) "
                    f"(rlfleet_weightversion_applied_timestamp_seconds{{{_LORA}}})",
                    _ADAPTER_LEGEND,
                ),
                unit="s",
            ),
            graph(
                "Share of elements that the last load changed",
                "Smallest over the workers, at the served precision. 0: the version serves the same "
                "weights as before.",
                Query(
                    f'min by ({_WEIGHTS}) (rlfleet_rollout_changed_share{{{CHOSEN}, bound="min"}})',
                    _WEIGHTS_LEGEND,
                ),
                unit="percentunit",
            ),
        ],
    )


def _rollouts() -> Section:
    ended = f"increase(rlfleet_rollouts_total{{{_ENDED}}}[$window])"
    not_applied = f'increase(rlfleet_rollouts_total{{{_ENDED}, result!="Applied"}}[$window])'
    phases = "rlfleet_rollout_phase_seconds"
    pause = f"rlfleet_rollout_worker_pause_seconds_bucket{{{_ENDED}}}"
    parts = f'{_ENDED}, phase!="total"'
    begun = f"rlfleet_weightversion_rollout_start_timestamp_seconds{{{CHOSEN}}}"
    since = f"rlfleet_weightversion_phase_start_timestamp_seconds{{{CHOSEN}}}"
    resting = f'rlfleet_weightversion_phase{{{CHOSEN}, phase="Applied"}} == 1'
    return Section(
        "Rollouts",
        [
            graph(
                "Rollouts that ended, by result",
                "Number in the window before each point. Refused and superseded versions were replaced: "
                "the first while they were refused, the other ones on their way.",
                Query(f"sum by (result) ({ended})", "{{result}}"),
                stacked=True,
            ),
            graph(
                "Rollouts that were not applied, by reason",
                "The last reason of each version that was refused, abandoned or replaced.",
                Query(f"sum by (result, reason) ({not_applied})", "{{result}}: {{reason}}"),
                stacked=True,
            ),
            graph(
                "Duration of applied rollouts",
                "From the start of staging until all workers serve, over the window.",
                *_quantiles(f'{phases}_bucket{{{_ENDED}, phase="total"}}'),
                unit="s",
            ),
            graph(
                "Mean duration of each phase",
                "Where applied rollouts spend their time, over the window.",
                Query(
                    f"sum by (phase) (rate({phases}_sum{{{parts}}}[$window])) / "
                    f"sum by (phase) (rate({phases}_count{{{parts}}}[$window]))",
                    "{{phase}}",
                ),
                unit="s",
                stacked=True,
            ),
            graph(
                "Longest pause of a worker",
                "The longest time in which a worker held its requests, for each applied rollout, over "
                "the window.",
                *_quantiles(pause),
                unit="s",
            ),
            graph(
                "Time since the rollout began",
                "Rollouts that are not applied yet. None: no rollout is under way.",
                Query(f"time() - max by ({_WEIGHTS}) ({begun})", _WEIGHTS_LEGEND),
                unit="s",
            ),
            graph(
                "Time in the present phase",
                "WeightVersions that are not applied yet.",
                Query(
                    f"time() - max by ({_WEIGHTS}) ({since}) unless on ({_WEIGHTS}) {resting}",
                    _WEIGHTS_LEGEND,
                ),
                unit="s",
            ),
            graph(
                "WeightVersions by phase",
                "Halted and suspended rollouts stay until they are retried or resumed.",
                Query(f"sum by (phase) (rlfleet_weightversion_phase{{{CHOSEN}}})", "{{phase}}"),
                stacked=True,
            ),
            graph(
                "Workers by step of the rollout",
                "Workers that have reached each step. A step that stays below the total blocks the "
                "rollout.",
                Query(f"sum by (step) (rlfleet_weightversion_workers{{{CHOSEN}}})", "{{step}}"),
            ),
            graph(
                "Superseded versions",
                "Versions that another one replaced on their way, before they were applied or refused.",
                Query(
                    f"max by ({_WEIGHTS}) (rlfleet_rollout_superseded_versions{{{CHOSEN}}})",
                    _WEIGHTS_LEGEND,
                ),
            ),
        ],
    )


def _capacity() -> Section:
    return Section(
        "Workers",
        [
            graph(
                "Workers by state",
                "Broken and quarantined workers are recreated within the limits of spec.recycle.",
                Query(f"sum by (state) (rlfleet_fleet_replicas{{{CHOSEN}}})", "{{state}}"),
                stacked=True,
            ),
            graph(
                "Silent workers",
                "Workers that run, have answered before, and do not answer the operator for 10 s.",
                Query(f"max by ({_OWNER}) (rlfleet_fleet_silent_workers{{{CHOSEN}}})", _LEGEND),
            ),
            graph(
                "Ready workers",
                "Workers that clients can reach, and replicas that the spec asks for.",
                Query(f"max by ({_OWNER}) (rlfleet_fleet_ready_replicas{{{CHOSEN}}})", _LEGEND),
                Query(
                    f"max by ({_OWNER}) (rlfleet_fleet_spec_replicas{{{CHOSEN}}})",
                    f"{_LEGEND} asked for",
                ),
            ),
        ],
    )


def _quantiles(buckets: str) -> list[Query]:
    return [
        Query(
            f"histogram_quantile({quantile}, sum by (le, kind) (rate({buckets}[$window])))",
            f"{{{{kind}}}} p{quantile * 100:.0f}",
        )
        for quantile in (0.5, 0.95)
    ]
