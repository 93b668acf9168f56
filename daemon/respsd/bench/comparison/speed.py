"""How fast a block was answered, in tokens per second."""

from __future__ import annotations

from collections.abc import Sequence

from respsd.bench.comparison.answers import Answer
from respsd.bench.comparison.conversation import BlockResult


def speed(result: BlockResult, concurrency: int) -> float | None:
    """What ratios are made of: for one stream its decoding, for several all tokens over the time of all."""
    if concurrency > 1:
        return whole_speed(result)
    return decode_speed([answer for turns in result.answers for answer in turns])


def whole_speed(result: BlockResult) -> float:
    """All tokens over the time from prompt to last token, prefill included."""
    return result.tokens / result.seconds


def decode_speed(answers: Sequence[Answer]) -> float | None:
    """Tokens after each answer's first delivery over their time; None where every answer ended with that delivery."""
    tokens = sum(answer.decoded_tokens for answer in answers)
    return tokens / sum(answer.decode_seconds for answer in answers) if tokens else None
