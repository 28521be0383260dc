"""The dashboard of the operator's processes and of the workers."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from dashboards.panels import (
    CHOSEN,
    Query,
    Section,
    datasource,
    graph,
    label_of,
    number,
    page,
    window,
)
from dashboards.rl_api import rl_api

_RATE = "$__rate_interval"
_WINDOW = "$window"
_POD = "{{pod}}"


def operator_and_workers() -> dashboard.Dashboard:
    """The dashboard."""
    variables = [
        datasource(),
        label_of("namespace", "rlfleet_worker_admitted"),
        label_of("fleet", 'rlfleet_worker_admitted{namespace=~"$namespace"}'),
        window(),
    ]
    return page(
        "rlfleet-operator",
        "rlfleet / Operator and workers",
        "Whether the operator leads and keeps up, and what each worker does. The variables choose "
        "workers; the operator's panels show all of its processes.",
        variables,
        [_operator(), _calls(), _workers(), _weights(), _requests(), _freshness(), rl_api()],
    )


def _operator() -> Section:
    return Section(
        "Operator",
        [
            number(
                "Operators that lead",
                "1 in a healthy release. 0: no rollout begins or ends, and workers serve on.",
                Query("sum(rlfleet_operator_leading) or vector(0)"),
            ),
            number(
                "Release",
                "The release of the operators that run, and their Python.",
                Query(
                    "count by (version, python) (rlfleet_build_info)",
                    "{{version}} on Python {{python}}",
                ),
            ),
            number(
                "Failed reconciles (1 h)",
                "Reconciles that ended with an error in the last hour.",
                Query("sum(increase(rlfleet_reconcile_failures_total[1h])) or vector(0)"),
                red_from=1,
            ),
            number(
                "Longest wait of a fleet",
                "Time that a fleet has been due, or being reconciled.",
                Query("max(rlfleet_queue_stuck_seconds)"),
                unit="s",
                red_from=60,
            ),
            number(
                "Fleets of other releases",
                "Fleets in the watched namespaces that another release drives.",
                Query("max(rlfleet_fleets_of_other_operators)"),
            ),
            number(
                "Missing fields of CRDs",
                "Parts of statuses that the CRDs of the cluster do not permit.",
                Query("sum(max by (resource) (rlfleet_operator_crd_missing_fields))"),
                red_from=1,
            ),
            graph(
                "Leader",
                "1 for the process that leads. Pauses survive a change of the leader.",
                Query("max by (pod) (rlfleet_operator_leading)", _POD),
            ),
            graph(
                "Watched namespaces",
                "Processes that watch each one. * is all of them.",
                Query("count by (namespace) (rlfleet_operator_watches)", "{{namespace}}"),
            ),
            graph(
                "Duration of a reconcile",
                "A reconcile waits a short time for the workers that it calls.",
                Query(
                    f"histogram_quantile(0.5, sum by (le) (rate(rlfleet_reconcile_seconds_bucket[{_RATE}])))",
                    "p50",
                ),
                Query(
                    f"histogram_quantile(0.99, sum by (le) (rate(rlfleet_reconcile_seconds_bucket[{_RATE}])))",
                    "p99",
                ),
                unit="s",
            ),
            graph(
                "Failed reconciles",
                "By class of the API server's refusal; defect is an error of rlfleet itself.",
                Query(
                    f"sum by (kind) (increase(rlfleet_reconcile_failures_total[{_RATE}]))",
                    "{{kind}}",
                ),
                stacked=True,
            ),
            graph(
                "Queue",
                "Fleets that wait for a reconcile.",
                Query("max by (pod) (rlfleet_queue_depth)", _POD),
            ),
            graph(
                "Wait for a reconcile",
                "Fleets wait while their namespace uses more than its share, or while all places are in use.",
                Query(
                    f"histogram_quantile(0.5, sum by (le) (rate(rlfleet_queue_wait_seconds_bucket[{_RATE}])))",
                    "p50",
                ),
                Query(
                    f"histogram_quantile(0.99, sum by (le) (rate(rlfleet_queue_wait_seconds_bucket[{_RATE}])))",
                    "p99",
                ),
                Query(
                    f"topk(5, sum by (namespace) (rate(rlfleet_fleet_wait_seconds_total[{_RATE}])))",
                    "seconds of each second, {{namespace}}",
                ),
                unit="s",
            ),
            graph(
                "Delay of the event loop",
                "Longest in the last one to two minutes. Busy is the part in which the process had the "
                "processor; a large delay with little busy time means too little processor time.",
                Query("max by (pod) (rlfleet_event_loop_lag_seconds)", "{{pod}} delay"),
                Query("max by (pod) (rlfleet_event_loop_busy_seconds)", "{{pod}} busy"),
                unit="s",
            ),
            graph(
                "Writes to the Kubernetes API",
                "By kind of object.",
                Query(f"sum by (kind) (rate(rlfleet_api_writes_total[{_RATE}]))", "{{kind}}"),
                unit="wps",
                stacked=True,
            ),
            graph(
                "Duration of requests to the Kubernetes API",
                "95 of 100 take less.",
                Query(
                    "histogram_quantile(0.95, sum by (le, verb) "
                    f"(rate(rlfleet_api_request_seconds_bucket[{_RATE}])))",
                    "{{verb}}",
                ),
                unit="s",
            ),
        ],
    )


def _calls() -> Section:
    calls = "rlfleet_worker_calls_total"
    return Section(
        "Calls to workers",
        [
            graph(
                "Calls",
                "By kind.",
                Query(f"sum by (kind) (rate({calls}[{_RATE}]))", "{{kind}}"),
                unit="reqps",
                stacked=True,
            ),
            graph(
                "Calls that were not done",
                "By outcome; silent is a call without an answer, NoEffect one that was answered and not followed.",
                Query(
                    f'sum by (kind, outcome) (rate({calls}{{outcome!="done"}}[{_RATE}]))',
                    "{{kind}} {{outcome}}",
                ),
                unit="reqps",
            ),
            graph(
                "Duration of answered calls",
                "95th percentile by kind.",
                Query(
                    "histogram_quantile(0.95, sum by (le, kind) "
                    f"(rate(rlfleet_worker_call_seconds_bucket[{_RATE}])))",
                    "{{kind}}",
                ),
                unit="s",
            ),
        ],
    )


def _workers() -> Section:
    pause = f"rlfleet_worker_pause_seconds_bucket{{{CHOSEN}}}"
    return Section(
        "Workers",
        [
            graph(
                "Workers by phase",
                "What the workers themselves report.",
                Query(f"sum by (phase) (rlfleet_worker_phase{{{CHOSEN}}})", "{{phase}}"),
                stacked=True,
            ),
            graph(
                "Workers by version",
                "Two lines that cross are a rollout. Two lines that stay are workers that lag.",
                Query(
                    f"count by (version, run_id, digest) (rlfleet_worker_version_info{{{CHOSEN}}})",
                    "{{version}} {{run_id}} {{digest}}",
                ),
                stacked=True,
            ),
            graph(
                "Latch open",
                "1: requests for the model reach the engine.",
                Query(f"max by (namespace, pod) (rlfleet_worker_admitted{{{CHOSEN}}})", _POD),
            ),
            graph(
                "Present pause",
                "Clients wait behind a pause. It ends by itself when nothing renews it.",
                Query(f"max by (namespace, pod) (rlfleet_worker_paused_seconds{{{CHOSEN}}})", _POD),
                unit="s",
            ),
            graph(
                "Duration of pauses",
                "Pauses that have ended, over the window.",
                *(
                    Query(
                        f"histogram_quantile({quantile}, sum by (le) (rate({pause}[{_WINDOW}])))",
                        f"p{quantile * 100:.0f}",
                    )
                    for quantile in (0.5, 0.95)
                ),
                unit="s",
            ),
            graph(
                "Pauses that nothing renewed",
                "The driver of the fleet was gone in the middle of a rollout.",
                Query(
                    "sum by (namespace, pod) "
                    f"(increase(rlfleet_worker_lease_expiries_total{{{CHOSEN}}}[{_RATE}]))",
                    _POD,
                ),
            ),
        ],
    )


def _weights() -> Section:
    return Section(
        "Weights and LoRA adapters",
        [
            graph(
                "Duration of loads and stages",
                "95th percentile over the window. A load is inside a pause; a stage is before it, while the worker "
                "serves.",
                *(
                    Query(
                        "histogram_quantile(0.95, sum by (le) "
                        f"(rate(rlfleet_worker_{kind}_seconds_bucket{{{CHOSEN}}}[{_WINDOW}])))",
                        kind,
                    )
                    for kind in ("load", "stage")
                ),
                unit="s",
            ),
            graph(
                "Read to stage versions",
                "All workers together. A delta reads its own files only, unless a worker has to read the base, too.",
                *(
                    Query(
                        f"sum(rate(rlfleet_worker_{name}_bytes_total{{{CHOSEN}}}[{_RATE}]))", what
                    )
                    for name, what in (("stage_read", "read"), ("stage_peer", "from peers"))
                ),
                unit="Bps",
            ),
            graph(
                "Share of elements that the last load changed",
                "Smallest and largest over the workers. They are equal in a healthy fleet.",
                Query(f"min(rlfleet_worker_changed_share{{{CHOSEN}}})", "smallest"),
                Query(f"max(rlfleet_worker_changed_share{{{CHOSEN}}})", "largest"),
                unit="percentunit",
            ),
            graph(
                "Refused calls",
                "Admin calls that a worker refused, or that failed in its engine, by reason.",
                Query(
                    "sum by (reason) "
                    f"(increase(rlfleet_worker_refusals_total{{{CHOSEN}}}[{_RATE}])) > 0",
                    "{{reason}}",
                ),
            ),
            graph(
                "LoRA adapters by version",
                "Workers that serve each version of an adapter.",
                Query(
                    f"count by (adapter, version) (rlfleet_worker_adapter_info{{{CHOSEN}}})",
                    "{{adapter}} {{version}}",
                ),
                stacked=True,
            ),
            graph(
                "Slots for LoRA adapters",
                "A worker without a free slot cannot stage the next version of an adapter.",
                Query(f"sum(rlfleet_worker_adapter_slots_used{{{CHOSEN}}})", "used"),
                Query(f"sum(rlfleet_worker_adapter_slots{{{CHOSEN}}})", "all"),
            ),
        ],
    )


def _requests() -> Section:
    return Section(
        "Requests",
        [
            graph(
                "Held requests",
                "Requests that wait for a resume. vLLM's own gauges do not change during a pause.",
                Query(f"max by (namespace, pod) (rlfleet_worker_requests_held{{{CHOSEN}}})", _POD),
            ),
            graph(
                "Refused requests",
                "Requests for the model that were refused because the latch was closed.",
                Query(
                    "sum by (namespace, pod) "
                    f"(rate(rlfleet_worker_turned_away_requests_total{{{CHOSEN}}}[{_RATE}]))",
                    _POD,
                ),
                unit="reqps",
            ),
            graph(
                "Refused connections",
                "New connections that ended at once: all others of their port had a request.",
                Query(
                    "sum by (namespace, pod, port) "
                    f"(rate(rlfleet_worker_refused_connections_total{{{CHOSEN}}}[{_RATE}]))",
                    f"{_POD} {{{{port}}}}",
                ),
            ),
            graph(
                "Replies without a version",
                "Must stay 0. Do not train on these replies.",
                Query(
                    "sum by (namespace, pod) "
                    f"(increase(rlfleet_worker_unlabelled_replies_total{{{CHOSEN}}}[{_RATE}]))",
                    _POD,
                ),
            ),
        ],
    )


def _freshness() -> Section:
    """The age of the tokens, and the speed of generation from vLLM's own series."""

    def rate(series: str) -> str:
        return f"sum(rate({series}{{{CHOSEN}}}[{_RATE}]))"

    first = f"vllm:time_to_first_token_seconds_bucket{{{CHOSEN}}}"
    return Section(
        "Throughput and staleness",
        [
            graph(
                "Tokens by lag",
                "By the number of versions that were desired after the one that made them. Workers count "
                "only in a fleet with spec.staleness.",
                Query(
                    f"sum by (lag) (rate(rlfleet_worker_tokens_total{{{CHOSEN}}}[{_RATE}]))",
                    "{{lag}}",
                ),
                stacked=True,
            ),
            graph(
                "Lag of the workers",
                "Longest time for which a newer version may have been desired. It grows while a worker hears "
                "nothing from the operator.",
                Query(f"max by (namespace, pod) (rlfleet_worker_lag_seconds{{{CHOSEN}}})", _POD),
                unit="s",
            ),
            graph(
                "Versions behind",
                "Versions that were desired after the one that each worker serves.",
                Query(f"max by (namespace, pod) (rlfleet_worker_lag_versions{{{CHOSEN}}})", _POD),
            ),
            graph(
                "Generation lost to pauses",
                "Workers that did not generate, on average. 1: one worker the whole time.",
                Query(rate("rlfleet_worker_pause_seconds_sum"), "workers"),
            ),
            graph(
                "Requests that waited or were refused",
                "Requests that waited for the end of a pause, and those that found too old weights.",
                Query(rate("rlfleet_worker_held_requests_total"), "waited"),
                Query(rate("rlfleet_worker_stale_requests_total"), "too old"),
                unit="reqps",
            ),
            graph(
                "Generated tokens",
                "All workers together, by vLLM's own count.",
                Query(rate("vllm:generation_tokens_total"), "tokens/s"),
            ),
            graph(
                "Time to the first token",
                "95th percentile, by vLLM's own count. A pause is part of it.",
                Query(
                    f"histogram_quantile(0.95, sum by (le) (rate({first}[{_RATE}])))",
                    "95th percentile",
                ),
                unit="s",
            ),
            graph(
                "KV cache",
                "Used share of each worker, and the share of prompt tokens that were found there.",
                Query(f"max by (namespace, pod) (vllm:kv_cache_usage_perc{{{CHOSEN}}})", _POD),
                Query(
                    f"{rate('vllm:prefix_cache_hits_total')} / {rate('vllm:prefix_cache_queries_total')}",
                    "prefix found",
                ),
                unit="percentunit",
            ),
        ],
    )
