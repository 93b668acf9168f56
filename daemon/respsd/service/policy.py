"""PolicyService over a catalog of stored policy versions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from respsd.control.catalog import PolicySummary
from respsd.service.interceptor import Context
from respsd.service.messages import action_message
from respsd_client.v1 import policy_pb2, policy_pb2_grpc


class PolicyCatalog(Protocol):
    """Lists the stored versions; called on a worker thread."""

    def list_policies(self) -> Sequence[PolicySummary]:
        """Every version, oldest first; raises StorageError."""
        ...


class PolicyServicer(policy_pb2_grpc.PolicyServiceServicer):
    """Answers from the catalog, which may read files."""

    def __init__(self, catalog: PolicyCatalog) -> None:
        self._catalog = catalog

    async def ListPolicies(  # noqa: N802  the wire's name
        self, _request: policy_pb2.ListPoliciesRequest, _context: Context
    ) -> policy_pb2.ListPoliciesResponse:
        """Every stored version, oldest first."""
        summaries = await asyncio.to_thread(self._catalog.list_policies)
        return policy_pb2.ListPoliciesResponse(policies=[_policy_message(summary) for summary in summaries])


def _policy_message(summary: PolicySummary) -> policy_pb2.Policy:
    message = policy_pb2.Policy(
        version=summary.version,
        aliases=summary.aliases,
        state=summary.state,
        kind=summary.kind,
        parent=summary.parent,
        tokens_per_second=summary.tokens_per_second,
        action=action_message(summary.action) if summary.action is not None else None,
    )
    message.created.FromDatetime(summary.created)
    return message
