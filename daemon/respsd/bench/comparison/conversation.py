"""Asks a block of questions by one method: their first turns together, then their second ones, and so on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from respsd.bench.comparison.answers import Answer, Batch, Decoder, TokenIds
from respsd.bench.questions import QuestionSet, encode_turn
from respsd.engine.api import Tokenizer
from respsd.engine.window import StepMeasure


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """What holds for every answer of a run."""

    max_new_tokens: int
    context_length: int
    """A turn whose prompt leaves no room for a whole answer is not asked."""
    ignore_eos: bool = False
    most_turns: int | None = None
    """Turns of a question that are asked; None asks all."""


@dataclass(slots=True)
class Conversation:
    """One question, its turns and the model's answers to them."""

    prompt: TokenIds
    """Token ids of the turn to ask next."""
    turns: Sequence[str]
    answers: list[Answer] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def go_on(self, tokenizer: Tokenizer, answer: Answer, rules: AnswerRules) -> bool:
        """Note an answer and prepare the next turn; False where there is none to ask."""
        self.answers.append(answer)
        self.texts.append(tokenizer.decode(answer.token_ids))
        asked = len(self.answers)
        turns = self.turns[: rules.most_turns]
        if asked >= len(turns):
            return False
        history = list(zip(turns, self.texts, strict=False))
        self.prompt = encode_turn(tokenizer, turns[asked], history)
        return len(self.prompt) + rules.max_new_tokens <= rules.context_length


@dataclass(frozen=True, slots=True)
class BlockResult:
    """A block of questions that ran at one time, answered by one method."""

    answers: tuple[tuple[Answer, ...], ...]
    """[question][turn]."""
    seconds: float
    """From the first prompt to the last token, without what lies between two turns."""
    steps: tuple[StepMeasure, ...]
    policy_seconds: float

    @property
    def tokens(self) -> int:
        """Of all answers."""
        return sum(len(answer.token_ids) for turns in self.answers for answer in turns)


def ask(
    decoder: Decoder,
    tokenizer: Tokenizer,
    questions: QuestionSet,
    block: Sequence[int],
    concurrency: int,
    rules: AnswerRules,
) -> BlockResult:
    """Answer a block's questions, `concurrency` at a time.

    :param block: numbers of the questions in the set
    """
    conversations = [Conversation(questions.prompts[each], questions.turns_of(each)) for each in block]
    batches: list[Batch] = []
    for first in range(0, len(block), concurrency):
        going = conversations[first : first + concurrency]
        while going:
            prompts = [conversation.prompt for conversation in going]
            batch = decoder.decode(prompts, rules.max_new_tokens, ignore_eos=rules.ignore_eos)
            batches.append(batch)
            pairs = zip(going, batch.answers, strict=True)
            going = [conversation for conversation, answer in pairs if conversation.go_on(tokenizer, answer, rules)]
    return BlockResult(
        answers=tuple(tuple(conversation.answers) for conversation in conversations),
        seconds=sum(batch.seconds for batch in batches),
        steps=tuple(step for batch in batches for step in batch.steps),
        policy_seconds=sum(batch.policy_seconds for batch in batches),
    )
