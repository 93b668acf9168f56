"""PolicyService over a catalog of stored policy versions and the operator that changes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from policy_store import AuditEntry, Flags, HistoryQuery
from respsd.control.catalog import PolicyDetail, PolicySummary
from respsd.control.policy_change import Operator, PolicyChange
from respsd.errors import ChangeRefused, InvalidRequest
from respsd.service.interceptor import Context
from respsd.service.limits import Limits
from respsd.service.policy_messages import (
    change_message,
    detail_message,
    entry_message,
    flag_message,
    policy_message,
    read_intent,
)
from respsd_client.v1 import policy_pb2, policy_pb2_grpc

DEFAULT_HISTORY = 100
MOST_ENTRY = 2**63 - 1
"""No database counts further."""


class PolicyCatalog(Protocol):
    """Reads the store; called on worker threads. Every method may raise StorageError."""

    def list_policies(self) -> Sequence[PolicySummary]:
        """Every version, oldest first."""
        ...

    def get_policy(self, name: int | str) -> PolicyDetail:
        """One version, by number or alias; raises UnknownPolicy."""
        ...

    def history(self, query: HistoryQuery, name: int | str | None = None) -> Sequence[AuditEntry]:
        """What was changed, oldest first; raises UnknownPolicy."""
        ...

    def flags(self) -> Flags:
        """Whether the champion is pinned and learning frozen."""
        ...


class PolicyServicer(policy_pb2_grpc.PolicyServiceServicer):
    """Reads files and changes them on worker threads, so that no stream waits for a disk."""

    def __init__(
        self, catalog: PolicyCatalog, operator: Operator | None = None, limits: Callable[[], Limits] = Limits
    ) -> None:
        """
        :param operator: None, in a daemon whose store does not work, refuses every change
        :param limits: asked at each call, since a reload may change them
        """
        self._catalog = catalog
        self._operator = operator
        self._limits = limits

    async def ListPolicies(  # noqa: N802  the wire's name
        self, _request: policy_pb2.ListPoliciesRequest, _context: Context
    ) -> policy_pb2.ListPoliciesResponse:
        """Every stored version, oldest first."""
        summaries = await asyncio.to_thread(self._catalog.list_policies)
        flags = await asyncio.to_thread(self._catalog.flags)
        return policy_pb2.ListPoliciesResponse(
            policies=map(policy_message, summaries), pin=flag_message(flags.pin), freeze=flag_message(flags.freeze)
        )

    async def GetPolicy(self, request: policy_pb2.GetPolicyRequest, _context: Context) -> policy_pb2.GetPolicyResponse:  # noqa: N802  the wire's name
        """One version."""
        return detail_message(await asyncio.to_thread(self._catalog.get_policy, self._name(request.policy)))

    async def ListHistory(  # noqa: N802  the wire's name
        self, request: policy_pb2.ListHistoryRequest, _context: Context
    ) -> policy_pb2.ListHistoryResponse:
        """Entries of the audit log."""
        most = self._limits().max_history
        if request.limit > most:
            raise InvalidRequest("limit", request.limit, f"it must be at most {most}")
        if request.before_id > MOST_ENTRY:
            raise InvalidRequest("before_id", request.before_id, f"it must be at most {MOST_ENTRY}")
        query = HistoryQuery(
            alias=self._name(request.alias, "alias") if request.alias else None,
            before_id=request.before_id or None,
            limit=request.limit or min(DEFAULT_HISTORY, most),
        )
        name = self._name(request.policy) if request.policy else None
        entries = await asyncio.to_thread(self._catalog.history, query, name)
        return policy_pb2.ListHistoryResponse(entries=map(entry_message, entries))

    async def PromotePolicy(  # noqa: N802  the wire's name
        self, request: policy_pb2.PromotePolicyRequest, _context: Context
    ) -> policy_pb2.PromotePolicyResponse:
        """Make a version the champion."""
        name, intent = self._name(request.policy), read_intent(request.intent)
        change = await self._change(lambda operator: operator.promote(name, intent))
        return policy_pb2.PromotePolicyResponse(change=change)

    async def RollbackPolicy(  # noqa: N802  the wire's name
        self, request: policy_pb2.RollbackPolicyRequest, _context: Context
    ) -> policy_pb2.RollbackPolicyResponse:
        """Bring a former champion back."""
        to, intent = self._name(request.policy) if request.policy else None, read_intent(request.intent)
        change = await self._change(lambda operator: operator.rollback(intent, to))
        return policy_pb2.RollbackPolicyResponse(change=change)

    async def NominatePolicy(  # noqa: N802  the wire's name
        self, request: policy_pb2.NominatePolicyRequest, _context: Context
    ) -> policy_pb2.NominatePolicyResponse:
        """Make a version the candidate."""
        name, intent = self._name(request.policy), read_intent(request.intent)
        change = await self._change(lambda operator: operator.nominate(name, intent))
        return policy_pb2.NominatePolicyResponse(change=change)

    async def WithdrawCandidate(  # noqa: N802  the wire's name
        self, request: policy_pb2.WithdrawCandidateRequest, _context: Context
    ) -> policy_pb2.WithdrawCandidateResponse:
        """Let there be no candidate."""
        intent = read_intent(request.intent)
        change = await self._change(lambda operator: operator.withdraw(intent))
        return policy_pb2.WithdrawCandidateResponse(change=change)

    async def PinPolicy(self, request: policy_pb2.PinPolicyRequest, _context: Context) -> policy_pb2.PinPolicyResponse:  # noqa: N802  the wire's name
        """Pin the champion."""
        name, intent = self._name(request.policy), read_intent(request.intent)
        return policy_pb2.PinPolicyResponse(change=await self._change(lambda operator: operator.pin(name, intent)))

    async def UnpinPolicy(  # noqa: N802  the wire's name
        self, request: policy_pb2.UnpinPolicyRequest, _context: Context
    ) -> policy_pb2.UnpinPolicyResponse:
        """Let the champion be moved again."""
        intent = read_intent(request.intent)
        return policy_pb2.UnpinPolicyResponse(change=await self._change(lambda operator: operator.unpin(intent)))

    async def FreezeLearning(  # noqa: N802  the wire's name
        self, request: policy_pb2.FreezeLearningRequest, _context: Context
    ) -> policy_pb2.FreezeLearningResponse:
        """Stop learning."""
        intent = read_intent(request.intent)
        return policy_pb2.FreezeLearningResponse(change=await self._change(lambda operator: operator.freeze(intent)))

    async def UnfreezeLearning(  # noqa: N802  the wire's name
        self, request: policy_pb2.UnfreezeLearningRequest, _context: Context
    ) -> policy_pb2.UnfreezeLearningResponse:
        """Let learning go on."""
        intent = read_intent(request.intent)
        change = await self._change(lambda operator: operator.unfreeze(intent))
        return policy_pb2.UnfreezeLearningResponse(change=change)

    async def ExportPolicy(  # noqa: N802  the wire's name
        self, request: policy_pb2.ExportPolicyRequest, _context: Context
    ) -> policy_pb2.ExportPolicyResponse:
        """A version as an archive."""
        name = self._name(request.policy)
        detail = await asyncio.to_thread(self._catalog.get_policy, name)
        archive = await asyncio.to_thread(self._working().export, detail.summary.version)
        return policy_pb2.ExportPolicyResponse(archive=archive, version=detail.summary.version)

    async def ImportPolicy(  # noqa: N802  the wire's name
        self, request: policy_pb2.ImportPolicyRequest, _context: Context
    ) -> policy_pb2.ImportPolicyResponse:
        """Store an archive's version."""
        intent = read_intent(request.intent)
        change = await self._change(lambda operator: operator.import_archive(request.archive, intent))
        return policy_pb2.ImportPolicyResponse(change=change)

    async def DeletePolicy(  # noqa: N802  the wire's name
        self, request: policy_pb2.DeletePolicyRequest, _context: Context
    ) -> policy_pb2.DeletePolicyResponse:
        """Delete a version."""
        name, intent = self._name(request.policy), read_intent(request.intent)
        change = await self._change(lambda operator: operator.remove(name, intent))
        return policy_pb2.DeletePolicyResponse(change=change)

    async def TrainNow(self, request: policy_pb2.TrainNowRequest, _context: Context) -> policy_pb2.TrainNowResponse:  # noqa: N802  the wire's name
        """Start an update."""
        intent = read_intent(request.intent)
        return policy_pb2.TrainNowResponse(started=await asyncio.to_thread(self._working().train_now, intent))

    async def _change(self, change: Callable[[Operator], PolicyChange]) -> policy_pb2.PolicyChange:
        return change_message(await asyncio.to_thread(change, self._working()))

    def _working(self) -> Operator:
        if self._operator is None:
            raise ChangeRefused("the policy store does not work, so nothing can be changed; the daemon's log says why")
        return self._operator

    def _name(self, text: str, field: str = "policy") -> str:
        most = self._limits().max_policy_name
        if not 1 <= len(text) <= most:
            raise InvalidRequest(field, text[:most], f"name a version or an alias, at most {most} characters")
        return text
