"""A deterministic engine without a model, for tests of everything above the Engine Protocol.

It has a thread, a queue, steps of several tokens and every boundary that a request can set; what it says is a
toy: one token per byte and a next token that prompt, position and (above temperature 0) seed decide. Other
sampling knobs change nothing. Tests script the output (`spell`), hold the thread at a step (`StepGate`) and
raise faults (`before_step`).
"""

from __future__ import annotations

import codecs
import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from respsd.engine.api import Deliver, EngineLoad, ModelInfo
from respsd.engine.events import (
    FinishReason,
    PromptScored,
    RequestFailed,
    RequestFinished,
    TokenLogProb,
    TokensCommitted,
    Usage,
)
from respsd.engine.queue import QueueLimits, RequestQueue, Waiting
from respsd.engine.request import GenerationRequest
from respsd.engine.stopping import StopScanner
from respsd.errors import EngineFault, EngineUnavailable, InvalidRequest, RespsdError, UnknownPolicy

EOS = 256
VOCAB_SIZE = 257
ROLES = ("system", "user", "assistant")

NextToken = Callable[[GenerationRequest, int], int]
"""The token at an index of a request's output."""

BeforeStep = Callable[[GenerationRequest, int], None]
"""Called on the engine's thread with a request and the step to come (0: the prefill); may raise, as a fault."""


def babble(request: GenerationRequest, index: int) -> int:
    """A small letter or a space, decided by prompt, index and, where the request samples, its seed."""
    seed = None if request.sampling.is_greedy else request.sampling.seed
    digest = hashlib.blake2b(repr((request.prompt_ids, index, seed)).encode(), digest_size=2).digest()
    return b"abcdefghijklmnopqrstuvwxyz "[int.from_bytes(digest) % 27]


def spell(text: str) -> NextToken:
    """Output that reads `text` and then ends with EOS; where EOS is ignored it starts again."""
    ids = (*text.encode(), EOS)
    return lambda _, index: ids[index % len(ids)]


def toy_scores(tokens: Sequence[int], top: int | None) -> tuple[TokenLogProb, ...]:
    """Log-probs that a request asks for: a token's is -id / 256 everywhere, so the lowest ids are the most probable."""
    if top is None:
        return ()
    best = tuple((token, -token / 256) for token in range(top))
    return tuple(TokenLogProb(token, -token / 256, best) for token in tokens)


class ByteTokenizer:
    """One token per UTF-8 byte, and EOS; no special token before a prompt, so an empty text has no tokens."""

    has_chat_template = True
    bos_token_id = None

    def encode(self, text: str) -> list[int]:
        """The text's bytes."""
        return list(text.encode())

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """`role: content` lines, then the assistant's turn; refuses roles other than ROLES."""
        for message in messages:
            if message["role"] not in ROLES:
                raise InvalidRequest("prompt.chat.messages.role", message["role"], f"it must be one of {ROLES}")
        lines = [f"{message['role']}: {message['content']}\n" for message in messages]
        return self.encode("".join(lines) + "assistant: ")

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The bytes' text; EOS reads `<eos>` where it is not skipped."""
        eos = b"" if skip_special_tokens else b"<eos>"
        return b"".join(eos if id == EOS else bytes([id]) for id in token_ids).decode(errors="replace")

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """Each token alone; a byte that is no character by itself reads U+FFFD."""
        return [self.decode([id], skip_special_tokens=False) for id in token_ids]


class StepGate:
    """Lets the engine's steps through; closed, it is a wedged engine that moves by `allow` only."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._open = True
        self._permits = 0

    def close(self) -> None:
        """Hold the engine before its next step."""
        with self._condition:
            self._open, self._permits = False, 0

    def open(self) -> None:
        """Let all steps through."""
        with self._condition:
            self._open = True
            self._condition.notify_all()

    def allow(self, steps: int) -> None:
        """Let that many more steps through a closed gate."""
        with self._condition:
            self._permits += steps
            self._condition.notify_all()

    def wait(self) -> None:
        """Pass once; called on the engine's thread."""
        with self._condition:
            self._condition.wait_for(lambda: self._open or self._permits > 0)
            if not self._open:
                self._permits -= 1


class _ByteText:
    """One request's text, byte by byte: the bytes of an unfinished character are held back."""

    def __init__(self, *, skip_special_tokens: bool) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._eos = "" if skip_special_tokens else "<eos>"

    def push(self, token_id: int) -> str:
        """The text that became certain with this token."""
        return self.flush() + self._eos if token_id == EOS else self._decoder.decode(bytes([token_id]))

    def flush(self) -> str:
        """What was held back."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text


class _Sequence:
    """A request in the engine and what it has done."""

    def __init__(self, entry: Waiting) -> None:
        self.request = request = entry.request
        self.deliver = entry.deliver
        self.ends_at_ns = entry.ends_at_ns
        self.output: list[int] = []
        self.scanner = StopScanner(request, (EOS,), _ByteText(skip_special_tokens=request.skip_special_tokens))
        self.matched_stop: str | None = None
        self.steps = self.drafted = self.accepted = 0
        self.versions: list[int] = []
        self.prefilled = False

    def finish(self, reason: FinishReason) -> None:
        """Deliver the end, and before it the text that was held back."""
        if held := self.scanner.close():
            self.deliver(TokensCommitted((), held))
        usage = Usage(len(self.request.prompt_ids), len(self.output))
        self.deliver(
            RequestFinished(
                reason=reason,
                usage=usage,
                seed=self.request.sampling.seed,
                steps=self.steps,
                drafted_tokens=self.drafted,
                accepted_tokens=self.accepted,
                policy_version_first=self.versions[0] if self.versions else None,
                policy_version_last=self.versions[-1] if self.versions else None,
                matched_stop=self.matched_stop,
            )
        )


class StubEngine:
    """The Engine Protocol over a toy model; a step commits `tokens_per_step` tokens, one where it is off."""

    def __init__(
        self,
        *,
        next_token: NextToken = babble,
        tokens_per_step: int = 4,
        context_length: int = 4096,
        max_running: int = 8,
        max_waiting: int = 64,
        queue: QueueLimits | None = None,
        policies: Mapping[str, int] | None = None,
        before_step: BeforeStep | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.model = ModelInfo(
            "stub", "stub-drafter", "float32", "cpu", VOCAB_SIZE, context_length, eos_token_ids=(EOS,)
        )
        self.tokenizer = ByteTokenizer()
        self.gate = StepGate()
        self.champion = 1
        """The version that serves requests that name none; a test may swap it in mid-request."""
        self._next_token = next_token
        self._tokens_per_step = tokens_per_step
        self._max_running = max_running
        self._policies = {"1": 1, "baseline": 1} if policies is None else dict(policies)
        self._before_step = before_step
        self._clock = clock
        self._changed = threading.Condition()  # guards everything below
        self._waiting = RequestQueue(queue or QueueLimits(max_requests=max_waiting))
        self._running: list[_Sequence] = []
        self._cancelled: set[str] = set()
        self._taking = False
        self._progress_at = clock()
        self._thread = threading.Thread(target=self._loop, name="stub-engine", daemon=True)

    def start(self) -> None:
        """Start the thread; once."""
        self._taking = True
        self._thread.start()

    def check(self, request: GenerationRequest) -> None:
        """Refuse what can never run; see Engine.check."""
        total, context = len(request.prompt_ids) + request.stopping.max_new_tokens, self.model.context_length
        if total > context:
            limit = f"the context has {context} tokens"
            raise InvalidRequest("stopping.max_new_tokens", request.stopping.max_new_tokens, limit)
        policy = request.speculation.policy
        if policy is not None and policy not in self._policies:
            raise UnknownPolicy(policy)

    def submit(self, request: GenerationRequest, deliver: Deliver) -> None:
        """Queue a request; see Engine.submit."""
        self.check(request)
        with self._changed:
            if not self._taking:
                raise EngineUnavailable("the engine is not running")
            is_idle = not (self._running or self._waiting)
            self._waiting.add(Waiting(request, deliver, self._now_ns(), time.time_ns()))
            if is_idle:
                self._progress_at = self._clock()
            self._changed.notify_all()

    def check_room(self) -> None:
        """Raise Overloaded where the queue is full."""
        with self._changed:
            self._waiting.check_room()

    def cancel(self, request_id: str) -> None:
        """End a request at the next step; one that waits makes room at once."""
        with self._changed:
            self._waiting.cancel(request_id)
            if any(s.request.request_id == request_id for s in self._running):
                self._cancelled.add(request_id)

    def load(self) -> EngineLoad:
        """The work now; the toy reserves each request's whole budget."""
        with self._changed:
            work = self._running or self._waiting
            reserved = sum(len(s.request.prompt_ids) + s.request.stopping.max_new_tokens for s in self._running)
            return EngineLoad(
                running=len(self._running),
                waiting=len(self._waiting),
                kv_tokens_reserved=reserved,
                kv_tokens_total=self._max_running * self.model.context_length,
                seconds_since_progress=self._clock() - self._progress_at if work else 0.0,
                max_running=self._max_running,
                queue=self._waiting.load(self._now_ns()),
            )

    def stop(self) -> None:
        """Fail what is left and end the thread; idempotent."""
        with self._changed:
            self._taking = False
            self._changed.notify_all()
        self.gate.open()
        if self._thread.is_alive():
            self._thread.join()
        left = [*(sequence.deliver for sequence in self._running), *(entry.deliver for entry in self._waiting.clear())]
        self._running = []
        for deliver in left:
            deliver(RequestFailed(EngineUnavailable("the engine was stopped")))

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._running or not self._waiting.is_empty or not self._taking)
                if not self._taking:
                    return
            self.gate.wait()
            self._retire()
            self._admit()
            for sequence in list(self._running):
                self._advance(sequence)
            with self._changed:
                self._progress_at = self._clock()

    def _retire(self) -> None:
        """End what is cancelled or out of time."""
        with self._changed:
            ids, self._cancelled = self._cancelled, set()
            retired = [s for s in self._running if s.request.request_id in ids]
            self._running = [s for s in self._running if s not in retired]
            retired += [_Sequence(entry) for entry in self._waiting.cancelled()]
            now = self._now_ns()
            late = [s for s in self._running if s.ends_at_ns <= now]
            self._running = [s for s in self._running if s not in late]
            late += [_Sequence(entry) for entry in self._waiting.out_of_time(now)]
        for sequence in retired:
            sequence.finish(FinishReason.CANCELLED)
        for sequence in late:
            sequence.finish(FinishReason.TIME_LIMIT)

    def _admit(self) -> None:
        with self._changed:
            overdue = self._waiting.overdue(self._now_ns())
            while len(self._running) < self._max_running and (entry := self._waiting.first()) is not None:
                self._waiting.start(entry, self._now_ns())
                self._running.append(_Sequence(entry))
        for entry, error in overdue:
            entry.deliver(RequestFailed(error))

    def _advance(self, sequence: _Sequence) -> None:
        """Run a sequence's prefill or one step, and deliver what came of it."""
        try:
            if self._before_step is not None:
                self._before_step(sequence.request, sequence.steps + sequence.prefilled)
            reason = self._commit(sequence)
        except Exception as error:  # noqa: BLE001  a fault ends its own request only, whatever it is
            self._remove(sequence)
            fault = error if isinstance(error, RespsdError) else EngineFault(f"the step failed: {error}")
            sequence.deliver(RequestFailed(fault))
            return
        if reason is not None:
            self._remove(sequence)
            sequence.finish(reason)

    def _commit(self, sequence: _Sequence) -> FinishReason | None:
        request, first = sequence.request, len(sequence.output)
        action = request.speculation.action
        width = 1 if not sequence.prefilled or (action is not None and action.is_off) else self._tokens_per_step
        tokens = [self._allowed_token(request, index) for index in range(first, first + width)]
        cut = sequence.scanner.scan(tokens)
        committed = tuple(tokens[: cut.kept])
        sequence.output += committed
        sequence.matched_stop = cut.matched_stop
        if sequence.prefilled:
            sequence.steps += 1
            sequence.drafted += width - 1
            sequence.accepted += min(len(committed), width - 1)
            if action is None:
                named = request.speculation.policy
                sequence.versions.append(self.champion if named is None else self._policies[named])
        if not sequence.prefilled and request.prompt_log_probs is not None:
            first, *others = request.prompt_ids
            scores = toy_scores(others, request.prompt_log_probs)
            sequence.deliver(PromptScored((TokenLogProb(first, None), *scores)))
        sequence.prefilled = True
        sequence.deliver(TokensCommitted(committed, cut.text, toy_scores(committed, request.log_probs)))
        return cut.reason

    def _allowed_token(self, request: GenerationRequest, index: int) -> int:
        """The next token; a space where min_new_tokens bars it."""
        token, stopping = self._next_token(request, index), request.stopping
        barred = (*stopping.stop_token_ids, *(() if stopping.ignore_eos else (EOS,)))
        return ord(" ") if index < stopping.min_new_tokens and token in barred else token

    def _now_ns(self) -> int:
        return round(self._clock() * 1e9)

    def _remove(self, sequence: _Sequence) -> None:
        with self._changed:
            self._running = [s for s in self._running if s is not sequence]
            self._cancelled.discard(sequence.request.request_id)
