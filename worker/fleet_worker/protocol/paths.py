"""Paths, headers and environment variables. `drain_names` has those of the preStop hook.

Source of the public port's routes: route list of vLLM (`vllm.entrypoints`), with all options on.
`/v1/tokenize`, `/v1/detokenize` and `/v1/chat/completions/tokens` are ours.
"""

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
WANTED_PATH = "/v1/worker/wanted"
ADAPTERS_PATH = "/v1/worker/adapters/"
"""Followed by the adapter's name."""
PEER_PATH = "/v1/peers/"
"""On the peer port. Followed by the digest of a version, and by `/` and the number of one of its files."""
LIVE_PATH = "/livez"
READY_PATH = "/readyz"

HEADER_VERSION_START = "x-weight-version-start"
"""Version of the first token of a reply. Every reply with tokens has it, streamed or not."""
HEADER_VERSION_END = "x-weight-version-end"
"""Version of the last token of a reply that is not streamed."""
HEADER_VERSION_EXACT = "x-weight-version-exact"
"""On a request: all its tokens must be of this version, else the worker answers 409."""
HEADER_VERSION_MIN = "x-weight-version-min"
"""On a request: all its tokens must be of this numbered version or a later one, else 409."""
HEADER_VERSION = "x-weight-version"
"""On a 409: the worker's version."""
HEADER_RUN = "x-weight-run"
"""On a request: the run of its version headers. For tokens of another run the answer is 409."""
HEADER_RUN_START = "x-weight-run-start"
HEADER_RUN_END = "x-weight-run-end"
"""Run of the first and of the last token, if the weights belong to a named run."""
HEADER_DIGEST_START = "x-weight-digest-start"
HEADER_DIGEST_END = "x-weight-digest-end"
"""First 12 hex digits of the digest of the weights that made the first and the last token."""

HEADER_POD_UID = "x-rlfleet-pod-uid"
"""On a call: uid of its target pod. A worker refuses a call for another pod."""
HEADER_INSTANCE = "x-rlfleet-instance"
"""On a signed call: `instance` of the target process, from its state."""
HEADER_NONCE = "x-rlfleet-nonce"
"""On a signed call: `<session>-<number>`, used once. The number grows within a session."""
HEADER_BODY_DIGEST = "x-rlfleet-body-sha256"
"""On a signed call: SHA-256 of its body in hex digits."""
HEADER_DRIVER = "x-rlfleet-driver"
"""On a signed call: the trainer for which it is made, as the holder of leases. Absent: its sender."""
HEADER_SIGNATURE = "x-rlfleet-signature"
"""On the answer to a signed call: the answer's signature in hex digits."""

ENV_POD_UID = "RLFLEET_POD_UID"
"""Uid of the pod, from the downward API. Without it a worker accepts only calls that name no pod."""
ENV_WORKER_NAME = "RLFLEET_WORKER_NAME"
"""Pod name, shown in state and logs."""
ENV_STORE_KEYS = "RLFLEET_STORE_KEYS"
"""Folder of the Secret with the keys of object stores. Without it the pod's identity counts."""
ENV_STORE_ENDPOINT = "RLFLEET_STORE_ENDPOINT"
"""URL of the server for `s3://`, before that of the Secret. Without both it is that of AWS."""
ASIDE_MARK = ".rlfleet-aside-"
"""Begin of the name of an object by which a collector takes a version of a store from readers. An empty one has no effect."""
ENV_START_VERSION = "RLFLEET_START_VERSION"
ENV_START_PATH = "RLFLEET_START_PATH"
ENV_START_RUN_ID = "RLFLEET_START_RUN_ID"
ENV_START_DIGEST = "RLFLEET_START_DIGEST"
"""The version that the fleet serves now, with its directory, run and digest, at each container start.

If it passes the checks, the worker starts on it and need not load twice. Otherwise the worker starts
on the model's own weights.
"""


TOKEN_ROUTE = "/inference/v1/generate"  # noqa: S105 - a path
"""The only route of vLLM that writes weight versions itself."""
ABORT_ROUTE = "/inference/v1/abort_requests"
"""By it a client ends requests of its own. It is answered during a pause, too."""
DATA_ROUTES = frozenset(
    {
        ABORT_ROUTE,
        TOKEN_ROUTE,
        "/v1/chat/completions",
        "/v1/chat/completions/batch",
        "/v1/chat/completions/tokens",
        "/v1/completions",
        "/v1/messages",
        "/v1/responses",
    }
)
"""They need the model, and are served only while the latch is open."""
READING_TEXT_ROUTES = frozenset({"/v1/models", "/version"})
"""`GET` without a body."""
TEXT_ROUTES = READING_TEXT_ROUTES | {
    "/detokenize",
    "/tokenize",
    "/v1/chat/completions/derender",
    "/v1/chat/completions/render",
    "/v1/completions/derender",
    "/v1/completions/render",
    "/v1/detokenize",
    "/v1/messages/count_tokens",
    "/v1/messages/render",
    "/v1/responses/render",
    "/v1/tokenize",
}
"""They need no weights."""


_BOTH = (
    "pause_generation",
    "resume_generation",
    "flush_cache",
    "abort_request",
    "load_lora",
    "unload_lora",
)
_FLAT = (
    *_BOTH,
    "liveness_probe",
    "update_weights_from_disk",
    "update_weights_from_distributed",
    "update_weights_from_tensor",
    "init_weights_update_group",
    "destroy_weights_update_group",
    "get_weight_version",
    "set_weight_version",
)
_CONTROL = (*_BOTH, "is_paused", "get_weight_version", "sleep", "wake_up")
_UPDATE = (
    "update_weight_version",
    "init_weight_transfer_engine",
    "start_weight_update",
    "update_weights",
    "finish_weight_update",
    "load_lora",
    "unload_lora",
)
ENGINE_ROUTES: frozenset[str] = frozenset(
    (*_FLAT, *(f"control/{name}" for name in _CONTROL), *(f"update/{name}" for name in _UPDATE))
)
READING_ENGINE_ROUTES: frozenset[str] = frozenset(
    ("liveness_probe", "get_weight_version", "control/is_paused", "control/get_weight_version")
)
"""Those that change nothing: workers of the operator's fleets answer no other ones."""
