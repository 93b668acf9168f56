"""Every field's limit: refused past it with field, value and limit; unset and zero are told apart."""

from __future__ import annotations

import math

import pytest

from respsd.control.action import OFF, Action
from respsd.engine.request import MAX_SEED
from respsd.engine.stub import ByteTokenizer, StubEngine
from respsd.errors import InvalidRequest
from respsd.service.limits import Limits
from respsd.service.validation import RequestReader
from respsd_client.v1 import action_pb2, generation_pb2

CONTEXT = 100
VOCAB = 257
Sampling, Stopping = generation_pb2.Sampling, generation_pb2.Stopping


def reader(**limits: int) -> RequestReader:
    engine = StubEngine(context_length=CONTEXT)
    return RequestReader(engine.model, engine.tokenizer, Limits(**limits), draw_seed=lambda: 77)  # type: ignore[arg-type]


def read(text: str = "prompt", *, limits: dict[str, int] | None = None, **fields: object):
    fields.setdefault("prompt", generation_pb2.Prompt(text=text))
    message = generation_pb2.GenerateRequest(**fields)  # type: ignore[arg-type]
    return reader(**(limits or {})).read(message, "id")


def chat(*turns: tuple[str, str]) -> generation_pb2.Prompt:
    messages = [generation_pb2.ChatMessage(role=role, content=content) for role, content in turns]
    return generation_pb2.Prompt(chat=generation_pb2.Chat(messages=messages))


def ids(*tokens: int) -> generation_pb2.Prompt:
    return generation_pb2.Prompt(token_ids=generation_pb2.TokenIds(ids=tokens))


def action(total_tokens: int, depth: int, top_k: int) -> generation_pb2.Speculation:
    return generation_pb2.Speculation(action=action_pb2.Action(total_tokens=total_tokens, depth=depth, top_k=top_k))


def refused(field: str, value: object, *limits: str, **fields: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(**fields)
    assert caught.value.field == field
    assert caught.value.value == value or (value != value and caught.value.value != caught.value.value)
    for limit in limits:
        assert limit in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "limits"),
    [
        ("temperature", -0.5, ("0 (greedy)", "100")),
        ("temperature", math.nan, ("100",)),
        ("temperature", math.inf, ("100",)),
        ("temperature", 1e-5, ("0.0001",)),
        ("temperature", 100.5, ("100",)),
        ("top_p", 0.0, ("over 0", "at most 1")),
        ("top_p", 1.0001, ("at most 1",)),
        ("top_p", math.nan, ("at most 1",)),
        ("min_p", -0.1, ("from 0 to 1",)),
        ("min_p", 1.1, ("from 0 to 1",)),
        ("repetition_penalty", 0.0, ("over 0", "at most 2")),
        ("repetition_penalty", 2.5, ("at most 2",)),
        ("frequency_penalty", -2.5, ("-2.0", "2.0")),
        ("presence_penalty", 2.5, ("-2.0", "2.0")),
        ("presence_penalty", math.nan, ("2.0",)),
        ("seed", MAX_SEED + 1, (str(MAX_SEED),)),
    ],
)
def test_sampling_past_its_limit_is_refused(name, value, limits):
    refused(f"sampling.{name}", value, *limits, sampling=Sampling(**{name: value}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.0),
        ("temperature", 1e-4),
        ("temperature", 100.0),
        ("top_p", 1.0),
        ("top_k", 0),
        ("top_k", 10**6),
        ("min_p", 0.0),
        ("min_p", 1.0),
        ("repetition_penalty", 2.0),
        ("frequency_penalty", -2.0),
        ("presence_penalty", 2.0),
        ("seed", 0),
        ("seed", MAX_SEED),
    ],
)
def test_sampling_at_its_limit_is_taken(name, value):
    assert getattr(read(sampling=Sampling(**{name: value})).sampling, name) == value


def test_unset_sampling_is_greedy_with_a_drawn_seed():
    sampling = read().sampling
    assert (sampling.temperature, sampling.top_p, sampling.repetition_penalty) == (0.0, 1.0, 1.0)
    assert sampling.seed == 77
    assert read(sampling=Sampling(seed=0)).sampling.seed == 0


def test_logit_bias_is_bounded_in_number_token_and_value():
    assert read(sampling=Sampling(logit_bias={5: -100.0})).sampling.logit_bias == {5: -100.0}
    refused("sampling.logit_bias", VOCAB, "256", sampling=Sampling(logit_bias={VOCAB: 1.0}))
    refused("sampling.logit_bias[5]", math.inf, "100", sampling=Sampling(logit_bias={5: math.inf}))
    two = Sampling(logit_bias={5: 1.0, 6: 1.0})
    refused("sampling.logit_bias", "2 tokens", "at most 1", sampling=two, limits={"max_logit_bias": 1})


@pytest.mark.parametrize(
    ("field", "prompt"),
    [
        ("prompt.text", generation_pb2.Prompt(text="")),
        ("prompt.token_ids.ids", ids()),
    ],
)
def test_prompt_without_tokens_is_refused(field, prompt):
    refused(field, "", "at least 1 token", prompt=prompt)


def test_prompt_must_be_there_in_one_form():
    refused("prompt", None, "text, token_ids or chat", prompt=generation_pb2.Prompt())
    refused("prompt.chat.messages", [], "at least 1 message", prompt=chat())
    refused("prompt.chat.messages[1].role", "", "not be empty", prompt=chat(("user", "a"), ("", "b")))
    refused("prompt.chat.messages.role", "robot", "assistant", prompt=chat(("robot", "a")))


def test_token_ids_must_be_in_the_vocabulary():
    assert read(prompt=ids(0, VOCAB - 1)).prompt_ids == (0, 256)
    refused("prompt.token_ids.ids", VOCAB, "from 0 to 256", prompt=ids(1, VOCAB))
    refused("stopping.stop_token_ids", 999, "256", stopping=Stopping(stop_token_ids=[999]))


def test_a_token_that_the_tokenizer_knows_and_the_model_does_not_is_refused(monkeypatch):
    """An added pad token, say, past the last row of the model's embedding."""
    monkeypatch.setattr(ByteTokenizer, "encode", lambda _self, _text: [5, VOCAB])
    monkeypatch.setattr(ByteTokenizer, "render_chat", lambda _self, _messages: [VOCAB])
    refused("prompt.text", VOCAB, "from 0 to 256", text="[PAD]")
    refused("prompt.chat.messages", VOCAB, "from 0 to 256", prompt=chat(("user", "[PAD]")))


def test_chat_is_rendered_by_the_template():
    assert bytes(read(prompt=chat(("user", "hi"))).prompt_ids) == b"user: hi\nassistant: "


def test_long_prompt_text_is_refused_before_it_is_tokenized():
    limits = {"max_prompt_bytes": 10}
    refused("prompt.text", "12 bytes", "at most 10", text="é" * 6, limits=limits)
    # A template writes roles into the prompt too.
    refused("prompt.chat.messages", "11 bytes", prompt=chat(("user", "1"), ("user", "12")), limits=limits)
    refused("prompt.chat.messages", "11 bytes", prompt=chat(("r" * 10, "1")), limits=limits)


def test_prompt_and_budget_fit_the_context_exactly_or_are_refused():
    assert read("x" * 99, stopping=Stopping(max_new_tokens=1)).stopping.max_new_tokens == 1
    refused("prompt", "100 tokens", "fewer than", "100", text="x" * 100)
    assert read("x" * 60, stopping=Stopping(max_new_tokens=40)).stopping.max_new_tokens == 40
    for budget in (41, 0):
        field = "stopping.max_new_tokens"
        refused(field, budget, "60 tokens", "1 to 40", text="x" * 60, stopping=Stopping(max_new_tokens=budget))


def test_unset_budget_is_the_default_or_the_rest_of_the_context():
    limits = {"default_max_new_tokens": 30}
    plenty, exact, short = (read("x" * size, limits=limits) for size in (10, 70, 71))
    assert (plenty.stopping.max_new_tokens, plenty.clamped_to_context) == (30, False)
    assert (exact.stopping.max_new_tokens, exact.clamped_to_context) == (30, False)
    assert (short.stopping.max_new_tokens, short.clamped_to_context) == (29, True)


def test_min_new_tokens_is_at_most_the_budget():
    both = Stopping(max_new_tokens=5, min_new_tokens=5)
    assert read(stopping=both).stopping.min_new_tokens == 5
    over = Stopping(max_new_tokens=5, min_new_tokens=6)
    refused("stopping.min_new_tokens", 6, "at most max_new_tokens, 5", stopping=over)


def test_stop_strings_are_bounded_in_number_and_length():
    assert read(stopping=Stopping(stop_strings=["x" * 240])).stopping.stop_strings == ("x" * 240,)
    refused("stopping.stop_strings[1]", "0 bytes", "1 to 240", stopping=Stopping(stop_strings=["a", ""]))
    refused("stopping.stop_strings[0]", "241 bytes", "240", stopping=Stopping(stop_strings=["x" * 241]))
    refused("stopping.stop_strings", "7 strings", "at most 6", stopping=Stopping(stop_strings=["x"] * 7))
    refused("stopping.stop_token_ids", "65 tokens", "at most 64", stopping=Stopping(stop_token_ids=[1] * 65))


def test_speculation_is_the_daemons_an_action_off_or_a_policy():
    assert read().speculation.action is None
    assert read(speculation=action(16, 4, 4)).speculation.action == Action(16, 4, 4)
    assert read(speculation=action(1, 0, 0)).speculation.action == OFF
    assert read(speculation=generation_pb2.Speculation(off=True)).speculation.action == OFF
    undecided = read(speculation=generation_pb2.Speculation(off=False)).speculation
    assert (undecided.action, undecided.policy) == (None, None)
    assert read(speculation=generation_pb2.Speculation(policy="champion")).speculation.policy == "champion"


@pytest.mark.parametrize(
    ("knob", "value", "shape"),
    [
        ("total_tokens", 0, (0, 1, 1)),
        ("total_tokens", 1, (1, 1, 1)),
        ("total_tokens", 129, (129, 8, 32)),
        ("depth", 9, (128, 9, 32)),
        ("top_k", 0, (4, 1, 0)),
        ("top_k", 33, (128, 8, 33)),
    ],
)
def test_impossible_action_is_refused(knob, value, shape):
    refused(f"speculation.action.{knob}", value, speculation=action(*shape))


def test_policy_name_is_bounded():
    refused("speculation.policy", "", speculation=generation_pb2.Speculation(policy=""))
    refused("speculation.policy", "65 characters", "64", speculation=generation_pb2.Speculation(policy="x" * 65))


def test_a_request_may_opt_out_of_exploration():
    assert not read().speculation.exploration_opt_out
    assert read(speculation=generation_pb2.Speculation(exploration_opt_out=True)).speculation.exploration_opt_out


def test_a_request_that_leaves_no_rows_explores_nothing():
    assert read(learning_opt_out=True).speculation.exploration_opt_out


def test_special_tokens_are_skipped_unless_false_is_said():
    assert read().skip_special_tokens
    assert read(skip_special_tokens=True).skip_special_tokens
    assert not read(skip_special_tokens=False).skip_special_tokens


def test_samples_are_bounded_and_need_a_temperature():
    assert read().samples == read(sampling=Sampling(n=1)).samples == 1
    assert read(sampling=Sampling(n=16, temperature=1.0)).samples == 16
    refused("sampling.n", 0, "from 1 to 16", sampling=Sampling(n=0))
    refused("sampling.n", 17, "from 1 to 16", sampling=Sampling(n=17, temperature=1.0))
    refused("sampling.n", 3, "from 1 to 2", sampling=Sampling(n=3, temperature=1.0), limits={"max_samples": 2})
    refused("sampling.n", 2, "greedy", "temperature over 0", sampling=Sampling(n=2))


@pytest.mark.parametrize(("field", "attribute"), [("logprobs", "log_probs"), ("prompt_logprobs", "prompt_log_probs")])
def test_log_probs_are_bounded_and_zero_is_not_none(field, attribute):
    assert getattr(read(), attribute) is None
    for top in (0, 20):
        assert getattr(read(**{field: top}), attribute) == top
    refused(field, 21, "from 0 to 20", **{field: 21})
    refused(field, 3, "from 0 to 2", **{field: 3}, limits={"max_top_logprobs": 2})
    refused(field, VOCAB + 1, f"from 0 to {VOCAB}", **{field: VOCAB + 1}, limits={"max_top_logprobs": 10**6})


def test_a_time_limit_is_bounded():
    assert read().stopping.time_limit_seconds is None
    assert read(stopping=Stopping(time_limit_seconds=0.25)).stopping.time_limit_seconds == 0.25
    for value in (0.0, -1.0, math.nan, math.inf, 86_401.0):
        limit = "over 0 and at most 86400 seconds"
        refused("stopping.time_limit_seconds", value, limit, stopping=Stopping(time_limit_seconds=value))


def test_a_long_prompt_is_truncated_to_its_end_where_that_is_asked():
    prompt = generation_pb2.Prompt(text="x" * 95 + "12345678", truncate=8)
    assert bytes(read(prompt=prompt).prompt_ids) == b"12345678"
    assert bytes(read(prompt=generation_pb2.Prompt(text="abc", truncate=8)).prompt_ids) == b"abc"
    assert read(prompt=generation_pb2.Prompt(token_ids=ids(1, 2, 3).token_ids, truncate=2)).prompt_ids == (2, 3)
    turns = generation_pb2.Prompt(chat=chat(("user", "hi")).chat, truncate=4)
    assert bytes(read(prompt=turns).prompt_ids) == b"nt: "
    refused("prompt.truncate", 0, "at least 1", prompt=generation_pb2.Prompt(text="abc", truncate=0))


def test_truncation_keeps_a_beginning_of_sequence_token_in_front():
    reading = reader()
    reading.tokenizer.bos_token_id = 7  # type: ignore[misc]  # the stub's tokenizer has none
    for front, count, kept in ((7, 3, (7, 4, 5)), (7, 2, (7, 5)), (7, 1, (5,)), (6, 3, (3, 4, 5))):
        prompt = generation_pb2.Prompt(token_ids=ids(front, 1, 2, 3, 4, 5).token_ids, truncate=count)
        assert reading.prompt_ids(prompt) == kept


def test_echo_is_the_prompts_text_as_given_or_as_its_tokens_read():
    assert read("héllo").echo is None
    assert read("héllo", echo=True).echo == "héllo"
    assert read(prompt=ids(*b"abc"), echo=True).echo == "abc"
    assert read(prompt=chat(("user", "hi")), echo=True).echo == "user: hi\nassistant: "
    cut = generation_pb2.Prompt(text="héllo", truncate=3)
    assert read(prompt=cut, echo=True).echo == "llo"
    special = ids(*b"ab", 256)
    assert read(prompt=special, echo=True).echo == "ab"
    assert read(prompt=special, echo=True, skip_special_tokens=False).echo == "ab<eos>"


def test_rest_is_carried_over():
    stopping = Stopping(max_new_tokens=9, stop_token_ids=[3], ignore_eos=True, include_stop=True)
    request = read(stopping=stopping, learning_opt_out=True)
    assert request.request_id == "id"
    assert request.learning_opt_out
    assert request.stopping.ignore_eos
    assert request.stopping.include_stop
    assert request.stopping.stop_token_ids == (3,)


def test_stream_requests_are_read_alike():
    message = generation_pb2.GenerateStreamRequest(prompt=ids(1, 2))
    assert reader().read(message, "id").prompt_ids == (1, 2)
    unary = generation_pb2.GenerateRequest.DESCRIPTOR.fields_by_name
    stream = generation_pb2.GenerateStreamRequest.DESCRIPTOR.fields_by_name
    for name, field in unary.items():
        assert (stream[name].number, stream[name].type) == (field.number, field.type)
    assert unary.keys() == stream.keys()
