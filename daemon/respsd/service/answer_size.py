"""How large a whole answer can get: one that no client would receive is refused before it is generated.

A stream has no such bound: its messages hold some tokens each (`answer.part_messages`).
"""

from __future__ import annotations

from respsd.engine.request import GenerationRequest
from respsd.errors import InvalidRequest

_TEXT_BYTES = 8
"""UTF-8 bytes of an output token's text, where English has four to five. An estimate, since one token may be a whole
line of spaces; everything else is an upper bound."""
_ENDING_BYTES = 512
"""Of a sample's ending without its stop string, and of what frames the sample."""
_FLOAT_FIELD = 5
_REMEDY = "ask for less, or have it streamed"


def check_size(request: GenerationRequest, vocab_size: int, most: int) -> None:
    """Raise InvalidRequest where the answer could pass `most` bytes; it names the field that adds the most to it."""
    parts = size_parts(request, vocab_size)
    size = sum(parts.values())
    if size > most:
        field = max(parts, key=lambda name: parts[name])
        limit = (
            f"{_scope(request)} the answer could have {size} bytes, and limits.max_answer_bytes is {most}; {_REMEDY}"
        )
        raise InvalidRequest(field, _value(request, field), limit)


def check_sent(request: GenerationRequest, size: int, most: int) -> None:
    """Raise InvalidRequest where an answer's text turned out so long that its `size` bytes pass `most`."""
    if size > most:
        limit = f"{_scope(request)} the answer has {size} bytes, and limits.max_answer_bytes is {most}; {_REMEDY}"
        raise InvalidRequest("stopping.max_new_tokens", request.stopping.max_new_tokens, limit)


def check_tokenized(tokens: int, size: int, most: int) -> None:
    """Raise InvalidRequest where a prompt's tokens, told with their text, have `size` bytes that pass `most`."""
    if size > most:
        limit = f"the answer has {size} bytes, and limits.max_answer_bytes is {most}; leave out with_pieces"
        raise InvalidRequest("prompt", f"{tokens} tokens", limit)


def size_parts(request: GenerationRequest, vocab_size: int) -> dict[str, int]:
    """Bytes that the answer can have, by the request's field that asks for them."""
    id_bytes = varint_bytes(vocab_size - 1)
    prompt, budget = len(request.prompt_ids), request.stopping.max_new_tokens
    outputs = request.samples + (request.samples > 1)  # the first of several stands twice
    ending = _ENDING_BYTES + max((len(stop.encode()) for stop in request.stopping.stop_strings), default=0)
    return {
        "logprobs": outputs * budget * _scored_bytes(id_bytes, request.log_probs),
        "prompt_logprobs": prompt * _scored_bytes(id_bytes, request.prompt_log_probs),
        "echo": 0 if request.echo is None else prompt * id_bytes + outputs * len(request.echo.encode()),
        "stopping.max_new_tokens": outputs * (budget * (id_bytes + _TEXT_BYTES) + ending),
    }


def varint_bytes(number: int) -> int:
    """Bytes of a whole number on the wire."""
    return max(1, -(-number.bit_length() // 7))


def _scored_bytes(id_bytes: int, top: int | None) -> int:
    """Bytes of one token's TokenLogProb with so many most probable tokens beside it; None: it has none."""
    if top is None:
        return 0
    token = 1 + id_bytes + _FLOAT_FIELD  # without what frames it, and as large in TokenLogProb as in TopToken
    scored = token + top * _framed(token)
    return _framed(scored)


def _framed(size: int) -> int:
    """Bytes of a message of this size as a field of another."""
    return 1 + varint_bytes(size) + size


def _scope(request: GenerationRequest) -> str:
    samples = "" if request.samples == 1 else f" in each of {request.samples} samples"
    return f"with a prompt of {len(request.prompt_ids)} and up to {request.stopping.max_new_tokens} new tokens{samples}"


def _value(request: GenerationRequest, field: str) -> object:
    values: dict[str, object] = {
        "logprobs": request.log_probs,
        "prompt_logprobs": request.prompt_log_probs,
        "echo": True,
        "stopping.max_new_tokens": request.stopping.max_new_tokens,
    }
    return values[field]
