"""PolicyService over a real socket: both clients against a fake operator, names of callers, limits of fields."""

from __future__ import annotations

import grpc
import pytest
from support.serving import ServerThread, served

from policy_store import AuditEntry
from respsd.control.policy_change import Intent, PolicyChange
from respsd.engine.stub import StubEngine
from respsd.errors import ChangeRefused
from respsd_client import AsyncClient, Client, ServiceError

ENTRY = AuditEntry(7, "2026-11-30T12:00:00.250000Z", "operator:ann", "promote", "champion", 1, 2, "why", {"n": 3})


class RecordingOperator:
    """Answers every change with ENTRY and remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []

    def _change(self, *asked: object, intent: Intent) -> PolicyChange:
        self.asked.append((*asked, intent))
        return PolicyChange((ENTRY,), intent.dry_run)

    def promote(self, version: int | str, intent: Intent) -> PolicyChange:
        return self._change("promote", version, intent=intent)

    def rollback(self, intent: Intent, to: int | str | None = None) -> PolicyChange:
        return self._change("rollback", to, intent=intent)

    def nominate(self, version: int | str, intent: Intent) -> PolicyChange:
        return self._change("nominate", version, intent=intent)

    def withdraw(self, intent: Intent) -> PolicyChange:
        return self._change("withdraw", intent=intent)

    def pin(self, version: int | str, intent: Intent) -> PolicyChange:
        return self._change("pin", version, intent=intent)

    def unpin(self, intent: Intent) -> PolicyChange:
        return self._change("unpin", intent=intent)

    def freeze(self, intent: Intent) -> PolicyChange:
        return self._change("freeze", intent=intent)

    def unfreeze(self, intent: Intent) -> PolicyChange:
        return self._change("unfreeze", intent=intent)

    def remove(self, version: int | str, intent: Intent) -> PolicyChange:
        return self._change("remove", version, intent=intent)

    def export(self, version: int | str) -> bytes:
        return f"archive of {version}".encode()

    def import_archive(self, data: bytes, intent: Intent) -> PolicyChange:
        return self._change("import", data, intent=intent)

    def train_now(self, intent: Intent) -> str:
        self._change("train", intent=intent)
        return "update 3 started"


CALLS = [
    ("promote_policy", (2,), ("promote", "2")),
    ("rollback_policy", (), ("rollback", None)),
    ("rollback_policy", ("last-good",), ("rollback", "last-good")),
    ("nominate_policy", (4,), ("nominate", "4")),
    ("withdraw_candidate", (), ("withdraw",)),
    ("pin_policy", ("champion",), ("pin", "champion")),
    ("unpin_policy", (), ("unpin",)),
    ("freeze_learning", (), ("freeze",)),
    ("unfreeze_learning", (), ("unfreeze",)),
    ("delete_policy", (3,), ("remove", "3")),
    ("import_policy", (b"tar",), ("import", b"tar")),
]


@pytest.mark.parametrize(("method", "arguments", "asked"), CALLS)
async def test_both_clients_ask_for_the_same_change_and_read_the_same_answer(method, arguments, asked):
    operator = RecordingOperator()
    with ServerThread(StubEngine(), operator=operator) as server, Client(server.address) as client:
        answer = getattr(client, method)(*arguments, reason="slow", actor="ann", dry_run=True)
        async with AsyncClient(server.address) as asynchronous:
            assert await getattr(asynchronous, method)(*arguments, reason="slow", actor="ann", dry_run=True) == answer
    assert operator.asked == [(*asked, Intent("operator:ann", "slow", None, dry_run=True))] * 2
    (entry,) = answer.entries
    assert answer.dry_run
    assert (entry.id, entry.actor, entry.event, entry.alias) == (7, "operator:ann", "promote", "champion")
    assert (entry.from_version, entry.to_version, entry.reason, entry.figures) == (1, 2, "why", {"n": 3})
    assert entry.at.isoformat() == "2026-11-30T12:00:00.250000+00:00"


async def test_the_rest_of_the_asynchronous_client():
    async with served(StubEngine(), operator=RecordingOperator()) as server, AsyncClient(server.address) as client:
        assert await client.train_now(actor="ann") == "update 3 started"
        assert await client.export_policy("champion") == b"archive of 1"
        assert (await client.get_policy(1)).fault == "it is not stored"
        assert await client.policy_history("champion", alias="champion", limit=5) == ()
        assert await client.policy_flags() == await client.policy_flags()


def test_reading_needs_no_operator_and_changing_does():
    with ServerThread(StubEngine()) as server, Client(server.address) as client:
        assert client.get_policy("champion").policy.version == 1
        assert client.get_policy("champion").manifest is None
        assert client.policy_history() == ()
        assert client.policy_flags().pin is None
        for call in (lambda: client.promote_policy(1), lambda: client.train_now(), lambda: client.export_policy(1)):
            with pytest.raises(ServiceError, match="policy store does not work") as caught:
                call()
            assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION
        with pytest.raises(ServiceError, match="nobody") as caught:
            client.get_policy("nobody")
        assert caught.value.code is grpc.StatusCode.NOT_FOUND


def test_a_caller_without_a_name_is_recorded_as_such():
    operator = RecordingOperator()
    with ServerThread(StubEngine(), operator=operator) as server, Client(server.address) as client:
        client.unpin_policy()
    assert operator.asked == [("unpin", Intent("operator:anyone"))]


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda client: client.promote_policy(""), "policy"),
        (lambda client: client.promote_policy("x" * 65), "policy"),
        (lambda client: client.unpin_policy(reason="x" * 501), "intent.reason"),
        (lambda client: client.unpin_policy(reason="two\nlines"), "intent.reason"),
        (lambda client: client.unpin_policy(actor="x" * 65), "intent.actor"),
        (lambda client: client.policy_history(limit=1001), "limit"),
        (lambda client: client.policy_history(alias="x" * 65), "alias"),
    ],
)
def test_a_field_past_its_limit_is_named(call, field):
    operator = RecordingOperator()
    with ServerThread(StubEngine(), operator=operator) as server, Client(server.address) as client:
        with pytest.raises(ServiceError) as caught:
            call(client)
        assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
        assert caught.value.field_violations[0].field == field
    assert operator.asked == []


def test_a_refusal_reaches_the_caller_with_its_words():
    class Pinned(RecordingOperator):
        def promote(self, version: int | str, intent: Intent) -> PolicyChange:
            raise ChangeRefused("version 2 is pinned as the champion by operator:bob; unpin it first")

    with ServerThread(StubEngine(), operator=Pinned()) as server, Client(server.address) as client:
        with pytest.raises(ServiceError, match="pinned as the champion by operator:bob") as caught:
            client.promote_policy(3)
        assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION


def test_an_archive_over_the_message_limit_is_exhausted_and_the_next_call_is_fine():
    with ServerThread(StubEngine(), operator=RecordingOperator()) as server, Client(server.address) as client:
        with pytest.raises(ServiceError) as caught:
            client.import_policy(bytes(5 << 20))
        assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert client.import_policy(bytes(1 << 20)).entries
