"""From a wire message to a GenerationRequest: each field checked once, each refusal naming field, value and limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from respsd.control.action import Action
from respsd.engine.api import ModelInfo, Tokenizer
from respsd.engine.request import MAX_SEED, GenerationRequest, Priority, SamplingParams, Speculation, StoppingParams
from respsd.errors import InvalidRequest
from respsd.service.answer_size import check_size
from respsd.service.limits import Limits
from respsd_client.v1 import generation_pb2

GenerateMessage = generation_pb2.GenerateRequest | generation_pb2.GenerateStreamRequest

PRIORITIES = {
    int(generation_pb2.PRIORITY_UNSPECIFIED): Priority.NORMAL,
    int(generation_pb2.PRIORITY_LOW): Priority.LOW,
    int(generation_pb2.PRIORITY_NORMAL): Priority.NORMAL,
    int(generation_pb2.PRIORITY_HIGH): Priority.HIGH,
}

MAX_DRAWN_SEED = 2**53 - 1
"""Drawn seeds stay exact in JSON numbers; a request's own may go to MAX_SEED."""


@dataclass(frozen=True, slots=True)
class RequestReader:
    """Reads requests for one model. Tokenizing may take long: call it off the event loop."""

    model: ModelInfo
    tokenizer: Tokenizer
    limits: Limits
    draw_seed: Callable[[], int]
    """Seeds, at most MAX_DRAWN_SEED, for requests without one; called from worker threads."""

    def read(self, message: GenerateMessage, request_id: str) -> GenerationRequest:
        """The validated request; raises InvalidRequest."""
        sampling = self._sampling(message.sampling)
        samples = self._samples(message.sampling, sampling)
        log_probs = self._top_tokens(message, "logprobs")
        prompt_log_probs = self._top_tokens(message, "prompt_logprobs")
        speculation = self._speculation(message)
        self._check_stops(message.stopping)
        prompt_ids = self.prompt_ids(message.prompt)
        budget, clamped = self._budget(message.stopping, len(prompt_ids))
        keep_special = message.HasField("skip_special_tokens") and not message.skip_special_tokens
        request = GenerationRequest(
            request_id=request_id,
            prompt_ids=prompt_ids,
            stopping=self._stopping(message.stopping, budget),
            sampling=sampling,
            speculation=speculation,
            skip_special_tokens=not keep_special,
            learning_opt_out=message.learning_opt_out,
            clamped_to_context=clamped,
            log_probs=log_probs,
            prompt_log_probs=prompt_log_probs,
            echo=self._prompt_text(message.prompt, prompt_ids, keep_special=keep_special) if message.echo else None,
            samples=samples,
            priority=_priority(message.priority),
        )
        if isinstance(message, generation_pb2.GenerateRequest):
            check_size(request, self.model.vocab_size, self.limits.max_answer_bytes)
        return request

    def prompt_ids(self, prompt: generation_pb2.Prompt) -> tuple[int, ...]:
        """Token ids of a prompt in any of its forms, the last ones where it is to be truncated; at least one."""
        if prompt.HasField("truncate") and prompt.truncate < 1:
            raise InvalidRequest("prompt.truncate", prompt.truncate, "it must be at least 1")
        match prompt.WhichOneof("kind"):
            case "text":
                self._check_bytes("prompt.text", [prompt.text])
                field, ids = "prompt.text", tuple(self.tokenizer.encode(prompt.text))
            case "token_ids":
                field, ids = "prompt.token_ids.ids", tuple(prompt.token_ids.ids)
            case "chat":
                field, ids = "prompt.chat.messages", self._chat_ids(prompt.chat)
            case _:
                raise InvalidRequest("prompt", None, "it must hold text, token_ids or chat")
        if not ids:
            raise InvalidRequest(field, "", "the prompt must have at least 1 token")
        self._check_ids(field, ids)  # tokenizers may know tokens that their model has no row for, an added pad, say
        return self._truncated(ids, prompt.truncate) if prompt.HasField("truncate") else ids

    def _truncated(self, ids: tuple[int, ...], count: int) -> tuple[int, ...]:
        """The last `count` ids; a beginning-of-sequence token in front stays there, unless it would be the only one."""
        if len(ids) <= count:
            return ids
        front = ids[:1] if count > 1 and ids[0] == self.tokenizer.bos_token_id else ()
        return front + ids[len(ids) - count + len(front) :]

    def _prompt_text(self, prompt: generation_pb2.Prompt, ids: tuple[int, ...], *, keep_special: bool) -> str:
        """The prompt's text as it was given, or as its tokens read where it was given otherwise or is cut."""
        if prompt.WhichOneof("kind") == "text" and not prompt.HasField("truncate"):
            return prompt.text
        return self.tokenizer.decode(ids, skip_special_tokens=not keep_special)

    def _chat_ids(self, chat: generation_pb2.Chat) -> tuple[int, ...]:
        if not chat.messages:
            raise InvalidRequest("prompt.chat.messages", [], "there must be at least 1 message")
        _check_count("prompt.chat.messages", len(chat.messages), self.limits.max_chat_messages, "messages")
        for index, message in enumerate(chat.messages):
            if not message.role:
                raise InvalidRequest(f"prompt.chat.messages[{index}].role", "", "it must not be empty")
        turns = [{"role": message.role, "content": message.content} for message in chat.messages]
        self._check_bytes("prompt.chat.messages", (text for turn in turns for text in turn.values()))
        return tuple(self.tokenizer.render_chat(turns))

    def _budget(self, stopping: generation_pb2.Stopping, prompt_tokens: int) -> tuple[int, bool]:
        """`max_new_tokens`, and whether it is the rest of the context because the request set none."""
        context = self.model.context_length
        room = context - prompt_tokens
        if room < 1:
            limit = f"its tokens must be fewer than the context length, {context}"
            raise InvalidRequest("prompt", f"{prompt_tokens} tokens", limit)
        if not stopping.HasField("max_new_tokens"):
            default = self.limits.default_max_new_tokens
            return min(default, room), default > room
        limit = f"with a prompt of {prompt_tokens} tokens and a context of {context} it must be from 1 to {room}"
        _check_range("stopping.max_new_tokens", stopping.max_new_tokens, 1, room, limit)
        return stopping.max_new_tokens, False

    def _sampling(self, sampling: generation_pb2.Sampling) -> SamplingParams:
        limits, default = self.limits, SamplingParams()
        temperature = sampling.temperature if sampling.HasField("temperature") else default.temperature
        if temperature != 0.0:
            low, high = limits.min_temperature, limits.max_temperature
            limit = f"it must be 0 (greedy) or from {low} to {high}"
            _check_range("sampling.temperature", temperature, low, high, limit)
        top_p = sampling.top_p if sampling.HasField("top_p") else default.top_p
        if not 0.0 < top_p <= 1.0:
            raise InvalidRequest("sampling.top_p", top_p, "it must be over 0 and at most 1")
        _check_range("sampling.min_p", sampling.min_p, 0, 1, "it must be from 0 to 1")
        repetition = (
            sampling.repetition_penalty if sampling.HasField("repetition_penalty") else default.repetition_penalty
        )
        if not 0.0 < repetition <= limits.max_repetition_penalty:
            limit = f"it must be over 0 and at most {limits.max_repetition_penalty}"
            raise InvalidRequest("sampling.repetition_penalty", repetition, limit)
        for name, penalty in (("frequency", sampling.frequency_penalty), ("presence", sampling.presence_penalty)):
            limit = f"it must be from {-limits.max_penalty} to {limits.max_penalty}"
            _check_range(f"sampling.{name}_penalty", penalty, -limits.max_penalty, limits.max_penalty, limit)
        return SamplingParams(
            temperature=temperature,
            top_p=top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            repetition_penalty=repetition,
            frequency_penalty=sampling.frequency_penalty,
            presence_penalty=sampling.presence_penalty,
            logit_bias=self._logit_bias(sampling),
            seed=self._seed(sampling),
        )

    def _samples(self, message: generation_pb2.Sampling, sampling: SamplingParams) -> int:
        count, most = message.n if message.HasField("n") else 1, self.limits.max_samples
        _check_range("sampling.n", count, 1, most, f"it must be from 1 to {most}")
        if count > 1 and sampling.is_greedy:
            limit = "greedy decoding has one output: it must be 1, or sampling.temperature over 0"
            raise InvalidRequest("sampling.n", count, limit)
        return count

    def _top_tokens(self, message: GenerateMessage, field: Literal["logprobs", "prompt_logprobs"]) -> int | None:
        """How many most probable tokens are to be told beside each token's own log-prob; None: no log-probs."""
        if not message.HasField(field):
            return None
        count = message.logprobs if field == "logprobs" else message.prompt_logprobs
        most = min(self.limits.max_top_logprobs, self.model.vocab_size)
        _check_range(field, count, 0, most, f"it must be from 0 to {most}")
        return count

    def _logit_bias(self, sampling: generation_pb2.Sampling) -> dict[int, float]:
        field, bias = "sampling.logit_bias", dict(sampling.logit_bias)
        _check_count(field, len(bias), self.limits.max_logit_bias, "tokens")
        self._check_ids(field, bias)
        most = self.limits.max_logit_bias_value
        for token, value in bias.items():
            _check_range(f"{field}[{token}]", value, -most, most, f"it must be from {-most} to {most}")
        return bias

    def _seed(self, sampling: generation_pb2.Sampling) -> int:
        if not sampling.HasField("seed"):
            return self.draw_seed()
        if sampling.seed > MAX_SEED:
            raise InvalidRequest("sampling.seed", sampling.seed, f"it must be at most {MAX_SEED}")
        return sampling.seed

    def _check_stops(self, stopping: generation_pb2.Stopping) -> None:
        limits = self.limits
        _check_count("stopping.stop_strings", len(stopping.stop_strings), limits.max_stop_strings, "strings")
        for index, stop in enumerate(stopping.stop_strings):
            size = len(stop.encode())
            limit = f"it must have from 1 to {limits.max_stop_string_bytes} bytes"
            if not 1 <= size <= limits.max_stop_string_bytes:
                raise InvalidRequest(f"stopping.stop_strings[{index}]", f"{size} bytes", limit)
        _check_count("stopping.stop_token_ids", len(stopping.stop_token_ids), limits.max_stop_token_ids, "tokens")
        self._check_ids("stopping.stop_token_ids", stopping.stop_token_ids)

    def _stopping(self, stopping: generation_pb2.Stopping, budget: int) -> StoppingParams:
        least = stopping.min_new_tokens
        _check_range("stopping.min_new_tokens", least, 0, budget, f"it must be at most max_new_tokens, {budget}")
        seconds = stopping.time_limit_seconds if stopping.HasField("time_limit_seconds") else None
        longest = self.limits.max_time_limit_seconds
        if seconds is not None and not 0.0 < seconds <= longest:
            limit = f"it must be over 0 and at most {longest:g} seconds"
            raise InvalidRequest("stopping.time_limit_seconds", seconds, limit)
        return StoppingParams(
            max_new_tokens=budget,
            min_new_tokens=least,
            stop_strings=tuple(stopping.stop_strings),
            stop_token_ids=tuple(stopping.stop_token_ids),
            ignore_eos=stopping.ignore_eos,
            include_stop=stopping.include_stop,
            time_limit_seconds=seconds,
        )

    def _speculation(self, message: GenerateMessage) -> Speculation:
        speculation = message.speculation
        match speculation.WhichOneof("choice"):
            case "action":
                return Speculation(action=self._action(speculation))
            case "off" if speculation.off:
                return Speculation(action=Action.parse("off"))
            case "policy":
                _check_count("speculation.policy", len(speculation.policy), self.limits.max_policy_name, "characters")
                if not speculation.policy:
                    raise InvalidRequest("speculation.policy", "", "it must name a policy version or alias")
                return Speculation(policy=speculation.policy)
        # A trial that leaves no rows teaches nothing.
        return Speculation(exploration_opt_out=speculation.exploration_opt_out or message.learning_opt_out)

    def _action(self, speculation: generation_pb2.Speculation) -> Action:
        asked, most = speculation.action, self.limits.largest_action
        try:
            action = Action(asked.total_tokens, asked.depth, asked.top_k).validated()
        except InvalidRequest as error:
            raise InvalidRequest(f"speculation.{error.field}", error.value, error.limit) from None
        for knob in ("total_tokens", "depth", "top_k"):
            value, high = getattr(action, knob), getattr(most, knob)
            _check_range(f"speculation.action.{knob}", value, 0, high, f"it must be at most {high}")
        return action

    def _check_ids(self, field: str, ids: Iterable[int]) -> None:
        vocab = self.model.vocab_size
        for token in ids:
            if token >= vocab:
                raise InvalidRequest(field, token, f"token ids must be from 0 to {vocab - 1}")

    def _check_bytes(self, field: str, texts: Iterable[str]) -> None:
        size = sum(len(text.encode()) for text in texts)
        if size > self.limits.max_prompt_bytes:
            limit = f"a prompt has at most {self.limits.max_prompt_bytes} bytes"
            raise InvalidRequest(field, f"{size} bytes", limit)


def _priority(number: int) -> Priority:
    if number not in PRIORITIES:  # the wire takes any number
        known = ", ".join(str(each) for each in PRIORITIES)
        raise InvalidRequest("priority", number, f"it must be one of {known}")
    return PRIORITIES[number]


def _check_range(field: str, value: float, low: float, high: float, limit: str) -> None:
    if not low <= value <= high:  # NaN compares false, so it is refused too
        raise InvalidRequest(field, value, limit)


def _check_count(field: str, count: int, most: int, what: str) -> None:
    if count > most:
        raise InvalidRequest(field, f"{count} {what}", f"there may be at most {most}")
