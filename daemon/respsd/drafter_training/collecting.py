"""Collecting: prompts to the target's own answers, in an order of which every beginning is a balanced sample."""

from __future__ import annotations

import random
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import structlog
import torch

from respsd.clock import Clock
from respsd.drafter_training.answers import Answer, AnswerFile, answer_key, read_answers
from respsd.drafter_training.batched_generation import BatchedGenerator, Job, check_context, load_generation_model
from respsd.drafter_training.prompts import Conversation, Skipped, read_conversations
from respsd.engine.tokenizer import HfTokenizer
from respsd.errors import InvalidRequest, TrainingDataError
from respsd.telemetry.progress import ProgressReport

log = structlog.get_logger(__name__)

_APPEND_AT = 32
"""Answers that are written together; a kill loses at most these and the unfinished ones."""
_LENGTH_WINDOW = 1024
"""Jobs that are put in order of prompt length. Slots of similar length waste less attention; a small window keeps
every beginning of the whole order balanced."""
_NS_PER_SECOND = 1e9


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """Settings of a collecting run."""

    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)
    """Each prompt is answered at each of them once. The first pass over the prompts takes them in turn, so one that
    is named twice gets a larger share of that pass."""
    max_new_tokens: int = 256
    max_prompt_tokens: int = 512
    """Longer prompts are left out and counted."""
    limit: int | None = None
    """Answers in the file at which to stop; None: all."""
    slots: int = 128
    """Answers that are generated at once; memory grows with it (see `SlotCache`)."""
    seed: int = 0


class ChatRenderer(Protocol):
    """The part of a tokenizer that collecting needs."""

    eos_token_ids: tuple[int, ...]

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a conversation, ready for the answer."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids."""
        ...


@dataclass(frozen=True, slots=True)
class Collected:
    """What a run did."""

    answers: int
    tokens: int
    answers_before: int
    """Found in the file when it started."""
    skipped: Skipped


@dataclass(slots=True)
class _Dialogue:
    """A conversation at one temperature and how far it is answered."""

    conversation: Conversation
    temperature: float
    messages: list[Mapping[str, str]]
    turn: int = 0


def collect(
    prompt_files: Sequence[Path],
    output: Path,
    target: Path,
    options: CollectOptions,
    *,
    dtype: torch.dtype,
    device: torch.device,
    clock: Clock,
    answered: Sequence[Path] = (),
) -> Collected:
    """Answer the prompts and append the answers to `output`; what it or `answered` holds already is not done again.

    :param answered: other answer files whose answers count as done.
    """
    skipped = Skipped()
    conversations = [one for file in prompt_files for one in read_conversations(file, skipped)]
    if not conversations:
        raise TrainingDataError(", ".join(map(str, prompt_files)), f"no usable prompt; {skipped.describe()}")
    tokenizer = HfTokenizer.load(target)
    with AnswerFile(output) as file:
        known = _known_answers([output, *answered], skipped)
        before = sum(1 for _ in read_answers(output, Skipped()))
        plan = _Plan(tokenizer, options, known, skipped)
        jobs = plan.jobs(conversations)
        turns = sum(plan.turns_left(job) for job in jobs)
        total = turns if options.limit is None else min(turns, max(0, options.limit - before))
        log.info("collecting", jobs=len(jobs), to_do=total, answers_before=before, skipped=skipped.describe())
        if not total:
            return Collected(0, 0, before, skipped)
        model = load_generation_model(target, dtype, device)
        longest = options.max_prompt_tokens + options.max_new_tokens
        check_context(model, "max_prompt_tokens + max_new_tokens", longest)
        generator = BatchedGenerator(
            model,
            slots=min(options.slots, len(jobs)),
            capacity=longest,
            max_new_tokens=options.max_new_tokens,
            eos_token_ids=tokenizer.eos_token_ids,
            seed=options.seed + before,  # another seed for each run, or a resumed one would repeat its noise
        )
        answers, tokens = _run(generator, plan, deque(jobs), total, before, file, clock)
    return Collected(answers, tokens, before, skipped)


def _run(
    generator: BatchedGenerator,
    plan: _Plan,
    queue: deque[Job],
    total: int,
    before: int,
    file: AnswerFile,
    clock: Clock,
) -> tuple[int, int]:
    """Generate and append until `total` answers are written or none is left; returns answers and tokens."""
    pending: list[Answer] = []
    answers = tokens = 0
    started = clock.monotonic_ns()
    with ProgressReport("answers", before + total, clock, done=before) as progress:
        for job in generator.run(queue):
            pending.append(plan.answer(job))
            tokens += len(job.answer_ids)
            queue.extendleft(plan.follow_up(job))
            finished = answers + len(pending) >= total
            if len(pending) >= _APPEND_AT or finished:
                file.append(pending)
                answers += len(pending)
                speed = tokens * _NS_PER_SECOND / max(1, clock.monotonic_ns() - started)
                progress.advance(len(pending), f"{tokens} tokens, {speed:.0f} tokens/s")
                pending = []
            if finished:
                return answers, tokens
        if pending:
            file.append(pending)
    return answers + len(pending), tokens


def _known_answers(files: Iterable[Path], skipped: Skipped) -> dict[str, Sequence[int]]:
    """Answer tokens by key, four bytes each."""
    return {answer.key: array("I", answer.answer_ids) for file in files for answer in read_answers(file, skipped)}


@dataclass(slots=True)
class _Plan:
    """Which answers are wanted, in which order, and what follows from each."""

    tokenizer: ChatRenderer
    options: CollectOptions
    known: dict[str, Sequence[int]]
    skipped: Skipped
    _dialogues: list[_Dialogue] = field(default_factory=list)
    """Those that a job is made for, by its tag."""
    _waiting: dict[str, list[_Dialogue]] = field(default_factory=dict)
    """By the key of an answer that is to come, the others that go on from it."""
    _counted: set[object] = field(default_factory=set)

    def jobs(self, conversations: Sequence[Conversation]) -> list[Job]:
        """Every answer that is wanted and not known yet; later turns follow from `follow_up`."""
        jobs: list[Job] = []
        temperatures = self.options.temperatures
        for shift in range(len(temperatures)):
            for number, conversation in enumerate(balanced(conversations, self.options.seed)):
                temperature = temperatures[(number + shift) % len(temperatures)]
                dialogue = _Dialogue(conversation, temperature, list(conversation.opening))
                job = self._next_job(dialogue)
                if job is not None:
                    jobs.append(job)
        return by_length_in_windows(jobs, _LENGTH_WINDOW)

    def turns_left(self, job: Job) -> int:
        """Answers that the conversations need that the job's answer is part of, each counted once, its own included."""
        dialogues = [self._dialogues[job.tag], *self._waiting[_key(job)]]
        left = [each.conversation.turns[each.turn :] for each in dialogues]
        return len({turns[:count] for turns in left for count in range(1, len(turns) + 1)})

    def answer(self, job: Job) -> Answer:
        """The record of a finished job."""
        source = self._dialogues[job.tag].conversation.source
        return Answer(source, job.temperature, job.prompt_ids, job.answer_ids)

    def follow_up(self, job: Job) -> list[Job]:
        """The next turns of the conversations that the job's answer is part of, where there are any."""
        key = _key(job)
        self.known[key] = array("I", job.answer_ids)
        dialogues = [self._dialogues[job.tag], *self._waiting.pop(key)]
        for dialogue in dialogues:
            self._hear(dialogue, job.answer_ids)
        return [following for each in dialogues if (following := self._next_job(each)) is not None]

    def _next_job(self, dialogue: _Dialogue) -> Job | None:
        """The dialogue's next turn that is not known.

        None where it ends before, where its prompt grows too long, and where it waits for another's answer.
        """
        while dialogue.turn < len(dialogue.conversation.turns):
            dialogue.messages.append({"role": "user", "content": dialogue.conversation.turns[dialogue.turn]})
            try:
                prompt_ids = self.tokenizer.render_chat(dialogue.messages)
            except InvalidRequest:  # a role that the template has no place for, text that is no Unicode
                self._count_once(id(dialogue.conversation), "refused by the target's chat template")
                return None
            if len(prompt_ids) > self.options.max_prompt_tokens:
                self._count_once(answer_key(prompt_ids, 0.0), f"longer than {self.options.max_prompt_tokens} tokens")
                return None
            key = answer_key(prompt_ids, dialogue.temperature)
            known = self.known.get(key)
            if known is None:
                return self._ask(dialogue, key, prompt_ids)
            self._hear(dialogue, known)
        return None

    def _ask(self, dialogue: _Dialogue, key: str, prompt_ids: list[int]) -> Job | None:
        """A job for the answer; None where there is one already, which a dialogue with further turns waits for."""
        if key in self._waiting:
            if dialogue.turn + 1 < len(dialogue.conversation.turns):
                self._waiting[key].append(dialogue)
            return None
        self._waiting[key] = []
        self._dialogues.append(dialogue)
        return Job(prompt_ids, dialogue.temperature, len(self._dialogues) - 1)

    def _count_once(self, key: object, reason: str) -> None:
        """Once for what the key stands for, however many temperatures there are."""
        if key not in self._counted:
            self._counted.add(key)
            self.skipped.count(reason)

    def _hear(self, dialogue: _Dialogue, answer_ids: Sequence[int]) -> None:
        dialogue.messages.append({"role": "assistant", "content": self.tokenizer.decode(answer_ids)})
        dialogue.turn += 1


def _key(job: Job) -> str:
    return answer_key(job.prompt_ids, job.temperature)


def balanced(conversations: Sequence[Conversation], seed: int) -> list[Conversation]:
    """Shuffled so that in every beginning a source's share goes with the square root of its size.

    Small sources thus come early and large ones do not crowd them out.
    """
    shuffled = list(conversations)
    random.Random(seed).shuffle(shuffled)
    sizes, ranks = Counter(one.source for one in shuffled), Counter[str]()
    keyed = []
    for one in shuffled:
        keyed.append(((ranks[one.source] + 0.5) / sizes[one.source] ** 0.5, one))
        ranks[one.source] += 1
    return [one for _, one in sorted(keyed, key=lambda pair: pair[0])]


def by_length_in_windows(jobs: Sequence[Job], window: int) -> list[Job]:
    """Each window sorted by prompt length, up and down in turn, so that neighbours are of similar length."""
    ordered: list[Job] = []
    for number, start in enumerate(range(0, len(jobs), window)):
        part = sorted(jobs[start : start + window], key=lambda job: len(job.prompt_ids), reverse=number % 2 == 1)
        ordered.extend(part)
    return ordered
