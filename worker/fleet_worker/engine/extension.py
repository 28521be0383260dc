"""Code inside the engine's processes: load staged bytes into the model, and check the result.

`--worker-extension-cls` adds the methods to vLLM's worker class, and `collective_rpc` calls them. Every
method returns a small dict instead of raising, so that the caller knows whether the model has changed.

Source: `Worker.reload_weights(weights_iterator=…)` of vLLM.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from typing import Any

import torch

from fleet_worker.engine.changes import Finder, NotInPlaceError, PartlyWrittenError
from fleet_worker.engine.cuda_runtime import CudaRuntime, runtime_here
from fleet_worker.engine.file_tensors import Digested, Reader, tensors_of
from fleet_worker.engine.forward_pass import forward_pass
from fleet_worker.engine.held import Held, Key, key_of, opened
from fleet_worker.engine.kernel_copies import renew_copies
from fleet_worker.engine.parameters import Memory, checksum_of, is_known, not_compared
from fleet_worker.engine.rank_calls import RankCalls, described
from fleet_worker.engine.required_names import missing_names, missing_on
from fleet_worker.engine.reshaped import take_new_shapes
from fleet_worker.engine.start_loader import register
from fleet_worker.engine.unfinished import drop_unfinished
from fleet_worker.engine.vllm_names import ENGINE_NAMES
from fleet_worker.engine.written import Recorder
from fleet_worker.errors import Refusal

# vLLM imports this module in each of its processes, before it loads the weights to start on.
register()

# Enough tokens for every kernel of the forward pass, few enough to be fast.
_PROBE_TOKENS = 8
_MOST_IN_A_ROW = 20
"""Loads in place after a full one, before the next full one."""


class WorkerExtension(RankCalls):
    """Methods added to the engine's workers. All names begin with `rlfleet_`."""

    _rlfleet_memory: Memory | str | None = None
    """The parameters before the load under way, or why they are not known."""
    _rlfleet_recorder: Recorder | None = None
    """Of the update over a collective that is under way."""
    _rlfleet_bytes: Held | None = None
    _rlfleet_device: CudaRuntime | None = None
    _rlfleet_finder: Finder | None = None
    _rlfleet_loaded: frozenset[Key] | None = None
    """The sealed files whose values the model has; None if it has others, or may have."""
    _rlfleet_in_a_row = 0
    _rlfleet_before: Memory | str | None = None
    """The parameters as they are, for the next load; None if they were not sampled since the last change."""
    _rlfleet_gave_up: str | None = None
    """Why this process loads no more versions in place."""

    def rlfleet_missing_names(self) -> list[str]:
        """Return the names that the methods here need and the engine lacks. The first call to an engine."""
        _allow_amx()
        return missing_on(self) + missing_names(ENGINE_NAMES)

    def rlfleet_load(
        self,
        files: Sequence[str],
        copies: Mapping[str, str],
        casts: Mapping[str, str],
        *,
        digests: Mapping[str, str] | None,
        started: bool,
        again: bool = False,
    ) -> dict[str, Any]:
        """Put the tensors of some files into the model.

        Args:
            files: Paths of open descriptors of the API server (`/proc/PID/fd/N`), so that no name is opened a
                second time.
            copies: Name of a tensor that the files lack → the tensor in them that it equals.
            casts: Name of a tensor → the type that it gets.
            digests: Tensor name → digest of the stage, which the bytes that are read must have. None if the
                files are sealed bytes in memory.
            started: The engine has started on these files. Values that vLLM loses when it reloads, and
                puts back, are theirs: no load of other files has ended well in such a model.
            again: A load in place of the same files was tried right before, so the effect is the change since then.

        Returns:
            `{ok, touched, error, reason, copy_seconds}`. `touched` tells whether the model may have changed.
            `reason` is that of a `Refusal`. `copy_seconds`: until the device had all bytes.
        """
        readers: list[Reader] = []
        touched = False
        try:
            digested = Digested(digests) if digests is not None else None
            for path in files:  # one by one, so that those before a bad one are closed
                readers.append(Reader(path, digested, self._rlfleet_held().content_of))  # noqa: PERF401 - see above
            if digested is not None:
                digested.check_names(spec.name for reader in readers for spec in reader.specs)
            model = self.model_runner.get_model()  # type: ignore[attr-defined]  # of vLLM's Worker
            touched = True
            self._rlfleet_loaded, self._rlfleet_in_a_row = None, 0
            drop_unfinished(model)
            if not (again and isinstance(self._rlfleet_memory, Memory)):
                self.rlfleet_remember()
            began = time.monotonic()
            self._rlfleet_reload(tensors_of(readers, copies, casts), started=started)
            seconds = time.monotonic() - began
            if digested is None:
                self._rlfleet_loaded = frozenset(reader.key for reader in readers)
        except Exception as error:  # noqa: BLE001 - any failure is an answer, see above
            if touched:
                self._rlfleet_memory = None
                drop_unfinished(model)  # what runs the model before the next load finds tensors
            reason = error.reason.value if isinstance(error, Refusal) else None
            failed = {"ok": False, "touched": touched, "error": described(error)}
            return failed | {"reason": reason, "copy_seconds": None}
        finally:
            for reader in readers:
                reader.close()
        done = {"ok": True, "touched": True, "error": None, "reason": None}
        return done | {"copy_seconds": seconds}

    def rlfleet_load_in_place(
        self,
        files: Sequence[str],
        base: Sequence[str],
        copies: Mapping[str, str],
        casts: Mapping[str, str],
    ) -> dict[str, Any]:
        """Write what differs between two versions in sealed memory into the model, which has the first of them.

        Args:
            files: Paths of the descriptors of the version.
            base: Those of the version before.
            copies: As of `rlfleet_load`.
            casts: As of `rlfleet_load`.

        Returns:
            `{why_not, seconds}`. `why_not`: why the version must be loaded as a whole now; None if the model has it.
        """
        began = time.monotonic()
        self._rlfleet_memory = None
        try:
            with torch.inference_mode():
                self._rlfleet_change(files, base, copies, casts)
        except Exception as error:  # noqa: BLE001 - any failure is an answer, see above
            if isinstance(error, PartlyWrittenError):
                self._rlfleet_gave_up = f"an earlier load in place has failed: {error}"
            known = isinstance(error, NotInPlaceError | PartlyWrittenError)
            why = str(error) if known else described(error)
            return {"why_not": why, "seconds": None}
        return {"why_not": None, "seconds": time.monotonic() - began}

    def _rlfleet_change(
        self,
        files: Sequence[str],
        base: Sequence[str],
        copies: Mapping[str, str],
        casts: Mapping[str, str],
    ) -> None:
        if why := self._rlfleet_unfit():
            raise NotInPlaceError(why)
        if self._rlfleet_in_a_row >= _MOST_IN_A_ROW:
            raise NotInPlaceError(f"{_MOST_IN_A_ROW} versions in a row were loaded in place")
        from fleet_worker.engine.in_place import change  # noqa: PLC0415 - tests lack it

        model = self.model_runner.get_model()  # type: ignore[attr-defined]  # of vLLM's Worker
        with ExitStack() as until_written:
            base_keys = frozenset(key_of(opened(path, until_written)) for path in base)
            content_of = self._rlfleet_held().content_of
            now = [
                until_written.enter_context(closing(Reader(path, None, content_of)))
                for path in files
            ]
            if self._rlfleet_loaded != base_keys:
                raise NotInPlaceError("the engine does not have exactly the version before")
            keys = frozenset(reader.key for reader in now)
            found = self._rlfleet_finding().found(base_keys, keys)
            changes = dict(found.tensors)
            if cast := next((name for name in changes if name in casts), None):
                raise NotInPlaceError(f"a load casts {cast}")
            changes |= {name: changes[o] for name, o in copies.items() if o in changes}

            def leave_base() -> None:
                self.rlfleet_remember()
                self._rlfleet_loaded = None

            new = [*tensors_of(now, copies, {}, changes)]
            change(model, new, changes, about_to_write=leave_base)
        self._rlfleet_in_a_row += 1
        self._rlfleet_loaded = keys

    def rlfleet_hold(
        self,
        links: Sequence[str],
        base: Sequence[str] = (),
        room: int = 0,
        *,
        samples: bool = False,
    ) -> dict[str, Any]:
        """Hold the bytes of a staged version for its load, and let go of all others; see `Held.want`.

        The comparison comes last: it takes longer than all else, memory of the version before must not wait
        for it, and a load goes well without it.

        Args:
            links: Paths of the descriptors of the version.
            base: Those of the version in the engine, to find what differs; empty to find nothing.
            room: Bytes that this process may keep of what differs.
            samples: Sample the parameters, too, once all else is done. So a pause need not.

        Returns:
            Those of `Held.state`, and `changes`: bytes that it keeps of what differs.
        """
        held, finding = self._rlfleet_held(), self._rlfleet_finding()
        held.want(links)
        finding.want(base, links, room)
        answer = held.state() | {"changes": finding.size_bytes}  # read after `done`
        # Not in an update over a collective: its effect is that of all of it.
        if samples and answer["done"] and self._rlfleet_recorder is None:
            self._rlfleet_before = self._rlfleet_before or self._rlfleet_sample()
        return answer

    def _rlfleet_held(self) -> Held:
        if self._rlfleet_bytes is None:
            self._rlfleet_device = runtime_here()
            self._rlfleet_bytes = Held(self._rlfleet_device)
        return self._rlfleet_bytes

    def _rlfleet_finding(self) -> Finder:
        if self._rlfleet_finder is None:
            self._rlfleet_finder = Finder(self._rlfleet_held(), self._rlfleet_unfit)
        return self._rlfleet_finder

    def _rlfleet_unfit(self) -> str | None:
        """Return why this process can load no version in place, or None."""
        from fleet_worker.engine.in_place import unfit_for_changes  # noqa: PLC0415 - tests lack it

        model = self.model_runner.get_model()  # type: ignore[attr-defined]  # of vLLM's Worker
        return self._rlfleet_gave_up or unfit_for_changes(model, self.vllm_config)  # type: ignore[attr-defined]  # of vLLM's Worker

    def rlfleet_remember(self) -> None:
        """Keep a sample of the parameters, which are about to change, to compare them later. Never fails.

        A load must not fail because its effect cannot be measured.
        """
        self._rlfleet_memory = self._rlfleet_before or self._rlfleet_sample()
        self._rlfleet_before = None

    def _rlfleet_sample(self) -> Memory | str:
        try:
            model = self.model_runner.get_model()  # type: ignore[attr-defined]  # of vLLM's Worker
            config = self.vllm_config  # type: ignore[attr-defined]  # of vLLM's Worker
            return Memory(model, config)
        except Exception as error:  # noqa: BLE001 - see above
            return f"the parameters could not be sampled: {described(error)}"

    def rlfleet_effect(self) -> dict[str, Any]:
        """Return the changes since `rlfleet_remember`, and drop its sample.

        Returns:
            See `engine.effect.combined`.
        """
        memory, self._rlfleet_memory = self._rlfleet_memory, None
        if not isinstance(memory, Memory):
            return not_compared(memory or "the parameters before the load are not known")
        try:
            return memory.compared(self.model_runner.get_model())  # type: ignore[attr-defined]  # of vLLM's Worker
        except Exception as error:  # noqa: BLE001 - see above
            return not_compared(f"the parameters could not be compared: {described(error)}")

    def _rlfleet_reload(
        self, tensors: Iterator[tuple[str, torch.Tensor]], *, started: bool
    ) -> None:
        model = self.model_runner.get_model()  # type: ignore[attr-defined]  # of vLLM's Worker
        take_new_shapes(model)
        recorder = Recorder(model, is_whole=True, may_lose=started)
        held = self._rlfleet_held().registered()
        device = self._rlfleet_device
        try:
            with device.copying(held) if device is not None else nullcontext():
                self.reload_weights(weights_iterator=tensors)  # type: ignore[attr-defined]  # vLLM's
        finally:
            recorder.remove()
        renew_copies(model, recorder.left_out)
        # vLLM only warns about a parameter that was not written. Here it is an error, because such a
        # model is half old and half new. Quantised layers add parameters of their own.
        quantised = self.vllm_config.model_config.quantization is not None  # type: ignore[attr-defined]  # of vLLM's Worker
        if quantised or recorder.written is None:
            return
        if missing := recorder.required - recorder.written:
            raise RuntimeError(
                f"the load did not write all parameters: {len(missing)} missing, such as"
                f" {min(missing)}"
            )

    def rlfleet_start_transfer(self) -> None:
        """Start an update over a collective, and record what it writes."""
        self._rlfleet_loaded = None
        model = self.model_runner.get_model()  # type: ignore[attr-defined]  # of vLLM's Worker
        take_new_shapes(model)
        self.start_weight_update()  # type: ignore[attr-defined]  # of vLLM's Worker
        self._rlfleet_stop_recording()
        self._rlfleet_recorder = Recorder(model, is_whole=False)

    def _rlfleet_stop_recording(self) -> None:
        if self._rlfleet_recorder is not None:
            self._rlfleet_recorder.remove()
        self._rlfleet_recorder = None

    def rlfleet_finish_transfer(self) -> None:
        """End an update, of which all weights have arrived.

        Errors:
            RuntimeError: vLLM would lose some of them.
        """
        recorder = self._rlfleet_recorder
        if recorder is not None:
            recorder.look()
        self._rlfleet_stop_recording()
        self.finish_weight_update()  # type: ignore[attr-defined]  # of vLLM's Worker
        model = self.model_runner.get_model()  # type: ignore[attr-defined]  # of vLLM's Worker
        renew_copies(model, recorder.left_out if recorder is not None else ())

    def rlfleet_cancel_transfer(self) -> dict[str, Any]:
        """Cancel a transfer that has begun and will not finish.

        vLLM does so itself only if receiving fails, and not if the sender stops.

        Returns:
            `{ok}`.
        """
        engine = self.weight_transfer_engine  # type: ignore[attr-defined]  # of vLLM's Worker
        if engine is not None:
            engine.reset_weight_update_target()
        self._weight_update_active = False
        self._rlfleet_stop_recording()
        drop_unfinished(self.model_runner.get_model())  # type: ignore[attr-defined]  # of vLLM's Worker
        return {"ok": True}

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # torch is not there to be checked
    def rlfleet_checksum(self) -> dict[str, Any]:
        """Return a checksum of this process's parameters.

        It ignores parameters with one element, such as scales that layers compute themselves.

        Returns:
            `{checksum, complete}`. `complete` is False if kernels keep values for themselves, as on CPUs.
        """
        model = self.model_runner.get_model()  # type: ignore[attr-defined]  # of vLLM's Worker
        parameters = [(n, p) for n, p in model.named_parameters() if p.numel() != 1]
        known = [(n, p) for n, p in parameters if is_known(p)]
        return {"checksum": checksum_of(known), "complete": len(known) == len(parameters)}

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # torch is not there to be checked
    def rlfleet_probe(self) -> dict[str, Any]:
        """Run a few tokens through the model, and check that its output is finite.

        The output is the logits, or the tensors for the next stage of a pipeline. The scheduler is
        paused, so no request can do this. The dummy batch changes no block of a request.

        Returns:
            `{ok, error}`.
        """
        try:
            runner = self.model_runner  # type: ignore[attr-defined]  # of vLLM's Worker
            output, hidden = forward_pass(self, _PROBE_TOKENS, wait=_wait_for_device)
            if isinstance(hidden, torch.Tensor) and hidden.numel() > 0:
                outputs = {"the logits": runner.get_model().compute_logits(hidden)}
            else:
                tensors = getattr(output, "tensors", None) or {}
                # A padded batch may have any values after our tokens.
                outputs = {f"the stage's {n}": t[:_PROBE_TOKENS] for n, t in tensors.items()}
            bad = [name for name, values in outputs.items() if not _finite(values)]
        except Exception as error:  # noqa: BLE001 - any failure is an answer, see above
            return {"ok": False, "error": f"the forward pass failed: {described(error)}"}
        if not outputs:
            return {"ok": False, "error": "the forward pass returned neither logits nor tensors"}
        if bad:
            return {"ok": False, "error": f"{bad[0]} are infinite or not numbers"}
        return {"ok": True, "error": None}


def _allow_amx() -> None:
    """Ask the kernel for the processor's matrix registers (AMX).

    vLLM uses them in its attention for CPUs. Only larger matrix products ask for them, so a short first
    request would end the process with an illegal instruction.
    """
    allow = getattr(getattr(torch, "cpu", None), "_init_amx", None)
    if allow is not None:
        allow()  # does nothing on other processors


def _wait_for_device() -> None:
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None and accelerator.is_available():
        accelerator.synchronize()


def _finite(values: torch.Tensor) -> bool:
    return bool(torch.isfinite(values.float()).all())
