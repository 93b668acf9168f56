"""Builds the wire messages of requests; both clients use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict, TypeVar, cast

from respsd_client.v1 import action_pb2, generation_pb2

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
"""Text, token ids, or chat messages as mappings with `role` and `content`."""


class GenerateOptions(TypedDict, total=False):
    """Options of generation; one left out or None is unset, which the daemon tells apart from zero."""

    max_new_tokens: int | None
    """The budget. Unset: the daemon's default, or what is left of the model's context where that is less."""
    min_new_tokens: int | None
    """Tokens before which nothing but the budget ends the output."""
    temperature: float | None
    """Unset or 0: greedy decoding."""
    top_p: float | None
    top_k: int | None
    """0 keeps the whole vocabulary."""
    min_p: float | None
    repetition_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    logit_bias: Mapping[int, float] | None
    """Token id to what its logit gains."""
    seed: int | None
    """Decides the text whatever the draft trees; at most 2**63 - 1. Unset: the daemon draws one."""
    stop: str | Sequence[str] | None
    """Texts that end the output."""
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool
    include_stop: bool
    """Whether the text keeps what ended it."""
    time_limit: float | None
    """Seconds after which the output ends with what it has; unlike `timeout` that is no error."""
    n: int | None
    """Samples of the prompt; over 1 needs a temperature over 0. They come as `result.samples`."""
    logprobs: int | None
    """Tell each output token's log-probability and those of so many most probable tokens in its place; 0: its own."""
    prompt_logprobs: int | None
    """The same for the prompt's tokens."""
    echo: bool
    """Begin the text with the prompt's."""
    truncate: int | None
    """Keep the prompt's last so many tokens."""
    action: str | tuple[int, int, int] | None
    """Draft tree of every step, `(total_tokens, depth, top_k)` or `"TT,d,k"`; `"off"` decodes plainly."""
    policy: str | int | None
    """The stored policy, by version or alias, that chooses the draft trees."""
    exploration_opt_out: bool
    """Never try other draft trees on this request than the daemon's default policy chooses."""
    learning_opt_out: bool
    """Leave no rows of this request for policies to learn from."""
    skip_special_tokens: bool | None
    """Unset: true."""
    priority: Literal["low", "normal", "high"] | None
    """Who goes first of the requests that wait. Unset: normal."""
    request_id: str | None


Request = TypeVar("Request", generation_pb2.GenerateRequest, generation_pb2.GenerateStreamRequest)


def generate_request(kind: type[Request], prompt: Prompt, options: GenerateOptions) -> Request:
    """The request message; raises TypeError on an unknown option and ValueError on one that the wire cannot hold."""
    unknown = options.keys() - GenerateOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown options: {', '.join(sorted(unknown))}")
    return kind(
        request_id=options.get("request_id"),
        prompt=prompt_message(prompt, truncate=options.get("truncate")),
        sampling=_sampling(options),
        stopping=_stopping(options),
        speculation=_speculation(
            options.get("action"), options.get("policy"), exploration_opt_out=options.get("exploration_opt_out", False)
        ),
        learning_opt_out=options.get("learning_opt_out", False),
        skip_special_tokens=options.get("skip_special_tokens"),
        priority=_priority(options.get("priority")),
        logprobs=options.get("logprobs"),
        prompt_logprobs=options.get("prompt_logprobs"),
        echo=options.get("echo", False),
    )


def prompt_message(prompt: Prompt, *, truncate: int | None = None) -> generation_pb2.Prompt:
    """The prompt message; what the elements are decides between token ids and chat."""
    if isinstance(prompt, str):
        return generation_pb2.Prompt(text=prompt, truncate=truncate)
    if prompt and isinstance(prompt[0], Mapping):
        turns = cast("Sequence[Mapping[str, str]]", prompt)
        messages = [generation_pb2.ChatMessage(role=turn["role"], content=turn["content"]) for turn in turns]
        return generation_pb2.Prompt(chat=generation_pb2.Chat(messages=messages), truncate=truncate)
    ids = generation_pb2.TokenIds(ids=cast("Sequence[int]", prompt))
    return generation_pb2.Prompt(token_ids=ids, truncate=truncate)


def parse_action(action: str | tuple[int, int, int]) -> tuple[int, int, int]:
    """Numbers of an action `"TT,d,k"`; raises ValueError on anything else."""
    numbers = action.split(",") if isinstance(action, str) else action
    try:
        total_tokens, depth, top_k = (int(number) for number in numbers)
    except ValueError:
        raise ValueError(f"action {action!r} is neither 'off' nor total_tokens,depth,top_k") from None
    return total_tokens, depth, top_k


def _priority(name: str | None) -> generation_pb2.Priority.ValueType:
    if name is None:
        return generation_pb2.PRIORITY_UNSPECIFIED
    return generation_pb2.Priority.Value(f"PRIORITY_{name.upper()}")


def _sampling(options: GenerateOptions) -> generation_pb2.Sampling:
    return generation_pb2.Sampling(
        temperature=options.get("temperature"),
        top_p=options.get("top_p"),
        top_k=options.get("top_k"),
        min_p=options.get("min_p"),
        repetition_penalty=options.get("repetition_penalty"),
        frequency_penalty=options.get("frequency_penalty"),
        presence_penalty=options.get("presence_penalty"),
        logit_bias=options.get("logit_bias"),
        seed=options.get("seed"),
        n=options.get("n"),
    )


def _stopping(options: GenerateOptions) -> generation_pb2.Stopping:
    stop = options.get("stop")
    return generation_pb2.Stopping(
        max_new_tokens=options.get("max_new_tokens"),
        min_new_tokens=options.get("min_new_tokens"),
        stop_strings=[stop] if isinstance(stop, str) else stop,  # an empty one is the daemon's to refuse
        stop_token_ids=options.get("stop_token_ids"),
        ignore_eos=options.get("ignore_eos", False),
        include_stop=options.get("include_stop", False),
        time_limit_seconds=options.get("time_limit"),
    )


def _speculation(
    action: str | tuple[int, int, int] | None, policy: str | int | None, *, exploration_opt_out: bool
) -> generation_pb2.Speculation | None:
    if action is not None and policy is not None:
        raise ValueError("an action and a policy cannot both choose the draft trees; give one")
    if policy is not None:
        return generation_pb2.Speculation(policy=str(policy))
    if action is None:
        return generation_pb2.Speculation(exploration_opt_out=True) if exploration_opt_out else None
    if action == "off":
        return generation_pb2.Speculation(off=True)
    total_tokens, depth, top_k = parse_action(action)
    return generation_pb2.Speculation(action=action_pb2.Action(total_tokens=total_tokens, depth=depth, top_k=top_k))
