"""The Grafana dashboards of the chart, built with the Foundation SDK of Grafana."""
