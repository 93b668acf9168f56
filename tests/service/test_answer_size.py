"""An answer that no client would receive is refused before the engine hears of it, by the field that makes it so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.serving import served

from respsd.engine.events import FinishReason, RequestFinished, TokenLogProb, Usage
from respsd.engine.request import GenerationRequest, SamplingParams, StoppingParams
from respsd.engine.stub import EOS, StubEngine
from respsd.errors import InvalidRequest
from respsd.service.answer import Answer
from respsd.service.answer_size import check_size, size_parts
from respsd.service.event_stream import Part
from respsd.service.limits import Limits
from respsd_client import AsyncClient, ServiceError
from respsd_client.channel import MAX_MESSAGE_BYTES

BUDGET = 300
REQUEST = GenerationRequest(
    request_id="r" * 128,
    prompt_ids=tuple(range(40)),
    stopping=StoppingParams(max_new_tokens=BUDGET, stop_strings=("s" * 240,)),
    sampling=SamplingParams(temperature=1.0),
)
END = RequestFinished(
    reason=FinishReason.STOP_STRING,
    usage=Usage(2**32 - 1, 2**32 - 1),
    seed=2**63 - 1,
    steps=2**32 - 1,
    drafted_tokens=2**32 - 1,
    accepted_tokens=2**32 - 1,
    policy_version_first=2**63,
    policy_version_last=2**63,
    queue_seconds=1.5,
    prefill_seconds=1.5,
    decode_seconds=1.5,
    matched_stop="s" * 240,
)


def scores(count: int, top: int | None, token: int) -> tuple[TokenLogProb, ...]:
    """The longest that they get on the wire: large ids, and no log-prob of 0."""
    if top is None:
        return ()
    return (TokenLogProb(token, -1.5, ((token, -1.5),) * top),) * count


def whole(request: GenerationRequest, token: int) -> int:
    """Bytes of an answer that is as long as this request's can be, with a text of eight bytes a token."""
    answer = Answer(request)
    for sample in range(request.samples):
        told = scores(BUDGET, request.log_probs, token)
        prompt = scores(len(request.prompt_ids), request.prompt_log_probs, token) if sample == 0 else ()
        answer.add(Part((token,) * BUDGET, "x" * 8 * BUDGET, told, prompt, END, sample))
    return answer.message().ByteSize()


@pytest.mark.parametrize("vocab", [100, 257, 49_152, 2_200_000])
@pytest.mark.parametrize("top", [None, 0, 1, 20, 300])
@pytest.mark.parametrize("samples", [1, 4])
def test_no_answer_is_longer_than_thought_and_none_much_shorter(vocab, top, samples):
    request = replace(REQUEST, samples=samples, log_probs=top, prompt_log_probs=top, echo="e" * 500)
    size, thought = whole(request, vocab - 1), sum(size_parts(request, vocab).values())
    assert size <= thought <= size + 600 * (samples + 1)


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"log_probs": 20}, "logprobs", 20),
        ({"log_probs": 1, "prompt_log_probs": 20, "prompt_ids": (7,) * 4000}, "prompt_logprobs", 20),
        ({"echo": "e" * 60_000, "log_probs": 1}, "echo", True),
        ({"stopping": StoppingParams(max_new_tokens=10_000)}, "stopping.max_new_tokens", 10_000),
    ],
)
def test_the_field_that_adds_the_most_is_named_with_its_value_and_the_limit(changes, field, value):
    request = replace(REQUEST, **changes)
    size = sum(size_parts(request, 49_152).values())
    check_size(request, 49_152, size)
    with pytest.raises(InvalidRequest) as caught:
        check_size(request, 49_152, size - 1)
    assert (caught.value.field, caught.value.value) == (field, value)
    assert f"{size} bytes" in str(caught.value)
    assert f"limits.max_answer_bytes is {size - 1}" in str(caught.value)


async def test_too_many_log_probs_are_refused_at_once_and_stream_all_the_same():
    engine = StubEngine(context_length=12_000)
    engine.gate.close()  # were the request to reach the engine, its answer would never come
    options = {"temperature": 1.0, "n": 16, "logprobs": 20, "max_new_tokens": 6000, "ignore_eos": True}
    async with served(engine) as server, AsyncClient(server.address) as client:
        with pytest.raises(ServiceError) as caught:
            await client.generate("x", **options)
        assert engine.load().waiting == engine.load().running == 0
        error = caught.value
        assert (error.code.name, [each.field for each in error.field_violations]) == ("INVALID_ARGUMENT", ["logprobs"])
        assert all(part in str(error) for part in ("20", "6000 new tokens", "16 samples", str(MAX_MESSAGE_BYTES)))
        engine.gate.open()
        stream = client.stream("x", **{**options, "n": 1})
        assert sum([len(chunk.logprobs) async for chunk in stream]) == 6000


async def test_an_answer_just_within_the_limit_arrives():
    limits = Limits(max_answer_bytes=200_000)
    async with served(StubEngine(), limits=limits) as server, AsyncClient(server.address) as client:
        options = {"logprobs": 20, "ignore_eos": True}
        assert len((await client.generate("x", max_new_tokens=850, **options)).logprobs) == 850
        with pytest.raises(ServiceError, match=r"limits\.max_answer_bytes is 200000"):
            await client.generate("x", max_new_tokens=1000, **options)


async def test_a_text_that_turns_out_longer_than_thought_ends_in_the_same_refusal(monkeypatch):
    monkeypatch.setattr("respsd.service.answer_size._TEXT_BYTES", 0)
    engine = StubEngine(next_token=lambda _request, _index: EOS)  # reads `<eos>`
    options = {"ignore_eos": True, "skip_special_tokens": False}
    async with served(engine, limits=Limits(max_answer_bytes=4000)) as server, AsyncClient(server.address) as client:
        assert len((await client.generate("x", max_new_tokens=100, **options)).text) == 500
        with pytest.raises(ServiceError, match=r"stopping\.max_new_tokens: 1000.* has .* bytes.* is 4000") as caught:
            await client.generate("x", max_new_tokens=1000, **options)
        assert caught.value.code.name == "INVALID_ARGUMENT"


async def test_a_prompts_tokens_with_their_text_are_refused_where_they_pass_the_limit():
    async with served(StubEngine(), limits=Limits(max_answer_bytes=4000)) as server:
        async with AsyncClient(server.address) as client:
            assert len((await client.tokenize("x" * 900, with_pieces=True)).token_ids) == 900
            with pytest.raises(ServiceError, match=r"2000 tokens.*max_answer_bytes is 4000") as caught:
                await client.tokenize("x" * 2000, with_pieces=True)
        assert [each.field for each in caught.value.field_violations] == ["prompt"]


def test_the_limit_is_what_the_projects_clients_receive():
    assert Limits().max_answer_bytes == MAX_MESSAGE_BYTES
