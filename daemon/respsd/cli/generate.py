"""`respsd generate`: one request to a running daemon, its text as it comes or one JSON document."""

from __future__ import annotations

import enum
import io
import sys
from collections.abc import Sequence
from typing import Annotated, Literal, NoReturn, cast

import typer

from respsd.cli.connection import AddressOption, usual_address
from respsd.cli.exit_codes import ExitCode, of_status
from respsd.cli.output import print_json, print_message
from respsd_client import (
    Client,
    GenerateOptions,
    GenerateResult,
    Prompt,
    ServiceError,
    TokenLogProb,
)

_LEAST = -3.4028234663852886e38


class Output(enum.StrEnum):
    """What goes to standard output."""

    TEXT = "text"
    JSON = "json"


class Priority(enum.StrEnum):
    """What `--priority` takes."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"


def generate(
    prompt: Annotated[str | None, typer.Argument(help="Text to continue; - reads standard input.")] = None,
    *,
    address: AddressOption = None,
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
    logit_bias: Annotated[
        list[str] | None, typer.Option(help="ID=VALUE, what a token's logit gains; repeatable.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text again.")] = None,
    samples: Annotated[
        int | None, typer.Option("--samples", "-n", help="Outputs of the one prompt; needs a temperature.")
    ] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the output; repeatable.")] = None,
    stop_token_id: Annotated[list[int] | None, typer.Option(help="Token that ends the output; repeatable.")] = None,
    include_stop: Annotated[bool, typer.Option("--include-stop", help="Keep the stop text.")] = False,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the model's own end.")] = False,
    time_limit: Annotated[
        float | None, typer.Option(help="Seconds after which the output ends with what it has.")
    ] = None,
    truncate: Annotated[int | None, typer.Option(help="Keep the prompt's last so many tokens.")] = None,
    echo: Annotated[bool, typer.Option("--echo", help="Begin the text with the prompt.")] = False,
    special_tokens: Annotated[
        bool, typer.Option("--special-tokens", help="Show the tokenizer's special tokens.")
    ] = False,
    logprobs: Annotated[
        int | None, typer.Option(help="Tell each token's log-probability and so many most probable ones; JSON only.")
    ] = None,
    prompt_logprobs: Annotated[int | None, typer.Option(help="The same for the prompt's tokens; JSON only.")] = None,
    action: Annotated[str | None, typer.Option(help="Draft tree of every step: TT,d,k or off.")] = None,
    policy: Annotated[str | None, typer.Option(help="Policy version or alias that draws the trees.")] = None,
    no_explore: Annotated[
        bool, typer.Option("--no-explore", help="Never try other draft trees than the default policy's.")
    ] = False,
    learning_opt_out: Annotated[
        bool, typer.Option("--learning-opt-out", help="Leave no rows for policies to learn from.")
    ] = False,
    priority: Annotated[Priority | None, typer.Option(help="Who goes first of those that wait.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds after which to give up, as an error.")] = None,
    output: Annotated[Output, typer.Option("--output", "-o")] = Output.TEXT,
) -> None:
    """Generate text with a running daemon."""
    address = address or usual_address()
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
        "n": samples,
        "stop": stop,
        "stop_token_ids": stop_token_id,
        "include_stop": include_stop,
        "ignore_eos": ignore_eos,
        "time_limit": time_limit,
        "truncate": truncate,
        "echo": echo,
        "skip_special_tokens": False if special_tokens else None,
        "logprobs": logprobs,
        "prompt_logprobs": prompt_logprobs,
        "action": action,
        "policy": policy,
        "exploration_opt_out": no_explore,
        "learning_opt_out": learning_opt_out,
        "priority": cast("Literal['low', 'normal', 'high'] | None", priority),
    }
    try:
        asked = _prompt(prompt, prompt_ids, chat=chat)
        options["logit_bias"] = _biases(logit_bias or [])
        if output is Output.TEXT and (logprobs is not None or prompt_logprobs is not None):
            raise ValueError("--logprobs and --prompt-logprobs need -o json")
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


def _biases(given: list[str]) -> dict[int, float]:
    """What `ID=VALUE` arguments say; raises ValueError."""
    biases: dict[int, float] = {}
    for text in given:
        token, _, value = text.partition("=")
        try:
            biases[int(token)] = float(value)
        except ValueError:
            raise ValueError(f"--logit-bias: {text!r} is not ID=VALUE like 50256=-100") from None
    return biases


def _stream(
    client: Client, prompt: Prompt, options: GenerateOptions, timeout: float | None, *, show: bool
) -> GenerateResult:
    """Generate to the end; where asked, show text as it comes, and leaving early cancels the rest.

    The texts of several samples would come mixed, so they are shown at the end, each under its number.
    """
    live = show and (options.get("n") or 1) == 1
    if show and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a character still shows the rest
    with client.stream(prompt, timeout=timeout, **options) as stream:
        for chunk in stream:
            if live:
                sys.stdout.write(chunk.text)
                sys.stdout.flush()
        result = stream.result
    if show:
        _end_text(result, live=live)
    return result


def _end_text(result: GenerateResult, *, live: bool) -> None:
    """End a shown text's line, or show the texts that were held back."""
    for sample in result.samples or (result,):
        text = "" if live else f"--- sample {sample.index}, seed {sample.seed} ---\n{sample.text}"
        sys.stdout.write(text if (text or sample.text).endswith("\n") else f"{text}\n")


def _document(result: GenerateResult) -> dict[str, object]:
    """The result as JSON; what was not asked for is not there."""
    document = _output(result)
    if result.prompt_token_ids:
        document["prompt_token_ids"] = result.prompt_token_ids
    if result.prompt_logprobs:
        document["prompt_logprobs"] = _scores(result.prompt_logprobs)
    if result.samples:
        document["samples"] = [_output(sample) for sample in result.samples]
    return document


def _scores(logprobs: Sequence[TokenLogProb]) -> list[dict[str, object]]:
    return [
        {
            "token_id": each.token_id,
            "logprob": None if each.logprob is None else _finite(each.logprob),
            "top": [{"token_id": token, "logprob": _finite(logprob)} for token, logprob in each.top.items()],
        }
        for each in logprobs
    ]


def _finite(logprob: float) -> float:
    """JSON has no infinity: what is impossible is told as the least number of float32."""
    return max(logprob, _LEAST)


def _output(result: GenerateResult) -> dict[str, object]:
    document: dict[str, object] = {
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
    if result.logprobs:
        document["logprobs"] = _scores(result.logprobs)
    return document


def _explain(error: ServiceError, address: str) -> str:
    if error.code.name == "UNAVAILABLE":
        return f"the daemon at {address} is not available: {error.message}"
    return error.message


def _fail(message: str, code: ExitCode) -> NoReturn:
    """Say what went wrong in one line and end the command."""
    print_message(f"respsd generate: {' '.join(message.split())}")
    raise typer.Exit(code)
