"""Inventing prompts: the target writes user turns itself, so that training data can outgrow the prompts at hand.

A chat model that is given only the beginning of a user's turn completes the turn (Magpie, arXiv 2406.08464).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog
import torch

from respsd.clock import Clock
from respsd.drafter_training.batched_generation import BatchedGenerator, Job, check_context, load_generation_model
from respsd.drafter_training.collecting import ChatRenderer
from respsd.drafter_training.line_file import LineFile
from respsd.drafter_training.prompts import Skipped, first_turns, prompt_line
from respsd.engine.tokenizer import HfTokenizer
from respsd.errors import CheckpointError, InvalidRequest, TrainingDataError
from respsd.telemetry.progress import ProgressReport

log = structlog.get_logger(__name__)

SOURCE = "invented"
"""What an invented prompt's `source` says."""
_APPEND_AT = 32
"""Prompts that are written together; a kill loses at most these and the unfinished ones."""
_FEWEST_CHARACTERS = 12
"""Shorter turns are greetings and fragments."""
_TRIES_PER_PROMPT = 4
_SPARE_TRIES = 64
"""A run begins at most so many turns a prompt that is wanted, and these besides: a hopeless opening comes to an end,
and bad luck with the last few prompts is none."""
_NS_PER_SECOND = 1e9


@dataclass(frozen=True, slots=True)
class InventOptions:
    """Settings of an inventing run."""

    count: int
    """Different prompts in the file at which to stop."""
    openings: tuple[str, ...] = ("",)
    """How the turns begin, taken in turn; the target goes on from there."""
    temperature: float = 1.0
    max_tokens: int = 256
    """A turn that has not ended by then is left out and counted, unless `keep_unfinished`."""
    keep_unfinished: bool = False
    slots: int = 128
    """Turns that are written at once; memory grows with it (see `SlotCache`)."""
    seed: int = 0

    def validated(self) -> InventOptions:
        """Return self, or raise InvalidRequest naming the first field that is out of range."""
        for name, value in (("count", self.count), ("max_tokens", self.max_tokens), ("batch", self.slots)):
            if value < 1:
                raise InvalidRequest(name, value, "it must be at least 1")
        if not 0 < self.temperature <= 2:  # greedy turns would all be the same
            raise InvalidRequest("temperature", self.temperature, "it must be above 0 and at most 2")
        if not 0 <= self.seed < 1 << 32:
            raise InvalidRequest("seed", self.seed, f"it must be from 0 to {(1 << 32) - 1}")
        if not self.openings:
            raise InvalidRequest("opening", self.openings, "at least one is needed; it may be empty")
        for opening in self.openings:
            try:
                opening.encode()
            except UnicodeEncodeError as error:
                raise InvalidRequest("opening", opening, "it must be valid UTF-8") from error
        return self


@dataclass(frozen=True, slots=True)
class Invented:
    """What a run did."""

    prompts: int
    tokens: int
    """Of all turns, those left out too."""
    prompts_before: int
    """Different ones found in the file when it started."""
    skipped: Skipped
    """Turns that were left out."""


def invent(
    output: Path,
    target: Path,
    options: InventOptions,
    *,
    dtype: torch.dtype,
    device: torch.device,
    clock: Clock,
) -> Invented:
    """Append invented prompts to `output` until it holds `options.count`; the same call resumes.

    Raises InvalidRequest, CheckpointError where the target's chat template does not serve, and TrainingDataError where
    the file cannot be written or the openings give too few usable turns.
    """
    options.validated()
    with LineFile(output) as file:
        unusable = Skipped()
        known = first_turns(output, unusable)
        before, skipped = len(known), Skipped()
        wanted = options.count - before
        if wanted <= 0:
            return Invented(0, 0, before, skipped)
        tokenizer = HfTokenizer.load(target)
        if not tokenizer.has_chat_template:
            raise CheckpointError(str(target), "has no chat template: it cannot invent turns")
        turns = _Turns(tokenizer, options, known, skipped, wanted)
        longest = max(map(len, turns.starts)) + options.max_tokens
        model = load_generation_model(target, dtype, device)
        check_context(model, "opening + max_tokens", longest)
        generator = BatchedGenerator(
            model,
            slots=min(options.slots, wanted),
            capacity=longest,
            max_new_tokens=options.max_tokens,
            eos_token_ids=tokenizer.eos_token_ids,
            seed=options.seed + before,  # another seed for each run, or a resumed one would repeat its noise
        )
        log.info("inventing", prompts=wanted, prompts_before=before, lines_before=unusable.describe())
        written = _write(file, turns, generator, before, clock)
    if written < wanted:
        reason = f"only {written} of {wanted} prompts after {turns.begun} tries; {skipped.describe('turn')}"
        raise TrainingDataError(str(output), reason)
    return Invented(written, turns.tokens, before, skipped)


def turn_start(tokenizer: ChatRenderer, opening: str) -> list[int]:
    """The chat template's tokens up to where a user's turn that begins with `opening` goes on."""
    start = _before_last_end(tokenizer, opening)
    if not start or start == _before_last_end(tokenizer, f"{opening}."):  # the last end is one before the turn
        raise CheckpointError("chat template", "does not end a user's turn with an end token: it cannot invent turns")
    return start


def _before_last_end(tokenizer: ChatRenderer, turn: str) -> list[int]:
    ids = tokenizer.render_chat([{"role": "user", "content": turn}])
    ends = [place for place, token in enumerate(ids) if token in tokenizer.eos_token_ids]
    return ids[: ends[-1]] if ends else []


@dataclass(slots=True)
class _Turns:
    """The turns that a run begins, and which of them can serve as prompts.

    As many are begun as prompts are wanted, another one for each that turns out unusable, and all of them may end: a
    run that stopped at its last prompt would throw away what is still being written, which is the long ones.
    """

    tokenizer: HfTokenizer
    options: InventOptions
    known: set[str]
    skipped: Skipped
    wanted: int
    starts: list[list[int]] = field(init=False)
    first: int = field(init=False)
    """The first turn's number; a resumed run goes on with the next opening."""
    begun: int = 0
    tokens: int = 0

    def __post_init__(self) -> None:
        self.starts = [turn_start(self.tokenizer, opening) for opening in self.options.openings]
        self.first = len(self.known)

    def usable(self, generator: BatchedGenerator) -> Iterator[str]:
        """Texts of the turns that can serve, each once."""
        most = self.wanted * _TRIES_PER_PROMPT + _SPARE_TRIES
        queue = deque(self._begin() for _ in range(self.wanted))
        for job in generator.run(queue):
            self.tokens += len(job.answer_ids)
            text, fault = self._read(job)
            if fault is None:
                self.known.add(text)
                yield text
                continue
            self.skipped.count(fault)
            if self.begun < most:
                queue.append(self._begin())

    def _begin(self) -> Job:
        opening = (self.first + self.begun) % len(self.starts)
        self.begun += 1
        return Job(self.starts[opening], self.options.temperature, opening)

    def _read(self, job: Job) -> tuple[str, str | None]:
        """The turn's text, and why it cannot serve."""
        ended = job.answer_ids[-1] in self.tokenizer.eos_token_ids
        written_ids = job.answer_ids[:-1] if ended else job.answer_ids
        written = self._continuation(self.starts[job.tag], written_ids)
        text = (self.options.openings[job.tag] + written).strip()
        if not (ended or self.options.keep_unfinished):
            return text, f"not ended after {self.options.max_tokens} tokens"
        if not self.tokenizer.special_token_ids.isdisjoint(written_ids):
            return text, "with special tokens"
        if not written.strip():
            return text, "without a word of its own"
        if len(text) < _FEWEST_CHARACTERS:
            return text, f"shorter than {_FEWEST_CHARACTERS} characters"
        return text, "invented before" if text in self.known else None

    def _continuation(self, start: Sequence[int], written_ids: Sequence[int]) -> str:
        """The text of tokens that follow `start`, without the bytes of a character that was cut off."""
        reader = self.tokenizer.detokenizer(skip_special_tokens=True, follows=start)
        return "".join(map(reader.push, written_ids))


def _write(file: LineFile, turns: _Turns, generator: BatchedGenerator, before: int, clock: Clock) -> int:
    """Append usable turns in groups; returns how many were written."""
    pending: list[str] = []
    written = 0
    started = clock.monotonic_ns()
    with ProgressReport("prompts", before + turns.wanted, clock, done=before) as progress:
        for text in turns.usable(generator):
            pending.append(prompt_line(SOURCE, text))
            if len(pending) >= _APPEND_AT or written + len(pending) == turns.wanted:
                file.append_lines(pending)
                written += len(pending)
                speed = turns.tokens * _NS_PER_SECOND / max(1, clock.monotonic_ns() - started)
                progress.advance(len(pending), f"{turns.tokens} tokens, {speed:.0f} tokens/s")
                pending = []
        if pending:
            file.append_lines(pending)
    return written + len(pending)
