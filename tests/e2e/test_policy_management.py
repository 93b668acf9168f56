"""Policies changed in a running daemon, through its socket, as people and scripts do it."""

from __future__ import annotations

import io
import json
import signal
import tarfile
from pathlib import Path

import grpc
import pytest
from support.daemons import DaemonProcess, daemon, long_flags, respsd

from policy_store import PolicyStore
from policy_store.archive import write_archive
from respsd_client import Client, ServiceError

pytestmark = pytest.mark.slow
PROMPT = [1, 40, 17, 99]


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def served(state_dir):
    with daemon(state_dir, *long_flags()) as running:
        yield running


@pytest.fixture
def client(served, state_dir):
    """Over the daemon's UNIX socket, as whoever may change policies comes."""
    with Client(f"unix:{state_dir}/respsd.sock") as opened:
        yield opened


def policy(state_dir: Path, *arguments: str, code: int = 0) -> str:
    return respsd("policy", *arguments, "--state-dir", str(state_dir), code=code)


def copies_of_the_learner(client: Client) -> tuple[int, int]:
    """Two more stored versions that choose by their weights."""
    archive = client.export_policy("learner")
    return tuple(client.import_policy(archive, reason="a copy").entries[0].to_version for _ in range(2))  # type: ignore[return-value]


def test_swapping_in_mid_stream_changes_no_token_and_is_reported(client):
    """Each stream starts under one stored version and, after its first chunk, another is promoted."""
    plain = client.generate(PROMPT, action="off", max_new_tokens=2000, ignore_eos=True).token_ids
    versions = copies_of_the_learner(client)
    client.promote_policy(versions[1])
    swapped, budget = 0, 250
    for turn in range(20):
        before, after = versions[(turn + 1) % 2], versions[turn % 2]
        stream = client.stream(PROMPT, max_new_tokens=budget, ignore_eos=True)
        tokens = list(next(stream).token_ids)
        client.promote_policy(after, reason="in mid-stream")
        tokens += [token for chunk in stream for token in chunk.token_ids]
        assert tuple(tokens) == plain[:budget]
        assert stream.result.policy_version_first == before
        assert stream.result.policy_version_last in (before, after)
        if stream.result.policy_version_last == after:
            swapped += 1
        else:  # it was over before the promotion
            budget = min(2 * budget, len(plain))
        if swapped == 3:
            return
    raise AssertionError("no promotion came before its stream's end")


def test_promote_serve_rollback_and_what_the_files_say(served, client, state_dir):
    assert (
        policy(state_dir, "promote", "learner", "--reason", "try it")
        .splitlines()[0]
        .startswith("promote: champion 1 -> 2")
    )
    assert client.generate(PROMPT, max_new_tokens=5, ignore_eos=True).policy_version_first == 2
    change = json.loads(policy(state_dir, "rollback", "--reason", "slower", "-o", "json"))
    assert change["changed"]
    assert [(each["event"], each["from"], each["to"]) for each in change["changes"]] == [
        ("rollback", 2, 1),
        ("quarantine", None, 2),
    ]
    assert client.generate(PROMPT, max_new_tokens=5, ignore_eos=True).policy_version_first == 1
    again = json.loads(policy(state_dir, "rollback", "-o", "json"))
    assert again == {"changed": False, "dry_run": False, "changes": []}
    for _ in range(20):  # the requests' windows may reach the log between the two, and with them their speeds
        live = json.loads(respsd("policy", "list", "--address", served.address, "-o", "json"))
        files = json.loads(policy(state_dir, "list", "-o", "json"))
        if live == files:
            break
    assert live == files
    assert files[1]["state"] == "quarantined"
    shown = json.loads(policy(state_dir, "show", "2", "-o", "json"))
    assert shown["fault"] is None
    assert [each["event"] for each in shown["history"]][-2:] == ["rollback", "quarantine"]
    assert served.stop() == 0
    history = json.loads(policy(state_dir, "history", "--alias", "champion", "-o", "json"))
    assert [(each["event"], each["to"]) for each in history] == [("alias", 1), ("promote", 2), ("rollback", 1)]
    assert all(each["actor"].startswith("operator:") for each in history[1:])


def test_refusals_have_their_codes_and_change_nothing(served, client, state_dir):
    before = policy(state_dir, "history", "-o", "json")
    policy(state_dir, "promote", "404", code=4)
    policy(state_dir, "promote", "nobody", code=4)
    policy(state_dir, "rm", "champion", "--yes", code=5)
    policy(state_dir, "rm", "champion", code=2)
    policy(state_dir, "unpin", "--offline", code=5)
    policy(state_dir, "promote", "2", "--address", "127.0.0.1:9", code=3)
    (state_dir / "not-a-policy").write_bytes(b"PK\3\4")
    policy(state_dir, "import", str(state_dir / "not-a-policy"), code=2)
    with pytest.raises(ServiceError, match=r"only manifest\.json") as caught:
        client.import_policy(write_archive({"../../evil": b"x"}))
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    damaged = state_dir / "policies" / "versions" / "2" / "policy.safetensors"
    data = damaged.read_bytes()
    damaged.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ServiceError, match="hash") as caught:
        client.promote_policy("learner")
    assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION
    assert policy(state_dir, "history", "-o", "json") == before


def test_an_import_that_is_too_large_for_the_engine_is_refused(client):
    before = client.list_policies()
    archive = client.export_policy("learner")
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar}
    manifest = json.loads(files["manifest.json"])
    manifest["action_table"][0] = [100_000, 8, 8]
    huge = write_archive(files | {"manifest.json": json.dumps(manifest).encode()})
    with pytest.raises(ServiceError, match=r"limit for total_tokens is 128"):
        client.import_policy(huge)
    assert client.list_policies() == before


def test_a_pin_and_a_freeze_outlive_a_kill(served, client, state_dir):
    client.pin_policy("learner", reason="demo day")
    client.freeze_learning(reason="odd traffic", actor="ann")
    served.process.send_signal(signal.SIGKILL)
    served.wait()
    with daemon(state_dir, *long_flags()), Client(f"unix:{state_dir}/respsd.sock") as again:
        assert again.generate(PROMPT, max_new_tokens=5, ignore_eos=True).policy_version_first == 2
        flags = again.policy_flags()
        assert flags.pin is not None
        assert flags.freeze is not None
        assert (flags.pin.version, flags.pin.reason, flags.freeze.reason) == (2, "demo day", "odd traffic")
        with pytest.raises(ServiceError, match=r"pinned.*demo day"):
            again.rollback_policy()
        with pytest.raises(ServiceError, match="odd traffic"):
            again.train_now()


def test_with_the_daemon_stopped_changes_need_the_offline_flag(served: DaemonProcess, state_dir: Path):
    assert served.stop() == 0
    policy(state_dir, "promote", "learner", code=3)
    assert "champion 1 -> 2" in policy(state_dir, "promote", "learner", "--offline", "--reason", "moved by hand")
    with PolicyStore(state_dir / "policies", read_only=True) as store:
        assert store.aliases()["champion"] == 2
    with daemon(state_dir, *long_flags()) as again, Client(again.address) as client:
        assert client.generate(PROMPT, max_new_tokens=5, ignore_eos=True).policy_version_first == 2
