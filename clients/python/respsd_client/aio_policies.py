"""Calls of the policy service for asyncio programs; `policies.py` with awaits.

Every call that changes something takes `reason`, `actor` (your name, for the audit log) and `dry_run`, and returns what
it changed; one that is refused in the present state raises ServiceError with FAILED_PRECONDITION.
"""

from __future__ import annotations

from typing import Unpack

from respsd_client.errors import service_errors
from respsd_client.policies import ChangeOptions, history_request, intent_of
from respsd_client.policy_result import (
    HistoryEntry,
    PolicyChange,
    PolicyDetail,
    PolicyFlags,
    PolicyInfo,
    read_change,
    read_detail,
    read_entries,
    read_flags,
    read_policies,
)
from respsd_client.v1 import policy_pb2, policy_pb2_grpc


class AsyncPolicyCalls:
    """The part of `AsyncClient` that concerns policies."""

    _policies: policy_pb2_grpc.PolicyServiceAsyncStub

    async def list_policies(self, *, timeout: float | None = None) -> list[PolicyInfo]:
        """Every stored policy version, oldest first."""
        with service_errors():
            return read_policies(await self._policies.ListPolicies(policy_pb2.ListPoliciesRequest(), timeout=timeout))

    async def policy_flags(self, *, timeout: float | None = None) -> PolicyFlags:
        """Whether the champion is pinned and learning frozen."""
        request = policy_pb2.ListPoliciesRequest()
        with service_errors():
            response = await self._policies.ListPolicies(request, timeout=timeout)
        return read_flags(response)

    async def get_policy(self, policy: int | str, *, timeout: float | None = None) -> PolicyDetail:
        """One version, by number or alias, with its manifest."""
        request = policy_pb2.GetPolicyRequest(policy=str(policy))
        with service_errors():
            response = await self._policies.GetPolicy(request, timeout=timeout)
        return read_detail(response)

    async def policy_history(
        self,
        policy: int | str | None = None,
        *,
        alias: str | None = None,
        before_id: int | None = None,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> tuple[HistoryEntry, ...]:
        """What was changed, oldest first: the newest `limit` entries (100 unless given) older than `before_id`.

        `policy` (a number or an alias) leaves those about that version, `alias` the moves of that alias.
        """
        request = history_request(policy, alias, before_id, limit)
        with service_errors():
            response = await self._policies.ListHistory(request, timeout=timeout)
        return read_entries(response.entries)

    async def export_policy(self, policy: int | str, *, timeout: float | None = None) -> bytes:
        """A version as an archive, a tar that another daemon can import."""
        request = policy_pb2.ExportPolicyRequest(policy=str(policy))
        with service_errors():
            response = await self._policies.ExportPolicy(request, timeout=timeout)
        return response.archive

    async def promote_policy(
        self, policy: int | str, *, timeout: float | None = None, **intent: Unpack[ChangeOptions]
    ) -> PolicyChange:
        """Make a version, by number or alias, the champion."""
        request = policy_pb2.PromotePolicyRequest(policy=str(policy), intent=intent_of(intent))
        with service_errors():
            response = await self._policies.PromotePolicy(request, timeout=timeout)
        return read_change(response.change)

    async def rollback_policy(
        self, to: int | str | None = None, *, timeout: float | None = None, **intent: Unpack[ChangeOptions]
    ) -> PolicyChange:
        """Bring a former champion back, the newest good one unless `to` names it; the present one is quarantined."""
        request = policy_pb2.RollbackPolicyRequest(policy="" if to is None else str(to), intent=intent_of(intent))
        with service_errors():
            response = await self._policies.RollbackPolicy(request, timeout=timeout)
        return read_change(response.change)

    async def nominate_policy(
        self, policy: int | str, *, timeout: float | None = None, **intent: Unpack[ChangeOptions]
    ) -> PolicyChange:
        """Make a version, by number or alias, the candidate: a rollout compares it with the champion."""
        request = policy_pb2.NominatePolicyRequest(policy=str(policy), intent=intent_of(intent))
        with service_errors():
            response = await self._policies.NominatePolicy(request, timeout=timeout)
        return read_change(response.change)

    async def withdraw_candidate(
        self, *, timeout: float | None = None, **intent: Unpack[ChangeOptions]
    ) -> PolicyChange:
        """Let there be no candidate."""
        request = policy_pb2.WithdrawCandidateRequest(intent=intent_of(intent))
        with service_errors():
            response = await self._policies.WithdrawCandidate(request, timeout=timeout)
        return read_change(response.change)

    async def pin_policy(
        self, policy: int | str, *, timeout: float | None = None, **intent: Unpack[ChangeOptions]
    ) -> PolicyChange:
        """Make a version the champion and let nobody move it until `unpin_policy`."""
        request = policy_pb2.PinPolicyRequest(policy=str(policy), intent=intent_of(intent))
        with service_errors():
            response = await self._policies.PinPolicy(request, timeout=timeout)
        return read_change(response.change)

    async def unpin_policy(self, *, timeout: float | None = None, **intent: Unpack[ChangeOptions]) -> PolicyChange:
        """Let the champion be moved again."""
        request = policy_pb2.UnpinPolicyRequest(intent=intent_of(intent))
        with service_errors():
            response = await self._policies.UnpinPolicy(request, timeout=timeout)
        return read_change(response.change)

    async def freeze_learning(self, *, timeout: float | None = None, **intent: Unpack[ChangeOptions]) -> PolicyChange:
        """Stop learning: no new learner, no new candidate, no training."""
        request = policy_pb2.FreezeLearningRequest(intent=intent_of(intent))
        with service_errors():
            response = await self._policies.FreezeLearning(request, timeout=timeout)
        return read_change(response.change)

    async def unfreeze_learning(self, *, timeout: float | None = None, **intent: Unpack[ChangeOptions]) -> PolicyChange:
        """Let learning go on."""
        request = policy_pb2.UnfreezeLearningRequest(intent=intent_of(intent))
        with service_errors():
            response = await self._policies.UnfreezeLearning(request, timeout=timeout)
        return read_change(response.change)

    async def import_policy(
        self, archive: bytes, *, timeout: float | None = None, **intent: Unpack[ChangeOptions]
    ) -> PolicyChange:
        """Store an exported version under a new number, which the entry says."""
        request = policy_pb2.ImportPolicyRequest(archive=archive, intent=intent_of(intent))
        with service_errors():
            response = await self._policies.ImportPolicy(request, timeout=timeout)
        return read_change(response.change)

    async def delete_policy(
        self, policy: int | str, *, timeout: float | None = None, **intent: Unpack[ChangeOptions]
    ) -> PolicyChange:
        """Delete a version that no alias points to."""
        request = policy_pb2.DeletePolicyRequest(policy=str(policy), intent=intent_of(intent))
        with service_errors():
            response = await self._policies.DeletePolicy(request, timeout=timeout)
        return read_change(response.change)

    async def train_now(self, *, timeout: float | None = None, **intent: Unpack[ChangeOptions]) -> str:
        """Start an update of the learner; says what was started."""
        request = policy_pb2.TrainNowRequest(intent=intent_of(intent))
        with service_errors():
            response = await self._policies.TrainNow(request, timeout=timeout)
        return response.started
