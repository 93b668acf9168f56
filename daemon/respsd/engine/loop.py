"""The engine's loop: one thread that admits, prefills, steps and ends sequences.

Sequences join and leave between steps. A step serves every sequence whose prompt is in, and takes along as many tokens
of the other prompts, in the order of their arrival, as do not hold up the running streams too much (see `pace`).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection
from dataclasses import dataclass, field

import structlog
import torch

from respsd.clock import Clock
from respsd.engine.admission import Admission
from respsd.engine.api import Deliver, EngineLoad, ModelInfo, Tokenizer
from respsd.engine.ending import ended_in_queue, request_record
from respsd.engine.events import FinishReason, RequestFailed, RequestFinished
from respsd.engine.fitting import FittingSteps
from respsd.engine.hooks import EngineHooks
from respsd.engine.memory import Alone, is_device_lost, is_out_of_memory
from respsd.engine.pace import PrefillPace
from respsd.engine.prompting import PromptPart
from respsd.engine.queue import QueueLimits, RequestQueue, Waiting
from respsd.engine.request import GenerationRequest
from respsd.engine.scoring import SCORED_ROWS
from respsd.engine.sequence import Sequence
from respsd.engine.step import Stepper
from respsd.errors import EngineFault, EngineUnavailable, OutOfMemory, RespsdError
from respsd.experience.records import ExperienceSink

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LoopLimits:
    """How much the loop takes on at once."""

    max_running: int = 32
    queue: QueueLimits = field(default_factory=QueueLimits)
    prefill_chunk: int = 512
    """Prompt tokens that one step takes at most."""
    step_tokens: int | None = None
    """Tokens that one step takes at most once sequences run, prompt tokens and trees together; None: no such bound."""
    prefill_slowdown: float = 1.5
    """How many times as long as usual a step may take because prompt tokens go along."""


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
        self._steps = FittingSteps[Sequence | PromptPart](self._step, _half, _end_for_memory)
        self._wake = threading.Condition()
        # Shared with callers, under _wake:
        self._waiting = RequestQueue(limits.queue)
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
        entry = Waiting(request, deliver, self._clock.monotonic_ns(), self._clock.time_ns())
        with self._wake:
            if not self._accepting:
                raise EngineUnavailable("the engine is not running")
            is_idle = not self._waiting and not self._running
            self._waiting.add(entry)
            if request.sample == 0:
                self._cancelled.discard(request.request_id)  # was meant for a request before this one
            if is_idle:
                self._progress_ns = self._clock.monotonic_ns()
            self._wake.notify()

    def check(self, request: GenerationRequest) -> None:
        """See `Engine.check`."""
        self._admission.check(request)

    def check_room(self) -> None:
        """See `Engine.check_room`."""
        with self._wake:
            self._waiting.check_room()

    def cancel(self, request_id: str) -> None:
        """See `Engine.cancel`."""
        with self._wake:
            self._waiting.cancel(request_id)
            self._cancelled.add(request_id)
            self._wake.notify()

    def load(self) -> EngineLoad:
        """See `Engine.load`."""
        pool = self._admission.pool
        with self._wake:
            waiting, running = len(self._waiting), len(self._running)
            queue = self._waiting.load(self._clock.monotonic_ns())
        age = 0.0
        if self._died:
            age = math.inf
        elif waiting or running:
            age = (self._clock.monotonic_ns() - self._progress_ns) / 1e9
        most = self._limits.max_running
        return EngineLoad(running, waiting, pool.reserved_tokens, pool.total_tokens, age, most, queue)

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
            while self._accepting and self._waiting.is_empty and not self._running:
                # Ids of requests that are already gone.
                self._cancelled.clear()
                self._wake.wait()
            return self._accepting

    def _round(self) -> None:
        """Cancels, ends by time and joins, then one step."""
        self._apply_cancels()
        self._apply_time_limits()
        self._admit()
        batch = [s for s in self._running if s.prefilled and s.ended is None]
        prompts = self._prompt_parts(batch)
        if batch:
            self._hooks.before_batch()
        self._steps.run([*batch, *prompts])
        self._start_samples()
        self._reap()
        self._progress_ns = self._clock.monotonic_ns()

    def _prompt_parts(self, batch: list[Sequence]) -> list[PromptPart]:
        """What the next step takes of the prompts that are not in yet, the oldest first; short ones share the room."""
        waiting = [s for s in self._running if not s.prefilled and s.ended is None and not s.awaits_prompt]
        if not waiting:
            return []
        room = self._pace.budget(len(batch), max((s.tree_tokens for s in batch), default=0), len(waiting))
        parts: list[PromptPart] = []
        for sequence in waiting:
            count = min(room, len(sequence.request.prompt_ids) - sequence.cache.length)
            if count == 0:
                break
            if sequence.request.prompt_log_probs is not None:
                count = min(count, SCORED_ROWS)
            parts.append(PromptPart(sequence, count))
            room -= count
        return parts

    def _step(self, members: Collection[Sequence | PromptPart]) -> bool:
        """One step; False where memory ran out and nothing has changed. Any other fault ends who was in it."""
        batch = [member for member in members if isinstance(member, Sequence)]
        prompts = [member for member in members if isinstance(member, PromptPart)]
        started: list[Sequence] = []
        try:
            started = self._stepper.step(batch, prompts, self._pace)
        except OutOfMemory:
            return False
        except Exception as error:  # the loop outlives whatever one request does
            sequences = [*batch, *(part.sequence for part in prompts)]
            fault = _as_fault(error, [sequence.request.request_id for sequence in sequences])
            for sequence in sequences:
                sequence.fail(fault)
            if is_device_lost(error):
                raise
        for sequence in started:
            self._hooks.after_prefill((self._clock.monotonic_ns() - sequence.submitted_ns) / 1e9)
        return True

    def _start_samples(self) -> None:
        """Begin the samples of a request whose prompt is in with the first one."""
        for sequence in self._running:
            first = sequence.first_sample
            if first is None or first.prompt_end is None or sequence.prefilled or sequence.ended is not None:
                continue
            try:
                with Alone(sequence):
                    self._stepper.start_sample(sequence)
            except Exception as error:  # likewise
                sequence.fail(_as_fault(error, [sequence.request.request_id]))
                if is_device_lost(error):
                    raise
            if sequence.output:
                self._hooks.after_prefill((self._clock.monotonic_ns() - sequence.submitted_ns) / 1e9)

    def _apply_cancels(self) -> None:
        with self._wake:
            cancelled, self._cancelled = self._cancelled, set()
            dropped = self._waiting.cancelled()
        for sequence in self._running:
            if sequence.request.request_id in cancelled:
                sequence.end(FinishReason.CANCELLED)
        self._end_waiting(dropped, FinishReason.CANCELLED)
        self._reap()

    def _apply_time_limits(self) -> None:
        """End the requests whose own time is over, with what they have."""
        now = self._clock.monotonic_ns()
        with self._wake:
            late = self._waiting.out_of_time(now)
        self._end_waiting(late, FinishReason.TIME_LIMIT)
        for sequence in self._running:
            if sequence.is_out_of_time(now):
                sequence.end(FinishReason.TIME_LIMIT)
        self._reap()

    def _end_waiting(self, entries: list[Waiting], reason: FinishReason) -> None:
        """End requests that did not start; they are out of the queue."""
        for entry in entries:
            finished = ended_in_queue(entry.request, reason, self._clock.monotonic_ns() - entry.submitted_ns)
            self._hooks.after_request(finished)
            entry.deliver(finished)

    def _admit(self) -> None:
        """Start waiting requests in order; the first that does not fit holds back those behind it."""
        with self._wake:
            overdue = self._waiting.overdue(self._clock.monotonic_ns())
        for entry, error in overdue:
            self._refuse(entry, error)
        while len(self._running) < self._limits.max_running:
            with self._wake:
                first = self._waiting.first()
            if first is None or not self._start(first):
                return

    def _start(self, entry: Waiting) -> bool:
        """Make a sequence of a waiting request; False where its memory is not free now."""
        try:
            sequence = self._admission.admit(entry.request, entry.deliver, entry.submitted_ns, entry.created_at_ns)
        except Exception as error:  # noqa: BLE001 - likewise
            with self._wake:
                self._waiting.drop(entry)
            self._refuse(entry, _as_fault(error, [entry.request.request_id]))
            return True
        if sequence is None:
            return False
        if entry.request.sample:
            sequence.first_sample = next((s for s in self._running if s.is_first_sample_of(entry.request)), None)
        self._running.append(sequence)
        with self._wake:
            self._waiting.start(entry, self._clock.monotonic_ns())
        return True

    def _refuse(self, entry: Waiting, error: RespsdError) -> None:
        """End a request that never started."""
        self._hooks.request_failed()
        entry.deliver(RequestFailed(error))

    def _reap(self) -> None:
        """Say goodbye to ended sequences: last event, rows, memory."""
        ended = [sequence for sequence in self._running if sequence.ended is not None]
        if not ended:
            return
        self._running = [sequence for sequence in self._running if sequence.ended is None]
        for sequence in ended:
            self._stepper.close_window(sequence, truncated=True)
            self._forget_sample(sequence)
            self._admission.release(sequence)
            event = sequence.last_event()
            if isinstance(event, RequestFinished):
                self._record(sequence, event)
                self._hooks.after_request(event)
            else:
                self._hooks.request_failed()
            sequence.deliver(event)

    def _forget_sample(self, first: Sequence) -> None:
        """Let samples that have not begun prefill the prompt themselves: the first one's memory goes."""
        if first.request.samples > 1:
            for sequence in self._running:
                if sequence.first_sample is first:
                    sequence.first_sample = None

    def _record(self, sequence: Sequence, finished: RequestFinished) -> None:
        if sequence.request.learning_opt_out:
            return
        self._sink.record(request_record(sequence, finished, self._clock.time_ns()), sequence.transitions)

    def _fail_all(self, error: RespsdError) -> None:
        with self._wake:
            waiting = self._waiting.clear()
        for sequence in self._running:
            sequence.fail(error)
        self._reap()
        for entry in waiting:
            self._refuse(entry, error)


def _half(member: Sequence | PromptPart) -> PromptPart | None:
    """Of a prompt's tokens; a tree goes as a whole."""
    return member.half() if isinstance(member, PromptPart) else None


def _end_for_memory(member: Sequence | PromptPart) -> None:
    """End a request whose step does not fit the memory even alone."""
    sequence = member.sequence if isinstance(member, PromptPart) else member
    log.warning("out_of_memory", requests=[sequence.request.request_id])
    sequence.fail(OutOfMemory())


def _as_fault(error: Exception, request_ids: list[str]) -> RespsdError:
    """The error that the client sees; what is not one of ours is logged and stays inside."""
    if isinstance(error, RespsdError):
        return error
    if is_out_of_memory(error):
        log.warning("out_of_memory", requests=request_ids, error=str(error))
        return OutOfMemory()
    log.error("engine_fault", requests=request_ids, exc_info=error)
    return EngineFault("the engine failed on this request")
