"""`respsd generate`: one request to a running daemon, its text as it comes or one JSON document."""

from __future__ import annotations

import enum
import io
import sys
from typing import Annotated, NoReturn

import typer

from respsd.cli.exit_codes import ExitCode, of_status
from respsd.cli.output import print_json, print_message
from respsd_client import DEFAULT_ADDRESS, Client, GenerateOptions, GenerateResult, Prompt, ServiceError


class Output(enum.StrEnum):
    """What goes to standard output."""

    TEXT = "text"
    JSON = "json"


def generate(
    prompt: Annotated[str | None, typer.Argument(help="Text to continue; - reads standard input.")] = None,
    *,
    address: Annotated[
        str, typer.Option(envvar="RESPSD_ADDRESS", help="The daemon, HOST:PORT or unix:PATH.")
    ] = DEFAULT_ADDRESS,
    prompt_ids: Annotated[str | None, typer.Option(help="Token ids in place of text: 1,2,3.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Send the text as a chat message of the user.")] = False,
    max_new_tokens: Annotated[int | None, typer.Option(help="The budget.")] = None,
    min_new_tokens: Annotated[int | None, typer.Option(help="Tokens before which it cannot end.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0, the default, is greedy.")] = None,
    top_p: Annotated[float | None, typer.Option()] = None,
    top_k: Annotated[int | None, typer.Option(help="0 keeps the whole vocabulary.")] = None,
    min_p: Annotated[float | None, typer.Option()] = None,
    repetition_penalty: Annotated[float | None, typer.Option()] = None,
    frequency_penalty: Annotated[float | None, typer.Option()] = None,
    presence_penalty: Annotated[float | None, typer.Option()] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text again.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the output; repeatable.")] = None,
    include_stop: Annotated[bool, typer.Option("--include-stop", help="Keep the stop text.")] = False,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the model's own end.")] = False,
    action: Annotated[str | None, typer.Option(help="Draft tree of every step: TT,d,k or off.")] = None,
    policy: Annotated[str | None, typer.Option(help="Policy version or alias that draws the trees.")] = None,
    no_explore: Annotated[
        bool, typer.Option("--no-explore", help="Never try other draft trees than the default policy's.")
    ] = False,
    learning_opt_out: Annotated[
        bool, typer.Option("--learning-opt-out", help="Leave no rows for policies to learn from.")
    ] = False,
    timeout: Annotated[float | None, typer.Option(help="Seconds after which to give up.")] = None,
    output: Annotated[Output, typer.Option("--output", "-o")] = Output.TEXT,
) -> None:
    """Generate text with a running daemon."""
    options: GenerateOptions = {
        "max_new_tokens": max_new_tokens,
        "min_new_tokens": min_new_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
        "seed": seed,
        "stop": stop,
        "include_stop": include_stop,
        "ignore_eos": ignore_eos,
        "action": action,
        "policy": policy,
        "exploration_opt_out": no_explore,
        "learning_opt_out": learning_opt_out,
    }
    try:
        asked = _prompt(prompt, prompt_ids, chat=chat)
        with Client(address) as client:
            result = _stream(client, asked, options, timeout, show=output is Output.TEXT)
    except ServiceError as error:
        _fail(_explain(error, address), of_status(error.code.name))
    except ValueError as error:
        _fail(str(error), ExitCode.USAGE)
    except KeyboardInterrupt:
        _fail("interrupted", ExitCode.INTERRUPTED)
    if output is Output.JSON:
        print_json(_document(result))


def _prompt(text: str | None, ids: str | None, *, chat: bool) -> Prompt:
    """The prompt that the arguments name; raises ValueError where they name none or two."""
    if (text is None) == (ids is None):
        raise ValueError("give either PROMPT or --prompt-ids")
    if ids is not None:
        if chat:
            raise ValueError("--chat needs PROMPT; token ids are sent as they are")
        return _numbers(ids)
    content = sys.stdin.read() if text == "-" else text or ""
    return [{"role": "user", "content": content}] if chat else content


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if not all(part.isdecimal() for part in parts):
        raise ValueError(f"--prompt-ids: {text!r} is not a list of token ids like 1,2,3")
    return [int(part) for part in parts]


def _stream(
    client: Client, prompt: Prompt, options: GenerateOptions, timeout: float | None, *, show: bool
) -> GenerateResult:
    """Generate to the end; where asked, show text as it comes, and leaving early cancels the rest."""
    if show and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a character still shows the rest
    with client.stream(prompt, timeout=timeout, **options) as stream:
        for chunk in stream:
            if show:
                sys.stdout.write(chunk.text)
                sys.stdout.flush()
        if show and not stream.result.text.endswith("\n"):
            sys.stdout.write("\n")
        return stream.result


def _document(result: GenerateResult) -> dict[str, object]:
    return {
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "usage": {
            "prompt_tokens": result.prompt_tokens,
            "completion_tokens": result.completion_tokens,
        },
        "seed": result.seed,
        "steps": result.steps,
        "drafted_tokens": result.drafted_tokens,
        "accepted_tokens": result.accepted_tokens,
        "policy_version_first": result.policy_version_first,
        "policy_version_last": result.policy_version_last,
        "request_id": result.request_id,
    }


def _explain(error: ServiceError, address: str) -> str:
    if error.code.name == "UNAVAILABLE":
        return f"the daemon at {address} is not available: {error.message}"
    return error.message


def _fail(message: str, code: ExitCode) -> NoReturn:
    """Say what went wrong in one line and end the command."""
    print_message(f"respsd generate: {' '.join(message.split())}")
    raise typer.Exit(code)
