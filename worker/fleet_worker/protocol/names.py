"""Paths, headers and variables of the environment; those of the preStop hook: `drain_names`."""

from __future__ import annotations

STATE_PATH = "/v1/worker/state"
STAGE_PATH = "/v1/worker/stage"
PAUSE_PATH = "/v1/worker/pause"
LOAD_PATH = "/v1/worker/load"
APPLY_PATH = "/v1/worker/apply"
RESUME_PATH = "/v1/worker/resume"
ADMIT_PATH = "/v1/worker/admit"
PROBE_PATH = "/v1/worker/probe"
FENCE_PATH = "/v1/worker/fence"
ADAPTERS_PATH = "/v1/worker/adapters/"
"""Followed by the adapter's name."""
LIVE_PATH = "/livez"
READY_PATH = "/readyz"

HEADER_VERSION_START = "x-weight-version-start"
"""Version of the first token of a reply; on every reply with tokens, streamed or not."""
HEADER_VERSION_END = "x-weight-version-end"
"""Version of the last token of a reply; only where the reply is not streamed."""
HEADER_VERSION_EXACT = "x-weight-version-exact"
"""On a request: its tokens must all be of this version, else 409."""
HEADER_VERSION_MIN = "x-weight-version-min"
"""On a request: its tokens must be of this numbered version or a later one, else 409."""
HEADER_VERSION = "x-weight-version"
"""The worker's version, with a 409."""
HEADER_RUN = "x-weight-run"
"""On a request: the run that its version headers speak of; tokens of another run are a 409."""
HEADER_RUN_START = "x-weight-run-start"
HEADER_RUN_END = "x-weight-run-end"
"""Run of the first and of the last token, where the weights belong to a named run."""
HEADER_DIGEST_START = "x-weight-digest-start"
HEADER_DIGEST_END = "x-weight-digest-end"
"""First 12 hex digits of the digest of the weights that made the first and the last token."""

ENV_WORKER_NAME = "RLFLEET_WORKER_NAME"
"""Pod name; shown in state and logs."""
ENV_START_VERSION = "RLFLEET_START_VERSION"
ENV_START_PATH = "RLFLEET_START_PATH"
ENV_START_RUN_ID = "RLFLEET_START_RUN_ID"
ENV_START_DIGEST = "RLFLEET_START_DIGEST"
"""The version that the fleet serves now, its directory, run and digest, filled in at every container
start.

A (re)started worker starts on it, if it passes the checks, so that it need not load twice; else on
the model's own weights.
"""
