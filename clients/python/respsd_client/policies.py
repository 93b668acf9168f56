"""Calls of the policy service.

Every call that changes something takes `reason`, `actor` (your name, for the audit log) and `dry_run`, and returns what
it changed; one that is refused in the present state raises ServiceError with FAILED_PRECONDITION.
"""

from __future__ import annotations

from typing import TypedDict, Unpack

from respsd_client.errors import service_errors
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


class ChangeOptions(TypedDict, total=False):
    """Who asks for a change and why; what is left out is unset."""

    reason: str
    actor: str
    """Your name; where the daemon knows its callers, it takes the name that it knows."""
    dry_run: bool
    """Check everything and say what would change, and change nothing."""


def intent_of(options: ChangeOptions) -> policy_pb2.Intent:
    """The options as the wire has them."""
    return policy_pb2.Intent(
        reason=options.get("reason", ""), actor=options.get("actor", ""), dry_run=options.get("dry_run", False)
    )


def history_request(
    policy: int | str | None, alias: str | None, before_id: int | None, limit: int | None
) -> policy_pb2.ListHistoryRequest:
    """The entries that are wanted, as the wire has them."""
    return policy_pb2.ListHistoryRequest(
        policy="" if policy is None else str(policy), alias=alias or "", before_id=before_id or 0, limit=limit or 0
    )


class PolicyCalls:
    """The part of `Client` that concerns policies."""

    _policies: policy_pb2_grpc.PolicyServiceStub

    def list_policies(self, *, timeout: float | None = None) -> list[PolicyInfo]:
        """Every stored policy version, oldest first."""
        with service_errors():
            return read_policies(self._policies.ListPolicies(policy_pb2.ListPoliciesRequest(), timeout=timeout))

    def policy_flags(self, *, timeout: float | None = None) -> PolicyFlags:
        """Whether the champion is pinned and learning frozen."""
        request = policy_pb2.ListPoliciesRequest()
        with service_errors():
            response = self._policies.ListPolicies(request, timeout=timeout)
        return read_flags(response)

    def get_policy(self, policy: int | str, *, timeout: float | None = None) -> PolicyDetail:
        """One version, by number or alias, with its manifest."""
        request = policy_pb2.GetPolicyRequest(policy=str(policy))
        with service_errors():
            response = self._policies.GetPolicy(request, timeout=timeout)
        return read_detail(response)

    def policy_history(
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
            response = self._policies.ListHistory(request, timeout=timeout)
        return read_entries(response.entries)

    def export_policy(self, policy: int | str, *, timeout: float | None = None) -> bytes:
        """A version as an archive, a tar that another daemon can import."""
        request = policy_pb2.ExportPolicyRequest(policy=str(policy))
        with service_errors():
            response = self._policies.ExportPolicy(request, timeout=timeout)
        return response.archive

    def promote_policy(
        self, policy: int | str, *, timeout: float | None = None, **intent: Unpack[ChangeOptions]
    ) -> PolicyChange:
        """Make a version, by number or alias, the champion."""
        request = policy_pb2.PromotePolicyRequest(policy=str(policy), intent=intent_of(intent))
        with service_errors():
            response = self._policies.PromotePolicy(request, timeout=timeout)
        return read_change(response.change)

    def rollback_policy(
        self, to: int | str | None = None, *, timeout: float | None = None, **intent: Unpack[ChangeOptions]
    ) -> PolicyChange:
        """Bring a former champion back, the newest good one unless `to` names it; the present one is quarantined."""
        request = policy_pb2.RollbackPolicyRequest(policy="" if to is None else str(to), intent=intent_of(intent))
        with service_errors():
            response = self._policies.RollbackPolicy(request, timeout=timeout)
        return read_change(response.change)

    def nominate_policy(
        self, policy: int | str, *, timeout: float | None = None, **intent: Unpack[ChangeOptions]
    ) -> PolicyChange:
        """Make a version, by number or alias, the candidate: a rollout compares it with the champion."""
        request = policy_pb2.NominatePolicyRequest(policy=str(policy), intent=intent_of(intent))
        with service_errors():
            response = self._policies.NominatePolicy(request, timeout=timeout)
        return read_change(response.change)

    def withdraw_candidate(self, *, timeout: float | None = None, **intent: Unpack[ChangeOptions]) -> PolicyChange:
        """Let there be no candidate."""
        request = policy_pb2.WithdrawCandidateRequest(intent=intent_of(intent))
        with service_errors():
            response = self._policies.WithdrawCandidate(request, timeout=timeout)
        return read_change(response.change)

    def pin_policy(
        self, policy: int | str, *, timeout: float | None = None, **intent: Unpack[ChangeOptions]
    ) -> PolicyChange:
        """Make a version the champion and let nobody move it until `unpin_policy`."""
        request = policy_pb2.PinPolicyRequest(policy=str(policy), intent=intent_of(intent))
        with service_errors():
            response = self._policies.PinPolicy(request, timeout=timeout)
        return read_change(response.change)

    def unpin_policy(self, *, timeout: float | None = None, **intent: Unpack[ChangeOptions]) -> PolicyChange:
        """Let the champion be moved again."""
        request = policy_pb2.UnpinPolicyRequest(intent=intent_of(intent))
        with service_errors():
            response = self._policies.UnpinPolicy(request, timeout=timeout)
        return read_change(response.change)

    def freeze_learning(self, *, timeout: float | None = None, **intent: Unpack[ChangeOptions]) -> PolicyChange:
        """Stop learning: no new learner, no new candidate, no training."""
        request = policy_pb2.FreezeLearningRequest(intent=intent_of(intent))
        with service_errors():
            response = self._policies.FreezeLearning(request, timeout=timeout)
        return read_change(response.change)

    def unfreeze_learning(self, *, timeout: float | None = None, **intent: Unpack[ChangeOptions]) -> PolicyChange:
        """Let learning go on."""
        request = policy_pb2.UnfreezeLearningRequest(intent=intent_of(intent))
        with service_errors():
            response = self._policies.UnfreezeLearning(request, timeout=timeout)
        return read_change(response.change)

    def import_policy(
        self, archive: bytes, *, timeout: float | None = None, **intent: Unpack[ChangeOptions]
    ) -> PolicyChange:
        """Store an exported version under a new number, which the entry says."""
        request = policy_pb2.ImportPolicyRequest(archive=archive, intent=intent_of(intent))
        with service_errors():
            response = self._policies.ImportPolicy(request, timeout=timeout)
        return read_change(response.change)

    def delete_policy(
        self, policy: int | str, *, timeout: float | None = None, **intent: Unpack[ChangeOptions]
    ) -> PolicyChange:
        """Delete a version that no alias points to."""
        request = policy_pb2.DeletePolicyRequest(policy=str(policy), intent=intent_of(intent))
        with service_errors():
            response = self._policies.DeletePolicy(request, timeout=timeout)
        return read_change(response.change)

    def train_now(self, *, timeout: float | None = None, **intent: Unpack[ChangeOptions]) -> str:
        """Start an update of the learner; says what was started."""
        request = policy_pb2.TrainNowRequest(intent=intent_of(intent))
        with service_errors():
            response = self._policies.TrainNow(request, timeout=timeout)
        return response.started
