"""From the engine's and the catalog's values to wire messages."""

from __future__ import annotations

from collections.abc import Sequence

import respsd
from respsd.control.action import Action
from respsd.engine.api import ModelInfo
from respsd.engine.events import FinishReason, RequestFinished, TokenLogProb
from respsd_client.v1 import action_pb2, generation_pb2

FINISH_REASONS = {reason: generation_pb2.FinishReason.Value(f"FINISH_REASON_{reason.name}") for reason in FinishReason}


def finished_message(event: RequestFinished, sample: int = 0) -> generation_pb2.Finished:
    """How and why an output ended."""
    return generation_pb2.Finished(
        index=sample,
        finish_reason=FINISH_REASONS[event.reason],
        matched_stop=event.matched_stop,
        usage=generation_pb2.Usage(
            prompt_tokens=event.usage.prompt_tokens, completion_tokens=event.usage.completion_tokens
        ),
        seed=event.seed,
        steps=event.steps,
        drafted_tokens=event.drafted_tokens,
        accepted_tokens=event.accepted_tokens,
        policy_version_first=event.policy_version_first,
        policy_version_last=event.policy_version_last,
        timings=generation_pb2.Timings(
            queue_seconds=event.queue_seconds,
            prefill_seconds=event.prefill_seconds,
            decode_seconds=event.decode_seconds,
        ),
    )


def log_prob_messages(log_probs: Sequence[TokenLogProb]) -> list[generation_pb2.TokenLogProb]:
    """Tokens' log-probabilities."""
    return [
        generation_pb2.TokenLogProb(
            token_id=each.token_id,
            logprob=each.log_prob,
            top=[generation_pb2.TopToken(token_id=token, logprob=log_prob) for token, log_prob in each.top],
        )
        for each in log_probs
    ]


def model_info_message(
    model: ModelInfo, *, has_chat_template: bool, default_max_new_tokens: int
) -> generation_pb2.GetModelInfoResponse:
    """What is served."""
    return generation_pb2.GetModelInfoResponse(
        target=model.target,
        drafter=model.drafter,
        dtype=model.dtype,
        device=model.device,
        vocab_size=model.vocab_size,
        context_length=model.context_length,
        eos_token_ids=model.eos_token_ids,
        has_chat_template=has_chat_template,
        default_max_new_tokens=default_max_new_tokens,
        daemon_version=respsd.__version__,
    )


def action_message(action: Action) -> action_pb2.Action:
    """The shape of a draft tree."""
    return action_pb2.Action(total_tokens=action.total_tokens, depth=action.depth, top_k=action.top_k)
