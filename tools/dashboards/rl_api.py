"""The section of the RL API on the dashboard of the processes."""

from __future__ import annotations

from dashboards.panels import Query, Section, graph

_RATE = "$__rate_interval"


def rl_api() -> Section:
    """The section. It is empty in a release without `api.enabled`."""
    return Section(
        "RL API",
        [
            graph(
                "Requests",
                "By status; 499 is a client that left.",
                Query(
                    f"sum by (status) (rate(rlfleet_rl_api_requests_total[{_RATE}]))", "{{status}}"
                ),
                unit="reqps",
                stacked=True,
            ),
            graph(
                "Requests that failed",
                "Status 500 and above, by route.",
                Query(
                    "sum by (route, status) "
                    f'(rate(rlfleet_rl_api_requests_total{{status=~"5.."}}[{_RATE}]))',
                    "{{status}} {{route}}",
                ),
                unit="reqps",
            ),
            graph(
                "Duration of requests",
                "95th percentile by route, with the wait for a rollout.",
                Query(
                    "histogram_quantile(0.95, sum by (le, route) "
                    f"(rate(rlfleet_rl_api_request_seconds_bucket[{_RATE}])))",
                    "{{route}}",
                ),
                unit="s",
            ),
            graph(
                "Requests in work",
                "Own ones, proxied ones, and open streams of events.",
                Query("sum by (kind) (rlfleet_rl_api_requests_in_work)", "{{kind}}"),
                Query("sum(rlfleet_rl_api_event_streams)", "streams"),
            ),
            graph(
                "Authentications",
                "By result. error: the API server gave no review of a token.",
                Query(
                    f"sum by (result) (rate(rlfleet_rl_api_authentications_total[{_RATE}]))",
                    "{{result}}",
                ),
                unit="reqps",
                stacked=True,
            ),
            graph(
                "Reviews of tokens",
                "hit: answered from the cache. miss: answered by the API server.",
                Query(
                    f"sum by (cache) (rate(rlfleet_rl_api_token_reviews_total[{_RATE}]))",
                    "{{cache}}",
                ),
                unit="reqps",
                stacked=True,
            ),
            graph(
                "Refused connections",
                "New connections that ended at once: all others had a request.",
                Query(
                    f"sum by (pod) (rate(rlfleet_rl_api_refused_connections_total[{_RATE}]))",
                    "{{pod}}",
                ),
            ),
            graph(
                "Changes",
                "Requests that may change something, from callers with the right.",
                Query(
                    "sum by (route, status) (increase(rlfleet_rl_api_changes_total[$window]))",
                    "{{status}} {{route}}",
                ),
            ),
        ],
    )
