"""Decoders without a model, and samples made by hand, for tests of the benchmark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from respsd.bench.comparison.answers import Answer, Batch, Delivery
from respsd.bench.comparison.conversation import BlockResult
from respsd.control.action import Action
from respsd.engine.window import StepMeasure

TokenIds = Sequence[int]


def answer(times: Sequence[float], tokens: Sequence[int] | None = None, ids: Sequence[int] | None = None) -> Answer:
    """Deliveries at these seconds, of one token each unless told otherwise."""
    counts = tokens or [1] * len(times)
    token_ids = tuple(ids) if ids is not None else tuple(range(sum(counts)))
    return Answer(token_ids, tuple(Delivery(at, count) for at, count in zip(times, counts, strict=True)))


def steady(speed: float, tokens: int = 11, *, first: float = 0.5, ids: Sequence[int] | None = None) -> Answer:
    """A first token, then one by one at a speed."""
    return answer([first + number / speed for number in range(tokens)], ids=ids)


def block(*answers: Answer, steps: Sequence[StepMeasure] = (), policy_seconds: float = 0.0) -> BlockResult:
    """A block whose questions had one turn each; it ran as long as its longest answer."""
    seconds = max(each.seconds for each in answers)
    return BlockResult(tuple((each,) for each in answers), seconds, tuple(steps), policy_seconds)


def step(
    action: Action, accepted: int, *, draft: int = 10, verify: int = 80, other: int = 10, batch_size: int = 1
) -> StepMeasure:
    """A step by its nanoseconds."""
    return StepMeasure(
        applied=action,
        drafted_tokens=action.total_tokens - 1,
        accepted_tokens=accepted,
        committed_tokens=accepted + 1,
        draft_ns=draft,
        verify_ns=verify,
        other_ns=other,
        batch_size=batch_size,
    )


@dataclass
class FakeDecoder:
    """Answers every prompt alike and remembers what it was asked."""

    reply: Callable[[TokenIds], Answer] = lambda prompt: steady(10.0)
    name: str = "fake"
    journal: list[tuple[str, list[list[int]], int, bool]] = field(default_factory=list)

    def decode(self, prompts: Sequence[TokenIds], max_new_tokens: int, *, ignore_eos: bool) -> Batch:
        """Note and answer."""
        self.journal.append((self.name, [list(prompt) for prompt in prompts], max_new_tokens, ignore_eos))
        return Batch(tuple(self.reply(prompt) for prompt in prompts))
