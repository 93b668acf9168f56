"""What is left of a request when it is over: its row in the experience log, and the end of one that never ran."""

from __future__ import annotations

from respsd.engine.events import FinishReason, RequestFinished, Usage
from respsd.engine.request import GenerationRequest
from respsd.engine.sequence import Sequence
from respsd.experience.records import RequestRecord


def request_record(sequence: Sequence, finished: RequestFinished, finished_at_ns: int) -> RequestRecord:
    """The row of a finished request."""
    request = sequence.request
    return RequestRecord(
        request_id=request.request_id,
        created_at_ns=sequence.created_at_ns,
        finished_at_ns=finished_at_ns,
        prompt_tokens=finished.usage.prompt_tokens,
        completion_tokens=finished.usage.completion_tokens,
        finish_reason=finished.reason.value,
        temperature=request.sampling.temperature,
        top_p=request.sampling.top_p,
        top_k=request.sampling.top_k,
        seed=request.sampling.seed,
        steps=finished.steps,
        drafted_tokens=finished.drafted_tokens,
        accepted_tokens=finished.accepted_tokens,
        queue_ns=sequence.admitted_ns - sequence.submitted_ns,
        prefill_ns=sequence.prefill_ns,
        decode_ns=sequence.decode_ns,
        policy_version_first=finished.policy_version_first,
        policy_version_last=finished.policy_version_last,
    )


def ended_in_queue(request: GenerationRequest, reason: FinishReason, queue_ns: int) -> RequestFinished:
    """The end of a request that was cancelled, or whose time was over, before it started."""
    return RequestFinished(
        reason=reason,
        usage=Usage(len(request.prompt_ids), 0),
        seed=request.sampling.seed,
        steps=0,
        drafted_tokens=0,
        accepted_tokens=0,
        policy_version_first=None,
        policy_version_last=None,
        queue_seconds=queue_ns / 1e9,
    )
