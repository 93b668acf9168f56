"""The engine's loop: one thread that admits, prefills, steps and ends sequences.

Sequences join and leave between steps. A step serves every sequence whose prompt is in, and takes along as many tokens
of the other prompts, in the order of their arrival, as do not hold up the running streams too much (see `pace`).
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import structlog
import torch

from respsd.clock import Clock
from respsd.engine.admission import Admission
from respsd.engine.api import Deliver, EngineLoad, ModelInfo, Tokenizer
from respsd.engine.ending import cancelled_in_queue, request_record
from respsd.engine.events import FinishReason, RequestFailed, RequestFinished
from respsd.engine.hooks import EngineHooks
from respsd.engine.pace import PrefillPace
from respsd.engine.request import GenerationRequest
from respsd.engine.sequence import Sequence
from respsd.engine.step import PromptPart, Stepper
from respsd.errors import EngineFault, EngineUnavailable, Overloaded, RespsdError
from respsd.experience.records import ExperienceSink

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LoopLimits:
    """How much the loop takes on at once."""

    max_running: int = 32
    max_waiting: int = 256
    prefill_chunk: int = 512
    """Prompt tokens that one step takes at most."""
    step_tokens: int | None = None
    """Tokens that one step takes at most once sequences run, prompt tokens and trees together; None: no such bound."""
    prefill_slowdown: float = 1.6
    """How many times as long as usual a step may take because prompt tokens go along."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    request: GenerationRequest
    deliver: Deliver
    submitted_ns: int
    created_at_ns: int


class EngineLoop:
    """The real Engine (see `api.Engine`)."""

    def __init__(
        self,
        model: ModelInfo,
        tokenizer: Tokenizer,
        stepper: Stepper,
        admission: Admission,
        sink: ExperienceSink,
        limits: LoopLimits,
        clock: Clock,
        hooks: EngineHooks,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self._stepper = stepper
        self._admission = admission
        self._sink = sink
        self._limits = limits
        self._clock = clock
        self._hooks = hooks
        self._pace = PrefillPace(limits.prefill_chunk, limits.step_tokens, limits.prefill_slowdown)
        self._wake = threading.Condition()
        # Shared with callers, under _wake:
        self._waiting: deque[_Waiting] = deque()
        self._cancelled: set[str] = set()
        self._accepting = False
        self._died = False
        # The loop's own:
        self._running: list[Sequence] = []
        self._progress_ns = clock.monotonic_ns()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._accepting = True
        self._thread.start()

    def submit(self, request: GenerationRequest, deliver: Deliver) -> None:
        """See `Engine.submit`."""
        self._admission.check(request)
        entry = _Waiting(request, deliver, self._clock.monotonic_ns(), self._clock.time_ns())
        with self._wake:
            if not self._accepting:
                raise EngineUnavailable("the engine is not running")
            if len(self._waiting) >= self._limits.max_waiting:
                raise Overloaded("the queue", len(self._waiting), self._limits.max_waiting)
            if not self._waiting and not self._running:
                self._progress_ns = self._clock.monotonic_ns()
            self._waiting.append(entry)
            self._wake.notify()

    def cancel(self, request_id: str) -> None:
        """See `Engine.cancel`."""
        with self._wake:
            self._cancelled.add(request_id)
            self._wake.notify()

    def load(self) -> EngineLoad:
        """See `Engine.load`."""
        pool = self._admission.pool
        with self._wake:
            waiting, running = len(self._waiting), len(self._running)
        age = 0.0
        if self._died:
            age = math.inf
        elif waiting or running:
            age = (self._clock.monotonic_ns() - self._progress_ns) / 1e9
        return EngineLoad(running, waiting, pool.reserved_tokens, pool.total_tokens, age)

    def stop(self) -> None:
        """See `Engine.stop`."""
        with self._wake:
            self._accepting = False
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                while self._wait_for_work():
                    self._round()
        except BaseException:
            self._died = True
            log.critical("engine_died", exc_info=True)
            raise
        finally:
            with self._wake:
                self._accepting = False
            self._fail_all(EngineUnavailable("the engine was stopped"))

    def _wait_for_work(self) -> bool:
        """Sleep while there is nothing to do; False once the engine is to stop."""
        with self._wake:
            while self._accepting and not self._waiting and not self._running:
                # Ids of requests that are already gone.
                self._cancelled.clear()
                self._wake.wait()
            return self._accepting

    def _round(self) -> None:
        """Cancels and joins, then one step."""
        self._apply_cancels()
        self._admit()
        batch = [s for s in self._running if s.prefilled and s.ended is None]
        prompts = self._prompt_parts(batch)
        if batch or prompts:
            self._guard([*batch, *(part.sequence for part in prompts)], lambda: self._step(batch, prompts))
        self._reap()
        self._progress_ns = self._clock.monotonic_ns()

    def _prompt_parts(self, batch: list[Sequence]) -> list[PromptPart]:
        """What the next step takes of the prompts that are not in yet, the oldest first; short ones share the room."""
        waiting = [s for s in self._running if not s.prefilled and s.ended is None]
        if not waiting:
            return []
        room = self._pace.budget(len(batch), max((s.tree_tokens for s in batch), default=0))
        parts: list[PromptPart] = []
        for sequence in waiting:
            count = min(room, len(sequence.request.prompt_ids) - sequence.cache.length)
            if count == 0:
                break
            parts.append(PromptPart(sequence, count))
            room -= count
        return parts

    def _step(self, batch: list[Sequence], prompts: list[PromptPart]) -> None:
        for sequence in self._stepper.step(batch, prompts, self._pace):
            self._hooks.after_prefill((self._clock.monotonic_ns() - sequence.submitted_ns) / 1e9)

    def _guard(self, batch: list[Sequence], work: Callable[[], None]) -> None:
        """Run a piece of model work; whatever it raises ends the sequences in it, never the loop."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the loop outlives whatever one request does
            fault = _as_fault(error, [s.request.request_id for s in batch])
            for sequence in batch:
                sequence.fail(fault)

    def _apply_cancels(self) -> None:
        with self._wake:
            cancelled, self._cancelled = self._cancelled, set()
            dropped = [entry for entry in self._waiting if entry.request.request_id in cancelled]
            for entry in dropped:
                self._waiting.remove(entry)
        for sequence in self._running:
            if sequence.request.request_id in cancelled:
                sequence.end(FinishReason.CANCELLED)
        for entry in dropped:
            finished = cancelled_in_queue(entry.request, self._clock.monotonic_ns() - entry.submitted_ns)
            entry.deliver(finished)
            self._hooks.after_request(finished)
        self._reap()

    def _admit(self) -> None:
        """Start waiting requests in order; the first that does not fit holds back those behind it."""
        while self._waiting and len(self._running) < self._limits.max_running:
            entry = self._waiting[0]  # Only this thread takes entries out.
            try:
                sequence = self._admission.admit(entry.request, entry.deliver, entry.submitted_ns, entry.created_at_ns)
            except Exception as error:  # noqa: BLE001 - likewise
                entry.deliver(RequestFailed(_as_fault(error, [entry.request.request_id])))
                self._hooks.request_failed()
            else:
                if sequence is None:
                    return
                self._running.append(sequence)
            with self._wake:
                self._waiting.popleft()

    def _reap(self) -> None:
        """Say goodbye to ended sequences: last event, rows, memory."""
        ended = [sequence for sequence in self._running if sequence.ended is not None]
        if not ended:
            return
        self._running = [sequence for sequence in self._running if sequence.ended is None]
        for sequence in ended:
            self._stepper.close_window(sequence, truncated=True)
            self._admission.release(sequence)
            event = sequence.last_event()
            if isinstance(event, RequestFinished):
                self._record(sequence, event)
                self._hooks.after_request(event)
            else:
                self._hooks.request_failed()
            sequence.deliver(event)

    def _record(self, sequence: Sequence, finished: RequestFinished) -> None:
        if sequence.request.learning_opt_out:
            return
        self._sink.record(request_record(sequence, finished, self._clock.time_ns()), sequence.transitions)

    def _fail_all(self, error: RespsdError) -> None:
        with self._wake:
            waiting, self._waiting = list(self._waiting), deque()
        for sequence in self._running:
            sequence.fail(error)
        self._reap()
        for entry in waiting:
            entry.deliver(RequestFailed(error))
            self._hooks.request_failed()


def _as_fault(error: Exception, request_ids: list[str]) -> RespsdError:
    """The error that the client sees; what is not one of ours is logged and stays inside."""
    if isinstance(error, RespsdError):
        return error
    log.error("engine_fault", requests=request_ids, exc_info=error)
    return EngineFault("the engine failed on this request")
