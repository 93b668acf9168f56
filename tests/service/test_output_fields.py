"""Every sampling and output field over a real socket to a real engine: what it does, and the same under speculation."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator

import pytest
import torch
from support import tiny
from support.engines import Rig, load_tiny, running
from support.models import folders
from support.serving import eventually, served
from transformers import AutoModelForCausalLM

from respsd.engine.events import RequestFinished
from respsd.engine.samples import sample_seed
from respsd.errors import Overloaded
from respsd.service.limits import Limits
from respsd_client import AsyncClient, Chunk, GenerateOptions, GenerateResult, ServiceError, TokenLogProb

PROMPT = [1, 40, 17, 99, 254, 3, 60]
TREES = ("off", "16,4,4")
SAMPLED: GenerateOptions = {"temperature": 1.0, "seed": 42}


@pytest.fixture(scope="module")
def rig():
    with running(load_tiny(), persistence=2) as running_rig:
        yield running_rig


@pytest.fixture
async def client(rig: Rig) -> AsyncIterator[AsyncClient]:
    rig.engine.start = lambda: None  # type: ignore[method-assign]  # it runs already, and longer than this server
    stop, rig.engine.stop = rig.engine.stop, lambda: None  # type: ignore[method-assign]
    try:
        async with (
            served(rig.engine, limits=Limits(default_max_new_tokens=24)) as server,  # type: ignore[arg-type]
            AsyncClient(server.address) as connected,
        ):
            yield connected
    finally:
        rig.engine.stop = stop  # type: ignore[method-assign]


def output(result: GenerateResult) -> tuple[object, ...]:
    return (
        result.token_ids,
        result.text,
        result.finish_reason,
        result.matched_stop,
        [each.token_ids for each in result.samples],
        [each.token_id for each in result.logprobs],
    )


async def generate(client: AsyncClient, **options: object) -> GenerateResult:
    """The output, which is the same under every tree, whole and as a stream."""
    options = {"ignore_eos": True, **options}
    prompt = options.pop("prompt", PROMPT)
    whole = await client.generate(prompt, action=TREES[0], **options)  # type: ignore[arg-type]
    for tree in TREES[1:]:
        stream = client.stream(prompt, action=tree, **options)  # type: ignore[arg-type]
        chunks = [chunk async for chunk in stream]
        assert output(stream.result) == output(whole)
        assert "".join(chunk.text for chunk in chunks if chunk.index == 0) == whole.text
        assert [each for chunk in chunks if chunk.index == 0 for each in chunk.logprobs] == list(stream.result.logprobs)
    return whole


async def test_the_budget_and_the_least_number_of_tokens(client):
    free = await generate(client)
    assert len(free.token_ids) == 24
    assert (await generate(client, max_new_tokens=7)).token_ids == free.token_ids[:7]
    wanting = {"logit_bias": {tiny.EOS: 100.0}, "ignore_eos": False}
    ended = await generate(client, **wanting)
    assert (ended.token_ids, ended.finish_reason) == ((tiny.EOS,), "eos")
    later = await generate(client, min_new_tokens=5, **wanting)
    assert (len(later.token_ids), later.token_ids[-1], later.finish_reason) == (6, tiny.EOS, "eos")
    assert tiny.EOS not in later.token_ids[:-1]


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.5},
        {"top_p": 0.5},
        {"top_k": 3},
        {"min_p": 0.3},
        {"repetition_penalty": 1.8},
        {"frequency_penalty": 2.0},
        {"presence_penalty": 2.0},
        {"logit_bias": dict.fromkeys(range(100, tiny.VOCAB), -100.0)},
        {"seed": 43},
    ],
    ids=lambda options: next(iter(options)),
)
async def test_each_sampling_field_changes_the_sample_and_no_tree_does(client, options):
    base = await client.generate(PROMPT, ignore_eos=True, temperature=0.9, seed=42)
    changed = await generate(client, **{"temperature": 0.9, "seed": 42, **options})
    assert changed.token_ids != base.token_ids
    assert len(changed.token_ids) == 24


async def test_stops_by_token_and_string_with_and_without_their_text(client):
    free = await generate(client)
    at = next(i for i in range(6, 24) if free.token_ids[i] not in free.token_ids[:i])
    stopped = await generate(client, stop_token_ids=[free.token_ids[at]])
    assert (stopped.token_ids, stopped.finish_reason) == (free.token_ids[: at + 1], "stop_token")
    kept = await generate(client, stop_token_ids=[free.token_ids[at]], include_stop=True)
    assert kept.token_ids == stopped.token_ids
    assert kept.text.startswith(stopped.text)
    assert len(kept.text) > len(stopped.text)
    stop = free.text[8:11]
    by_text = await generate(client, stop=stop)
    assert (by_text.text, by_text.finish_reason) == (free.text[: free.text.index(stop)], "stop_string")
    assert by_text.matched_stop == stop
    assert (await generate(client, stop=["never said", stop], include_stop=True)).text == by_text.text + stop


async def test_ignored_eos_is_an_ordinary_token_and_special_tokens_show_on_request(client):
    options = {"logit_bias": {tiny.EOS: 5.0}, "frequency_penalty": 0.3, "temperature": 1.0, "seed": 1}
    ignored = await generate(client, **options)
    assert tiny.EOS in ignored.token_ids[:-1]
    assert len(ignored.token_ids) == 24
    assert "</s>" not in ignored.text
    shown = await generate(client, skip_special_tokens=False, **options)
    assert shown.token_ids == ignored.token_ids
    assert shown.text.count("</s>") == ignored.token_ids.count(tiny.EOS)


def independent(prompt: list[int], tokens: tuple[int, ...]) -> torch.Tensor:
    """Log-probs of transformers after each token of both, [tokens, vocab]."""
    model = AutoModelForCausalLM.from_pretrained(folders()[0], dtype=torch.float32)
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([[*prompt, *tokens]])).logits[0], dim=-1)


async def test_log_probs_of_output_and_prompt_are_the_models_own(client):
    result = await generate(client, logprobs=3, prompt_logprobs=2, temperature=0.7, top_k=5, seed=3)
    rows = independent(PROMPT, result.token_ids)
    expected = [(token, rows[len(PROMPT) - 1 + i], 3) for i, token in enumerate(result.token_ids)]
    asked = [(token, rows[i], 2) for i, token in enumerate(PROMPT[1:])]
    first, *others = result.prompt_logprobs
    assert first == TokenLogProb(PROMPT[0], None, {})
    for told, (token, row, top) in zip((*result.logprobs, *others), (*expected, *asked), strict=True):
        assert told.token_id == token
        assert told.logprob == pytest.approx(float(row[token]), abs=1e-4)
        assert list(told.top.values()) == pytest.approx(row.topk(top).values.tolist(), abs=1e-4)
    streamed = client.stream(PROMPT, logprobs=0, prompt_logprobs=0, action="8,3,3", ignore_eos=True)
    async for _ in streamed:
        pass
    assert [each.token_id for each in streamed.result.prompt_logprobs] == PROMPT
    assert all(each.top == {} and each.logprob is not None for each in streamed.result.logprobs)
    assert (await client.generate(PROMPT)).logprobs == ()


async def test_a_long_prompts_log_probs_all_arrive(client, monkeypatch):
    monkeypatch.setattr("respsd.service.answer._SCORED_TOKENS", 16)
    prompt = [3 + i % 280 for i in range(200)]
    for tree in TREES:
        stream = client.stream(prompt, prompt_logprobs=1, logprobs=1, max_new_tokens=40, ignore_eos=True, action=tree)
        chunks = [chunk async for chunk in stream]
        assert [each.token_id for each in stream.result.prompt_logprobs] == prompt
        assert all(len(chunk.token_ids) <= 16 for chunk in chunks)
        assert len(stream.result.logprobs) == 40


async def test_echo_begins_the_text_with_the_prompts(client):
    plain = await generate(client, prompt="the cat sat")
    echoed = await generate(client, prompt="the cat sat", echo=True)
    assert echoed.text == "the cat sat" + plain.text
    assert echoed.token_ids == plain.token_ids
    tokens = await client.tokenize("the cat sat")
    assert echoed.prompt_token_ids == tokens.token_ids
    assert plain.prompt_token_ids == ()
    stream = client.stream("the cat sat", echo=True, n=2, temperature=1.0)
    opening = [await anext(stream), await anext(stream)]
    assert opening == [Chunk((), "the cat sat", 0), Chunk((), "the cat sat", 1)]
    assert all(each.text.startswith("the cat sat") for each in [each async for each in _results(stream)])


async def _results(stream) -> AsyncIterator[GenerateResult]:
    async for _ in stream:
        pass
    for each in stream.result.samples:
        yield each


async def test_truncate_keeps_the_prompts_end(client):
    whole = (await client.tokenize("the cat sat on the mat")).token_ids
    cut = await generate(client, prompt="the cat sat on the mat", truncate=3)
    assert cut.prompt_tokens == 3
    assert cut.token_ids == (await generate(client, prompt=list(whole[-3:]))).token_ids
    assert (await client.tokenize("the cat sat on the mat", truncate=3)).token_ids == whole[-3:]
    longest = [3 + i % 280 for i in range(tiny.CONTEXT + 50)]
    with pytest.raises(ServiceError, match="context length"):
        await client.generate(longest)
    assert (await generate(client, prompt=longest, truncate=100)).prompt_tokens == 100


async def test_samples_are_different_reproducible_and_each_its_seeds_own(client):
    result = await generate(client, n=4, max_new_tokens=16, **SAMPLED)
    assert [each.index for each in result.samples] == [0, 1, 2, 3]
    assert [each.seed for each in result.samples] == [sample_seed(42, i) for i in range(4)]
    assert len({each.token_ids for each in result.samples}) == 4
    assert (result.samples[0].token_ids, result.samples[0].text) == (result.token_ids, result.text)
    for each in result.samples:
        alone = await generate(client, max_new_tokens=16, temperature=1.0, seed=each.seed)
        assert (alone.token_ids, alone.text, alone.samples) == (each.token_ids, each.text, ())


async def test_each_sample_comes_under_its_index(client):
    stream = client.stream(PROMPT, n=3, max_new_tokens=40, logprobs=0, ignore_eos=True, action="8,3,3", **SAMPLED)
    chunks = []
    async for chunk in stream:
        chunks.append(chunk)
        if len(chunks) == 1:
            with pytest.raises(RuntimeError):
                _ = stream.result
    for sample in stream.result.samples:
        own = [chunk for chunk in chunks if chunk.index == sample.index]
        assert tuple(token for chunk in own for token in chunk.token_ids) == sample.token_ids
        assert "".join(chunk.text for chunk in own) == sample.text
        assert [each.token_id for each in sample.logprobs] == list(sample.token_ids)


async def test_samples_that_find_no_room_leave_nothing_behind(rig, client, monkeypatch):
    submitted, ended, submit = [], [], rig.engine.submit

    def full_at_third(request, deliver):
        if len(submitted) == 2:
            raise Overloaded("the queue", 2, 2)
        submitted.append(request)

        def noting(event):
            deliver(event)
            if isinstance(event, RequestFinished):
                ended.append(event)

        submit(request, noting)

    monkeypatch.setattr(rig.engine, "submit", full_at_third)
    with pytest.raises(ServiceError, match="RESOURCE_EXHAUSTED"):
        await client.generate(PROMPT, n=3, request_id="thrice", max_new_tokens=200, **SAMPLED)
    monkeypatch.setattr(rig.engine, "submit", submit)
    await eventually(lambda: len(ended) == 2)
    await client.model_info()  # the service's loop has seen the ends too
    assert (await client.generate(PROMPT, request_id="thrice", max_new_tokens=2)).token_ids
    assert rig.engine.load().kv_tokens_reserved == 0


async def test_a_cancelled_stream_ends_all_its_samples(rig, client):
    stream = client.stream(PROMPT, n=3, max_new_tokens=200, ignore_eos=True, **SAMPLED)
    await anext(stream)
    stream.cancel()
    # A sequence counts no more a moment before its memory is given back.
    await eventually(lambda: rig.engine.load().running == rig.engine.load().kv_tokens_reserved == 0)


async def test_speculation_is_the_daemons_a_policys_an_actions_or_off(rig, client):
    default = await client.generate(PROMPT)
    assert (default.policy_version_first, default.accepted_tokens > 0) == (1, True)
    named = await client.generate(PROMPT, policy="baseline")
    assert named.policy_version_last == 1
    with pytest.raises(ServiceError, match="NOT_FOUND"):
        await client.generate(PROMPT, policy=77)
    fixed = await client.generate(PROMPT, action=(4, 1, 2))
    assert fixed.policy_version_first is None
    assert 3 * (fixed.steps - 1) <= fixed.drafted_tokens <= 3 * fixed.steps  # the last step may have no room for a tree
    off = await client.generate(PROMPT, action="off")
    assert (off.drafted_tokens, off.accepted_tokens, off.steps) == (0, 0, 23)
    assert default.token_ids == named.token_ids == fixed.token_ids == off.token_ids


async def test_learning_opt_out_leaves_no_rows(rig, client):
    rig.sink.requests.clear()
    await client.generate(PROMPT, learning_opt_out=True, n=2, **SAMPLED)
    assert rig.sink.requests == []
    await client.generate(PROMPT, n=2, **SAMPLED)
    assert len(rig.sink.requests) == 2


async def test_a_time_limit_is_an_end_and_not_an_error(rig, client):
    free = await client.generate(PROMPT, max_new_tokens=120, ignore_eos=True)
    for tree in TREES:
        ended = await client.generate(PROMPT, max_new_tokens=120, ignore_eos=True, time_limit=1e-6, action=tree)
        assert ended.finish_reason == "time_limit"
        assert ended.token_ids == free.token_ids[: ended.completion_tokens]
        assert ended.completion_tokens < 120
    unlimited = await client.generate(PROMPT, max_new_tokens=120, ignore_eos=True, time_limit=3600)
    assert (unlimited.token_ids, unlimited.finish_reason) == (free.token_ids, "length")


@pytest.mark.parametrize(
    ("options", "field", "limit"),
    [
        ({"n": 0}, "sampling.n", "from 1 to 16"),
        ({"n": 17, "temperature": 1.0}, "sampling.n", "from 1 to 16"),
        ({"n": 2}, "sampling.n", "temperature over 0"),
        ({"logprobs": 21}, "logprobs", "from 0 to 20"),
        ({"prompt_logprobs": 21}, "prompt_logprobs", "from 0 to 20"),
        ({"truncate": 0}, "prompt.truncate", "at least 1"),
        ({"time_limit": 0.0}, "stopping.time_limit_seconds", "86400"),
        ({"time_limit": math.nan}, "stopping.time_limit_seconds", "86400"),
    ],
)
async def test_what_cannot_be_is_refused_with_field_value_and_limit(client, options, field, limit):
    with pytest.raises(ServiceError) as caught:
        await client.generate(PROMPT, **options)
    assert caught.value.code.name == "INVALID_ARGUMENT"
    assert [violation.field for violation in caught.value.field_violations] == [field]
    assert limit in caught.value.message
    assert str(next(iter(options.values()))) in caught.value.message
