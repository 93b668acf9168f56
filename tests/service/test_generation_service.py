"""Generation over a real socket with the real client: one answer, the same answer as a stream, and clear refusals."""

from __future__ import annotations

import asyncio
import threading

import grpc
import pytest
from support.serving import DRAWN_SEED, eventually, served

from respsd.engine.stub import EOS, StubEngine, spell
from respsd.service.limits import Limits
from respsd_client import AsyncClient, ServiceError
from respsd_client.v1 import generation_pb2, generation_pb2_grpc

PROMPTS = ["text", [1, 2, 3], [{"role": "user", "content": "hi"}]]


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("options", [{}, {"temperature": 0.8}, {"action": "off"}, {"policy": "baseline"}])
async def test_stream_is_the_unary_answer_in_pieces(prompt, options):
    async with served(StubEngine()) as server, AsyncClient(server.address) as client:
        whole = await client.generate(prompt, max_new_tokens=50, request_id="same", **options)
        stream = client.stream(prompt, max_new_tokens=50, request_id="same", **options)
        chunks = [chunk async for chunk in stream]
    assert stream.result == whole
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert [token for chunk in chunks for token in chunk.token_ids] == list(whole.token_ids)
    assert len(whole.token_ids) == whole.completion_tokens == 50


async def test_first_chunk_comes_while_the_engine_still_works():
    engine = StubEngine(next_token=spell("abcdefgh"), tokens_per_step=2)
    async with served(engine) as server, AsyncClient(server.address) as client:
        engine.gate.close()
        stream = client.stream("x", max_new_tokens=5)
        engine.gate.allow(1)
        assert (await anext(stream)).text == "a"
        assert stream.request_id is not None
        engine.gate.allow(1)
        assert (await anext(stream)).text == "bc"
        with pytest.raises(RuntimeError):
            _ = stream.result
        engine.gate.open()
        assert [chunk.text async for chunk in stream] == ["de"]
        assert stream.result.finish_reason == "length"


async def test_last_message_describes_the_cut():
    engine = StubEngine(next_token=spell("one two three"), tokens_per_step=4)
    async with served(engine) as server, AsyncClient(server.address) as client:
        result = await client.generate("héllo", stop="two", seed=9, request_id="mine")
    assert (result.text, result.finish_reason, result.matched_stop) == ("one ", "stop_string", "two")
    assert (result.prompt_tokens, result.completion_tokens) == (6, 7)
    assert (result.seed, result.request_id) == (9, "mine")
    assert (result.steps, result.drafted_tokens, result.accepted_tokens) == (2, 6, 5)
    assert (result.policy_version_first, result.policy_version_last) == (1, 1)


async def test_eos_counts_and_its_text_shows_only_on_request():
    async with served(StubEngine(next_token=spell("hi"))) as server, AsyncClient(server.address) as client:
        plain = await client.generate("x")
        shown = await client.generate("x", skip_special_tokens=False, include_stop=True)
    assert (plain.text, plain.token_ids, plain.finish_reason) == ("hi", (*b"hi", EOS), "eos")
    assert shown.text == "hi<eos>"


async def test_characters_of_several_bytes_are_never_split():
    engine = StubEngine(next_token=spell("é€😀"), tokens_per_step=1)
    async with served(engine) as server, AsyncClient(server.address) as client:
        texts = [chunk.text async for chunk in client.stream("x")]
    assert "".join(texts) == "é€😀"
    assert "\ufffd" not in "".join(texts)


async def test_unset_and_zero_are_told_apart():
    engine = StubEngine(next_token=spell("ab"))
    async with served(engine) as server, AsyncClient(server.address) as client:
        assert (await client.generate("x")).seed == DRAWN_SEED
        assert (await client.generate("x", seed=0)).seed == 0
        assert (await client.generate("x", temperature=0, top_k=0, min_p=0.0)).text == "ab"
        for zero in ({"max_new_tokens": 0}, {"top_p": 0.0}, {"repetition_penalty": 0.0}):
            with pytest.raises(ServiceError, match="INVALID_ARGUMENT"):
                await client.generate("x", **zero)


async def test_seed_decides_sampled_text_and_drawn_ones_differ():
    seeds = iter(range(100))
    async with served(StubEngine()) as server, AsyncClient(server.address) as client:
        drawn = [await client.generate("x", temperature=1.0, seed=next(seeds)) for _ in range(20)]
        again = await client.generate("x", temperature=1.0, seed=drawn[3].seed, action="8,2,4")
    assert len({result.text for result in drawn}) == 20
    assert again.text == drawn[3].text


@pytest.mark.parametrize(
    ("prompt", "options", "field", "value", "limit"),
    [
        ("", {}, "prompt.text", "''", "at least 1"),
        ([], {}, "prompt.token_ids.ids", "''", "at least 1"),
        ([300], {}, "prompt.token_ids.ids", "300", "256"),
        ("x", {"max_new_tokens": 0}, "stopping.max_new_tokens", "0", "1 to 4095"),
        ("x" * 4096, {}, "prompt", "4096", "4096"),
        ("x" * 4095, {"max_new_tokens": 2}, "stopping.max_new_tokens", "2", "1 to 1"),
        ("x", {"temperature": float("nan")}, "sampling.temperature", "nan", "100"),
        ("x", {"stop": ["a", ""]}, "stopping.stop_strings[1]", "0 bytes", "240"),
        ("x", {"seed": 2**63}, "sampling.seed", str(2**63), str(2**63 - 1)),
        ("x", {"action": (4, 1, 99)}, "speculation.action.top_k", "99", "32"),
        ("x", {"request_id": "two words"}, "request_id", "two words", "128"),
    ],
)
async def test_bad_requests_are_refused_by_name_while_another_stream_goes_on(prompt, options, field, value, limit):
    engine = StubEngine()
    async with served(engine) as server, AsyncClient(server.address) as client:
        engine.gate.close()
        other = client.stream("other", max_new_tokens=40)
        engine.gate.allow(1)
        first = await anext(other)
        with pytest.raises(ServiceError) as caught:
            await client.generate(prompt, **options)
        error = caught.value
        assert error.code is grpc.StatusCode.INVALID_ARGUMENT
        assert [violation.field for violation in error.field_violations] == [field]
        for part in (field, value, limit):
            assert part in error.message
        engine.gate.open()
        rest = [chunk async for chunk in other]
    assert len(first.token_ids) + sum(len(chunk.token_ids) for chunk in rest) == 40


async def test_unknown_policy_is_not_found():
    async with served(StubEngine()) as server, AsyncClient(server.address) as client:
        with pytest.raises(ServiceError, match=r"NOT_FOUND.*'nobody'"):
            await client.generate("x", policy="nobody")


async def test_full_queue_is_exhausted_and_says_when_to_retry():
    engine = StubEngine(max_running=1, max_waiting=1)
    async with served(engine) as server, AsyncClient(server.address) as client:
        engine.gate.close()
        waiting = client.stream("x")
        await eventually(lambda: engine.load().waiting == 1)
        with pytest.raises(ServiceError, match="1 of 1") as caught:
            await client.generate("y")
        assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert caught.value.retry_after_seconds == 1.0
        engine.gate.open()
        assert [chunk async for chunk in waiting]


async def test_service_refuses_more_calls_than_it_may_hold():
    engine = StubEngine()
    limits = Limits(max_in_flight=2)
    async with served(engine, limits=limits) as server, AsyncClient(server.address) as client:
        engine.gate.close()
        held = [asyncio.create_task(client.generate(prompt)) for prompt in "ab"]
        await eventually(lambda: engine.load().waiting == 2)
        with pytest.raises(ServiceError, match="RESOURCE_EXHAUSTED"):
            await client.generate("c")
        engine.gate.open()
        await asyncio.gather(*held)
        await client.generate("c")


async def test_request_id_is_free_again_when_the_engine_has_let_go():
    engine = StubEngine()
    async with served(engine) as server, AsyncClient(server.address) as client:
        engine.gate.close()
        first = client.stream("x", request_id="twin")
        await eventually(lambda: engine.load().waiting == 1)
        with pytest.raises(ServiceError, match=r"twin.*in flight"):
            await client.generate("y", request_id="twin")
        engine.gate.open()
        assert [chunk async for chunk in first]
        assert (await client.generate("y", request_id="twin")).request_id == "twin"


async def test_calls_may_share_the_id_of_their_metadata():
    engine = StubEngine()
    async with served(engine) as server, grpc.aio.insecure_channel(server.address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        engine.gate.close()
        message = generation_pb2.GenerateRequest(prompt=generation_pb2.Prompt(text="x"))
        calls = [stub.Generate(message, metadata=[("x-request-id", "fan-out")]) for _ in range(3)]
        await eventually(lambda: engine.load().waiting == 3)
        engine.gate.open()
        assert sorted([(await call).request_id for call in calls]) == ["fan-out", "fan-out~2", "fan-out~3"]
        for call in calls:
            assert dict(await call.trailing_metadata())["x-request-id"] == "fan-out"
        assert (await stub.Generate(message, metadata=[("x-request-id", "fan-out")])).request_id == "fan-out"


async def test_what_a_request_asks_for_is_checked_off_the_event_loop(monkeypatch):
    engine, threads = StubEngine(), []
    check = engine.check

    def checked(request):
        threads.append(threading.current_thread())
        check(request)

    monkeypatch.setattr(engine, "check", checked)  # a version that it names may be read from disk
    async with served(engine) as server, AsyncClient(server.address) as client:
        await client.generate("x", max_new_tokens=2)
    assert threads[0] is not threading.main_thread()


async def test_engine_fault_is_internal_without_its_text():
    def before_step(request, step):
        if step == 2:
            raise ValueError("/secret/path")

    engine = StubEngine(before_step=before_step)
    async with served(engine) as server, AsyncClient(server.address) as client:
        engine.gate.close()
        stream = client.stream("x", request_id="faulty")
        engine.gate.allow(1)
        assert (await anext(stream)).text
        engine.gate.allow(1)
        assert (await anext(stream)).text
        engine.gate.open()
        with pytest.raises(ServiceError) as caught:
            await anext(stream)
        assert caught.value.code is grpc.StatusCode.INTERNAL
        assert "secret" not in str(caught.value)
        assert "faulty" in caught.value.message


async def test_tokenize_and_model_info():
    limits = Limits(default_max_new_tokens=33)
    async with served(StubEngine(), limits=limits) as server, AsyncClient(server.address) as client:
        tokens = await client.tokenize("hé", with_pieces=True)
        bare = await client.tokenize([{"role": "user", "content": "x"}])
        info = await client.model_info()
        with pytest.raises(ServiceError, match="at least 1 token"):
            await client.tokenize("")
    assert tokens.token_ids == (104, 195, 169)
    assert tokens.pieces == ("h", "\ufffd", "\ufffd")
    assert bytes(bare.token_ids) == b"user: x\nassistant: "
    assert bare.pieces == ()
    assert (info.target, info.drafter, info.vocab_size) == ("stub", "stub-drafter", 257)
    assert (info.eos_token_ids, info.context_length) == ((EOS,), 4096)
    assert (info.has_chat_template, info.default_max_new_tokens) == (True, 33)
