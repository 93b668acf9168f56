"""`respsd generate` against a running service: text as it comes, the JSON document, one-line errors, exit codes."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
import typer
from support.serving import DRAWN_SEED, ServerThread
from typer.testing import CliRunner, Result

from respsd.cli.generate import generate
from respsd.engine.stub import StubEngine, spell
from respsd_client import Client

app = typer.Typer()
app.command("generate")(generate)
app.command("another")(lambda: None)  # with one command alone there would be no subcommands


def run(*arguments: str, input: str | None = None, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(app, ["generate", *arguments], input=input, env=env or {})


@pytest.fixture(scope="module", autouse=True)
def quiet_service() -> Iterator[None]:
    """The service runs in this process, and its log must not mix with the command's output."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ServerThread(StubEngine(next_token=spell("héllo world"))) as server:
        yield server.address


@pytest.fixture(scope="module")
def babbling() -> Iterator[str]:
    with ServerThread(StubEngine(context_length=10**7)) as server:
        yield server.address


def test_text_streams_to_stdout_and_ends_its_line(address):
    result = run("hi", "--address", address)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "héllo world\n", "")


def test_text_is_shown_while_the_engine_still_works():
    engine = StubEngine(next_token=spell("abcdef"))
    program = "import typer; from respsd.cli.generate import generate; typer.run(generate)"
    with ServerThread(engine) as server:
        engine.gate.close()
        arguments = [sys.executable, "-c", program, "hi", "--address", server.address]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, bufsize=0) as command:
            assert command.stdout is not None
            engine.gate.allow(1)
            assert command.stdout.read(1) == b"a"
            engine.gate.open()
            assert command.stdout.read() == b"bcdef\n"
        assert command.returncode == 0


def test_json_is_one_document_with_exactly_these_fields(address):
    result = run("hi", "--address", address, "--max-new-tokens", "8", "-o", "json")
    document = json.loads(result.stdout)
    assert document.pop("request_id")
    assert document == {
        "text": "héllo w",
        "token_ids": list("héllo w".encode()),
        "finish_reason": "length",
        "usage": {"prompt_tokens": 2, "completion_tokens": 8},
        "seed": DRAWN_SEED,
        "steps": 2,
        "drafted_tokens": 6,
        "accepted_tokens": 6,
        "policy_version_first": 1,
        "policy_version_last": 1,
    }


def document(*arguments: str, **options: object) -> dict:
    result = run(*arguments, "-o", "json", **options)  # type: ignore[arg-type]
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_prompt_from_ids_stdin_or_chat(babbling):
    by = ("--address", babbling, "--max-new-tokens", "12")
    plain = document("hi", *by)
    assert document("--prompt-ids", "104, 105", *by)["text"] == plain["text"]
    assert document("-", *by, input="hi")["text"] == plain["text"]
    chat = document("hi", "--chat", *by)
    assert chat["usage"]["prompt_tokens"] == len("user: hi\nassistant: ")


def test_address_comes_from_the_environment(babbling):
    assert document("hi", "--max-new-tokens", "1", env={"RESPSD_ADDRESS": babbling})["token_ids"]


def test_sampling_stops_and_actions_are_sent(address, babbling):
    by = ("--address", babbling, "--max-new-tokens", "30", "--temperature", "0.8")
    seeded = document("hi", *by, "--seed", "5", "--top-p", "0.9", "--top-k", "50", "--min-p", "0.01")
    assert seeded["seed"] == 5
    assert document("hi", *by, "--seed", "5", "--action", "off")["text"] == seeded["text"]
    assert document("hi", *by, "--seed", "6")["text"] != seeded["text"]
    off = document("hi", *by, "--action", "off")
    assert (off["accepted_tokens"], off["policy_version_first"]) == (0, None)
    assert document("hi", *by, "--policy", "baseline")["policy_version_last"] == 1
    stopped = document("x", "--address", address, "--stop", "never", "--stop", "o w")
    assert (stopped["text"], stopped["finish_reason"]) == ("héll", "stop_string")
    kept = document("x", "--address", address, "--stop", "o w", "--include-stop")
    assert kept["text"] == "héllo w"
    endless = document("x", "--address", address, "--ignore-eos", "--max-new-tokens", "20")
    assert endless["usage"]["completion_tokens"] == 20


def test_samples_come_one_after_the_other(babbling):
    by = ("--address", babbling, "--max-new-tokens", "20", "--temperature", "1", "--seed", "5")
    whole = document("hi", *by, "-n", "3")
    samples = whole["samples"]
    assert whole["text"] == samples[0]["text"] == document("hi", *by)["text"]
    assert len({sample["text"] for sample in samples}) == 3
    again = document("hi", *by[:-1], str(samples[2]["seed"]))
    assert again["text"] == samples[2]["text"]
    shown = run("hi", *by, "-n", "3")
    lines = [f"--- sample {i}, seed {each['seed']} ---\n{each['text']}\n" for i, each in enumerate(samples)]
    assert shown.stdout == "".join(lines)


def test_log_probs_are_in_the_document_where_asked_for(address):
    scored = document("hé", "--address", address, "--max-new-tokens", "2", "--logprobs", "1", "--prompt-logprobs", "0")
    top = [{"token_id": 0, "logprob": 0.0}]
    assert scored["logprobs"] == [{"token_id": id, "logprob": -id / 256, "top": top} for id in "hé".encode()[:2]]
    assert [each["token_id"] for each in scored["prompt_logprobs"]] == list("hé".encode())
    assert scored["prompt_logprobs"][0] == {"token_id": ord("h"), "logprob": None, "top": []}
    refused = run("hi", "--address", address, "--logprobs", "1")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "-o json" in refused.stderr


def test_prompt_and_output_options_are_sent(address):
    echoed = document("prompt ", "--address", address, "--echo", "--truncate", "3")
    assert echoed["text"] == "pt héllo world"
    assert echoed["prompt_token_ids"] == list(b"pt ")
    assert run("hi ", "--address", address, "--echo").stdout == "hi héllo world\n"
    assert document("x", "--address", address, "--include-stop", "--special-tokens")["text"] == "héllo world<eos>"
    ended = document("x", "--address", address, "--stop-token-id", "7", "--stop-token-id", str(ord("w")))
    assert (ended["text"], ended["finish_reason"]) == ("héllo ", "stop_token")
    assert document("x", "--address", address, "--logit-bias", "104=-100", "--logit-bias", "5=1.5")["text"]


def test_a_priority_is_sent(address):
    assert document("x", "--address", address, "--priority", "high")["text"]
    assert run("x", "--address", address, "--priority", "highest").exit_code == 2


def test_a_time_limit_ends_the_output_and_not_the_command(babbling):
    ended = document("hi", "--address", babbling, "--max-new-tokens", "1000000", "--time-limit", "0.05")
    assert ended["finish_reason"] == "time_limit"
    assert len(ended["token_ids"]) == ended["usage"]["completion_tokens"] < 1_000_000


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "PROMPT or --prompt-ids"),
        (["hi", "--prompt-ids", "1"], 2, "PROMPT or --prompt-ids"),
        (["--prompt-ids", "1,-2"], 2, "'1,-2'"),
        (["--prompt-ids", "1", "--chat"], 2, "--chat"),
        (["--prompt-ids", ""], 2, "at least 1 token"),
        ([""], 2, "at least 1 token"),
        (["hi", "--action", "nonsense"], 2, "'nonsense'"),
        (["hi", "--action", "off", "--policy", "1"], 2, "give one"),
        (["hi", "--temperature", "-1"], 2, "sampling.temperature: -1.0"),
        (["hi", "--seed", "-1"], 2, "-1"),
        (["hi", "--logit-bias", "5:1"], 2, "'5:1'"),
        (["hi", "--logit-bias", "999=1"], 2, "sampling.logit_bias: 999"),
        (["hi", "-n", "2"], 2, "sampling.n: 2"),
        (["hi", "--truncate", "0"], 2, "prompt.truncate: 0"),
        (["hi", "--logprobs", "99"], 2, "logprobs: 99"),
        (["hi", "--time-limit", "0"], 2, "stopping.time_limit_seconds: 0.0"),
        (["hi", "--policy", "nobody"], 4, "'nobody'"),
        (["hi", "--max-new-tokens", "1000000", "--timeout", "0.1"], 124, "eadline"),
    ],
)
def test_errors_are_one_line_and_an_exit_code(babbling, arguments, code, words):
    result = run(*arguments, "--address", babbling, "-o", "json")
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr.startswith("respsd generate: ")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_absent_daemon_is_not_reachable(tmp_path: Path):
    address = f"unix:{tmp_path}/nobody.sock"
    result = run("hi", "--address", address)
    assert result.exit_code == 3
    assert address in result.stderr
    assert result.stderr.count("\n") == 1


def test_malformed_address_is_a_usage_error():
    assert run("hi", "--address", "nonsense").exit_code == 2


def test_interrupt_is_its_own_exit_code(babbling, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "stream", interrupted)
    assert run("hi", "--address", babbling).exit_code == 130
