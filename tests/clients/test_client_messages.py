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
