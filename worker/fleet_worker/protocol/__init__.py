"""Records, names and signatures of the worker's admin API.

Of the worker the operator imports this package and `logs`, nothing else. Every mutating call answers with
the worker's whole state, so that one round trip acts and observes. All calls are idempotent: sending
one again is safe.

Durations are seconds on the worker's own clock. They are ages, not timestamps, because the clocks of
two machines differ.

The package offers all that is imported here.
"""

from __future__ import annotations

from fleet_worker.drain_names import (
    DRAIN_PATH,
    ENV_ADMIN_HOST,
    ENV_ADMIN_PORT,
    ENV_ADMIN_TOKEN_FILE,
    ENV_DRAIN_SECONDS,
)
from fleet_worker.protocol.flags import (
    OWNED_ENGINE_FLAGS,
    OwnedFlag,
)
from fleet_worker.protocol.measurements import LoadEffect, PromptsReport, SwapTimings
from fleet_worker.protocol.paths import (
    ABORT_ROUTE,
    ADAPTERS_PATH,
    ADMIT_PATH,
    APPLY_PATH,
    ASIDE_MARK,
    DATA_ROUTES,
    ENGINE_ROUTES,
    ENV_POD_UID,
    ENV_START_DIGEST,
    ENV_START_PATH,
    ENV_START_RUN_ID,
    ENV_START_VERSION,
    ENV_STORE_ENDPOINT,
    ENV_STORE_KEYS,
    ENV_WORKER_NAME,
    FENCE_PATH,
    HEADER_BODY_DIGEST,
    HEADER_DIGEST_END,
    HEADER_DIGEST_START,
    HEADER_DRIVER,
    HEADER_INSTANCE,
    HEADER_NONCE,
    HEADER_POD_UID,
    HEADER_RUN,
    HEADER_RUN_END,
    HEADER_RUN_START,
    HEADER_SIGNATURE,
    HEADER_VERSION,
    HEADER_VERSION_END,
    HEADER_VERSION_EXACT,
    HEADER_VERSION_MIN,
    HEADER_VERSION_START,
    LIVE_PATH,
    LOAD_PATH,
    PAUSE_PATH,
    PEER_PATH,
    PROBE_PATH,
    READING_ENGINE_ROUTES,
    READING_TEXT_ROUTES,
    READY_PATH,
    RESUME_PATH,
    STAGE_PATH,
    STATE_PATH,
    TEXT_ROUTES,
    TOKEN_ROUTE,
)
from fleet_worker.protocol.requests import (
    AdapterRemoval,
    AdapterRequest,
    AdmitRequest,
    ApplyRequest,
    FenceRequest,
    LoadRequest,
    OpenRequest,
    PauseRequest,
    Peer,
    PromptsRequest,
    Request,
    ResumeRequest,
    StageRequest,
)
from fleet_worker.protocol.signing import (
    SIGNATURE_SCHEME,
    SignedCall,
    answer_signature,
    body_digest,
    call_signature,
)
from fleet_worker.protocol.state import (
    MAX_ANSWER_BYTES,
    MAX_REFUSED_PEERS,
    MAX_SERVED,
    MOST_ADAPTERS,
    AdapterFailure,
    AdapterSlots,
    AdapterState,
    EngineInfo,
    ErrorDetail,
    ErrorReply,
    Failure,
    Operation,
    PauseState,
    PeerState,
    RefusedPeer,
    RetiringAdapter,
    Staged,
    TransferState,
    WorkerState,
    max_answer_bytes,
    max_answer_parts,
)
from fleet_worker.protocol.steps import (
    parent_of_step,
    step_of,
    with_single_slashes,
)
from fleet_worker.protocol.trainer_names import with_plain_names
from fleet_worker.protocol.types import (
    MAX_DRIVER_CHARACTERS,
    MAX_TERM,
    PROTOCOL_VERSION,
    AdapterName,
    Epoch,
    Label,
    Loading,
    Management,
    Message,
    Named,
    PauseMode,
    Phase,
    Reason,
    WeightsDigest,
    Word,
)
from fleet_worker.protocol.wanted import (
    Lag,
    VersionOf,
    Wanted,
    WantedRequest,
    lag_of,
)
from rlfleet_resources.source import HuggingFaceSource, Source, VersionLabel, number_of
