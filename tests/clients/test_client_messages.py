"""What the client builds and reads without a daemon."""

from __future__ import annotations

import pytest
from google.protobuf.any_pb2 import Any
from google.rpc import error_details_pb2, status_pb2

from respsd_client import details
from respsd_client.channel import options_for, target_of
from respsd_client.request import generate_request, prompt_message
from respsd_client.result import StreamReader, read_generate
from respsd_client.v1 import generation_pb2

Request = generation_pb2.GenerateRequest


def build(**options: object) -> generation_pb2.GenerateRequest:
    return generate_request(Request, "x", options)  # type: ignore[arg-type]


def test_options_left_out_stay_unset():
    request = build()
    assert not any(request.sampling.HasField(name) for name in ("temperature", "top_k", "seed"))
    assert not request.stopping.HasField("max_new_tokens")
    assert not request.HasField("speculation")
    assert not request.HasField("skip_special_tokens")
    assert build(temperature=None).sampling == request.sampling


def test_zero_is_sent():
    request = build(temperature=0, top_k=0, seed=0, max_new_tokens=0, skip_special_tokens=False)
    assert all(request.sampling.HasField(name) for name in ("temperature", "top_k", "seed"))
    assert request.stopping.HasField("max_new_tokens")
    assert request.HasField("skip_special_tokens")


def test_misspelt_options_are_refused():
    with pytest.raises(TypeError, match="temprature"):
        build(temprature=1.0)


@pytest.mark.parametrize("options", [{"seed": -1}, {"top_k": 2**40}, {"action": "8,2"}, {"action": "8,2,x"}])
def test_what_the_wire_cannot_hold_is_a_value_error(options):
    with pytest.raises(ValueError, match=r".+"):
        build(**options)


def test_action_and_policy_exclude_each_other():
    with pytest.raises(ValueError, match="both"):
        build(action="off", policy=3)


def test_speculation_forms():
    assert build(action="off").speculation.off
    assert build(exploration_opt_out=True).speculation.exploration_opt_out
    assert not build(policy=3).speculation.exploration_opt_out
    assert build(policy=3).speculation.policy == "3"
    for action in ("8,2,4", (8, 2, 4)):
        sent = build(action=action).speculation.action
        assert (sent.total_tokens, sent.depth, sent.top_k) == (8, 2, 4)


def test_one_stop_string_is_not_a_list_of_letters():
    assert list(build(stop="end").stopping.stop_strings) == ["end"]
    assert list(build(stop=["a", "b"]).stopping.stop_strings) == ["a", "b"]
    assert list(build(stop="").stopping.stop_strings) == [""]


def test_output_options_are_sent_where_they_are_given():
    request = build(n=3, logprobs=0, prompt_logprobs=2, echo=True, truncate=9, time_limit=1.5)
    assert (request.sampling.n, request.logprobs, request.prompt_logprobs) == (3, 0, 2)
    assert request.HasField("logprobs")
    assert (request.echo, request.prompt.truncate, request.stopping.time_limit_seconds) == (True, 9, 1.5)
    unset = build()
    assert not any(unset.HasField(name) for name in ("logprobs", "prompt_logprobs"))
    assert not unset.prompt.HasField("truncate")
    assert not unset.sampling.HasField("n")
    assert not unset.stopping.HasField("time_limit_seconds")
    for prompt in ((1, 2), [{"role": "user", "content": "hi"}]):
        assert prompt_message(prompt, truncate=3).truncate == 3


def scored(token: int, logprob: float | None = None) -> generation_pb2.TokenLogProb:
    top = [generation_pb2.TopToken(token_id=7, logprob=-0.25), generation_pb2.TopToken(token_id=3, logprob=-1.5)]
    return generation_pb2.TokenLogProb(token_id=token, logprob=logprob, top=top)


def test_a_stream_of_samples_is_read_like_the_whole_answer():
    """Mixed chunks, one sample's end before the other's; the whole answer has the same in its own order."""
    scores = [scored(5, -0.5), scored(6, -0.75)]
    finished = [generation_pb2.Finished(index=i, seed=20 + i) for i in range(2)]
    started = generation_pb2.Started(request_id="r", samples=2, prompt_token_ids=[1, 2])
    reader, Message, Piece = StreamReader(), generation_pb2.GenerateStreamResponse, generation_pb2.Chunk
    prompt = [scored(1), scored(2, -2.0)]
    messages = [
        Message(started=started),
        *(Message(prompt_logprobs=generation_pb2.PromptLogProbs(tokens=[each])) for each in prompt),
        Message(chunk=Piece(token_ids=[6], text="b", index=1, logprobs=scores[1:])),
        Message(finished=finished[1]),
        Message(chunk=Piece(token_ids=[5], text="a", logprobs=scores[:1])),
    ]
    for message in messages:
        reader.read(message)
        with pytest.raises(RuntimeError):
            _ = reader.result
    reader.read(Message(finished=finished[0]))
    samples = [
        generation_pb2.Sample(text=text, token_ids=[token], finished=end, logprobs=[score])
        for text, token, end, score in zip("ab", (5, 6), finished, scores, strict=True)
    ]
    whole = generation_pb2.GenerateResponse(
        request_id="r", text="a", token_ids=[5], finished=finished[0], logprobs=scores[:1],
        prompt_token_ids=[1, 2], prompt_logprobs=prompt, samples=samples,
    )  # fmt: skip
    result = read_generate(whole)
    assert reader.result == result
    assert [(each.text, each.index, each.seed) for each in result.samples] == [("a", 0, 20), ("b", 1, 21)]
    assert result.prompt_token_ids == (1, 2)
    assert [each.logprob for each in result.prompt_logprobs] == [None, -2.0]
    assert result.logprobs[0].top == {7: -0.25, 3: -1.5}
    assert list(result.logprobs[0].top) == [7, 3]


def test_prompt_forms():
    assert prompt_message("text").text == "text"
    assert list(prompt_message((1, 2)).token_ids.ids) == [1, 2]
    assert prompt_message([]).WhichOneof("kind") == "token_ids"
    chat = prompt_message([{"role": "user", "content": "hi"}]).chat
    assert (chat.messages[0].role, chat.messages[0].content) == ("user", "hi")


def test_stream_without_its_last_message_has_no_result():
    reader = StreamReader()
    reader.read(generation_pb2.GenerateStreamResponse(started=generation_pb2.Started(request_id="r")))
    with pytest.raises(RuntimeError):
        _ = reader.result


def test_finish_reason_of_a_newer_daemon_is_no_error():
    finished = generation_pb2.Finished(finish_reason=77)  # type: ignore[arg-type]
    assert read_generate(generation_pb2.GenerateResponse(finished=finished)).finish_reason == "unknown_77"


def test_details_read_what_googles_own_messages_wrote():
    status = status_pb2.Status(code=3, message="no")
    violation = error_details_pb2.BadRequest.FieldViolation(field="a.b", description="too big")
    retry = error_details_pb2.RetryInfo()
    retry.retry_delay.FromMilliseconds(1500)
    others = error_details_pb2.DebugInfo(detail="left aside")
    for message in (error_details_pb2.BadRequest(field_violations=[violation]), others, retry):
        packed = Any()
        packed.Pack(message)
        status.details.append(packed)
    found = details.read(status.SerializeToString())
    assert found.field_violations == (("a.b", "too big"),)
    assert found.retry_after_seconds == 1.5
    assert details.read(b"") == details.Details()


@pytest.mark.parametrize("address", ["127.0.0.1:7470", "[::1]:80", "host.example:1", "unix:/run/x.sock", "unix:x"])
def test_addresses_are_taken(address):
    assert target_of(address) == address


@pytest.mark.parametrize("address", ["", "host", "host:", ":80", "host:x", "host:0", "host:70000", "unix:"])
def test_other_addresses_are_refused(address):
    with pytest.raises(ValueError, match="address"):
        target_of(address)


def test_calls_to_this_machine_go_past_proxies():
    for address, direct in (("127.0.0.1:1", True), ("localhost:1", True), ("[::1]:1", True), ("other:1", False)):
        assert (("grpc.enable_http_proxy", 0) in options_for(address)) is direct
