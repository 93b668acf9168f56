"""The whole slice: the real daemon over a real socket, driven by the real client and the command line."""

from __future__ import annotations

import json
import signal
import sqlite3
import threading

import pytest
from support import tiny
from support.daemons import DaemonProcess, daemon, respsd, tiny_flags

from respsd_client import Client, ServiceError

PROMPT = "the cat sat on"
ACTIONS = ("off", "4,1,2", "16,4,4", "60,7,10", "128,8,32")


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def served(state_dir):
    with daemon(state_dir, *tiny_flags()) as running:
        yield running


def generate(served: DaemonProcess, *flags: str) -> dict[str, object]:
    return json.loads(respsd("generate", *flags, "--address", served.address, "-o", "json"))


def test_the_ready_line_names_address_model_and_versions(served):
    ready = served.ready()
    assert str(ready["address"]).startswith("127.0.0.1:")
    assert str(ready["model"]).endswith("target")
    assert ready["dtype"] == "float32"
    assert "1" in ready["policy_versions"]


def test_generate_prints_one_document_with_the_documented_fields(served):
    document = generate(served, PROMPT, "--max-new-tokens", "20", "--ignore-eos")
    assert {
        "text",
        "token_ids",
        "finish_reason",
        "usage",
        "seed",
        "steps",
        "accepted_tokens",
        "policy_version_first",
        "policy_version_last",
    } <= document.keys()
    assert document["usage"]["completion_tokens"] == len(document["token_ids"]) == 20
    assert document["finish_reason"] == "length"
    assert document["policy_version_first"] == document["policy_version_last"] == 1
    assert document["accepted_tokens"] > 0
    assert document["steps"] + document["accepted_tokens"] == 19


def test_every_action_and_the_learner_give_the_same_tokens(served):
    choices = [{"action": action} for action in ACTIONS] + [{"policy": "learner"}, {"policy": "2"}]
    with Client(served.address) as client:
        for sampling in ({}, {"temperature": 0.8, "top_p": 0.9, "seed": 42}):
            outputs = {
                tuple(
                    client.generate([1, 40, 17, 99], max_new_tokens=40, ignore_eos=True, **choice, **sampling).token_ids
                )
                for choice in choices
            }
            assert len(outputs) == 1


def test_the_learner_runs_a_stored_policy(served):
    document = generate(served, PROMPT, "--max-new-tokens", "20", "--ignore-eos", "--policy", "learner")
    assert document["policy_version_first"] == 2


def test_text_streams_to_a_person(served):
    text = respsd("generate", PROMPT, "--address", served.address, "--max-new-tokens", "20", "--ignore-eos")
    whole = generate(served, PROMPT, "--max-new-tokens", "20", "--ignore-eos")["text"]
    assert text.rstrip("\n") == str(whole).rstrip("\n")


def test_a_bad_field_is_named_with_its_limit(served):
    with Client(served.address) as client:
        with pytest.raises(ServiceError, match="temperature"):
            client.generate(PROMPT, temperature=-1.0)
        with pytest.raises(ServiceError, match=r"action.total_tokens.*128"):
            client.generate(PROMPT, action="500,8,32")
        with pytest.raises(ServiceError, match=f"{tiny.CONTEXT}"):
            client.generate(PROMPT, max_new_tokens=10_000)


def test_a_client_that_leaves_frees_its_sequence(served):
    with Client(served.address) as client:
        stream = client.stream(PROMPT, max_new_tokens=230, ignore_eos=True)
        next(stream)
        stream.cancel()
        assert client.generate(PROMPT, max_new_tokens=3, ignore_eos=True).completion_tokens == 3


def test_twenty_requests_without_a_seed_differ_and_a_seed_repeats(served):
    with Client(served.address) as client:
        options = {"max_new_tokens": 12, "temperature": 1.0, "ignore_eos": True}
        unseeded = [client.generate(PROMPT, **options) for _ in range(20)]
        assert len({result.seed for result in unseeded}) == 20
        assert len({tuple(result.token_ids) for result in unseeded}) > 10
        again = client.generate(PROMPT, seed=unseeded[0].seed, **options)
        assert again.token_ids == unseeded[0].token_ids


def test_a_seed_repeats_among_batch_mates(served):
    """Alone, with an unseeded mate and with a seeded one."""
    options = {"max_new_tokens": 40, "temperature": 1.0, "ignore_eos": True}
    results = {}

    def ask(name: str, seed: int | None) -> None:
        with Client(served.address) as client:
            results[name] = client.generate(PROMPT, seed=seed, **options)

    ask("alone", 42)
    for mate in (None, 7):
        threads = [threading.Thread(target=ask, args=arguments) for arguments in (("mine", 42), ("mate", mate))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results["mine"].token_ids == results["alone"].token_ids


def test_rows_land_and_policy_list_works_with_and_without_the_daemon(tmp_path):
    with daemon(tmp_path, *tiny_flags()) as served:
        document = generate(served, PROMPT, "--max-new-tokens", "60", "--ignore-eos")
        generate(served, PROMPT, "--max-new-tokens", "10", "--learning-opt-out")
        live = json.loads(respsd("policy", "list", "--address", served.address, "-o", "json"))
        assert served.stop() == 0
    stopped = json.loads(respsd("policy", "list", "--state-dir", str(tmp_path), "-o", "json"))
    assert [each["version"] for each in live] == [each["version"] for each in stopped] == [1, 2, 3]
    baseline, learner, eagle3 = stopped
    assert {"version", "aliases", "state", "created", "kind", "parent", "tokens_per_second"} <= baseline.keys()
    assert set(baseline["aliases"]) == {"baseline", "champion"}
    assert (baseline["kind"], baseline["state"]) == ("static", "good")
    assert baseline["tokens_per_second"] > 0
    assert (learner["aliases"], learner["tokens_per_second"]) == (["learner"], None)
    assert (eagle3["aliases"], eagle3["kind"]) == (["eagle3"], "static")

    connection = sqlite3.connect(tmp_path / "transitions.db")
    requests = connection.execute("select steps, accepted_tokens, completion_tokens from requests").fetchall()
    assert requests == [(document["steps"], document["accepted_tokens"], 60)]
    rows = connection.execute(
        "select sum(steps), sum(accepted_tokens), sum(committed_tokens), min(draft_ns + verify_ns + other_ns), "
        "min(arm), max(log_prob), sum(truncated) from transitions"
    ).fetchall()
    steps, accepted, committed, least_ns, arm, log_prob, truncated = rows[0]
    assert (steps, accepted, committed) == (document["steps"], document["accepted_tokens"], 59)
    assert least_ns > 0
    assert (arm, log_prob, truncated) == ("champion", 0.0, 1)


def test_a_restart_keeps_versions_and_rows(tmp_path):
    for _ in range(2):
        with daemon(tmp_path, *tiny_flags()) as served:
            generate(served, PROMPT, "--max-new-tokens", "10", "--ignore-eos")
            assert served.stop() == 0
    versions = json.loads(respsd("policy", "list", "--state-dir", str(tmp_path), "-o", "json"))
    assert [each["version"] for each in versions] == [1, 2, 3]
    count = sqlite3.connect(tmp_path / "transitions.db").execute("select count(*) from requests").fetchone()
    assert count == (2,)


def test_sigterm_lets_a_running_stream_finish(tmp_path):
    with daemon(tmp_path, *tiny_flags()) as served:
        with Client(served.address) as client:
            stream = client.stream(PROMPT, max_new_tokens=100, ignore_eos=True)
            next(stream)
            served.process.send_signal(signal.SIGTERM)
            for _ in stream:
                pass
            assert stream.result.completion_tokens == 100
        assert served.wait() == 0


def test_without_a_drafter_the_daemon_serves_plainly_and_says_so_once(tmp_path):
    flags = [flag for flag in tiny_flags() if "drafter" not in flag]
    with daemon(tmp_path, *flags) as served:
        document = generate(served, PROMPT, "--max-new-tokens", "10", "--ignore-eos")
        assert (document["accepted_tokens"], document["steps"]) == (0, 9)
        assert served.stop() == 0
    assert sum("no_drafter" in line for line in served.lines) == 1


def test_a_start_that_fails_says_why_in_one_line(tmp_path):
    failed = DaemonProcess(tmp_path, "--target", str(tmp_path / "nothing"))
    assert failed.wait() == 1
    assert "nothing" in failed.lines[-1]
    assert "Traceback" not in "".join(failed.lines)
