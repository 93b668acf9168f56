"""`respsd bench serve`: a running daemon under load."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from respsd.bench.load.arrivals import parse_rates, poisson_arrivals
from respsd.cli.bench.plot_option import PlotOption, check_plot
from respsd.cli.exit_codes import ExitCode, of_status
from respsd.cli.output import OutputFormat, OutputOption, print_json, print_message, print_table
from respsd.clock import SystemClock
from respsd_client import DEFAULT_ADDRESS, AsyncClient, GenerateOptions, ModelInfo, Prompt, ServiceError

if TYPE_CHECKING:
    from respsd.bench.load.report import LoadRow
    from respsd.bench.load.sending import LoadRun
    from respsd.bench.percentiles import Percentiles

_MS = 1e-3


def serve(
    *,
    address: Annotated[
        str, typer.Option(envvar="RESPSD_ADDRESS", help="The daemon, HOST:PORT or unix:PATH.")
    ] = DEFAULT_ADDRESS,
    rate: Annotated[str, typer.Option(help="Requests a second, comma-separated; one run each.")] = "0.25,0.5,1",
    requests: Annotated[int, typer.Option(min=1, help="Requests of each run.")] = 32,
    questions: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="question.jsonl files (repeat).", exists=True, show_default="built-in set"),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Budget of each request.")] = 64,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Let every answer have all its tokens.")] = False,
    temperature: Annotated[float | None, typer.Option(help="0, the default, is greedy.")] = None,
    action: Annotated[str | None, typer.Option(help="Draft tree of every step: TT,d,k or off.")] = None,
    policy: Annotated[str | None, typer.Option(help="Policy version or alias that draws the trees.")] = None,
    first_token_ms: Annotated[
        float | None, typer.Option(min=0, help="Objective: time to the first token.", show_default="none")
    ] = None,
    per_token_ms: Annotated[
        float | None, typer.Option(min=0, help="Objective: mean time of a token after it.", show_default="none")
    ] = None,
    whole_ms: Annotated[
        float | None, typer.Option(min=0, help="Objective: time of the whole request.", show_default="none")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds after which a request is given up.")] = 300.0,
    learn: Annotated[
        bool, typer.Option("--learn", help="Let the daemon log the requests and learn from them.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Draws the arrivals.")] = 0,
    plot: PlotOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Send requests to a running daemon at given rates and report goodput and latency.

    Arrivals are a Poisson process that does not wait for answers; every latency counts from when a request was
    due. A run starts when the one before it has ended. A request is good that was answered within the objectives.
    """
    rates = parse_rates(rate)
    check_plot(plot)
    options: GenerateOptions = {
        "max_new_tokens": max_new_tokens,
        "ignore_eos": ignore_eos,
        "temperature": temperature,
        "action": action,
        "policy": policy,
        "learning_opt_out": not learn,
    }

    from respsd.bench.load.report import Objectives, load_document, load_row
    from respsd.telemetry.logging import configure_logging

    configure_logging("info", "auto")
    texts = _texts(questions)
    try:
        model, runs = asyncio.run(_run(address, texts, rates, requests, options, timeout, random.Random(seed)))
    except ServiceError as error:
        print_message(f"respsd bench serve: the daemon at {address}: {error.message}")
        raise typer.Exit(of_status(error.code.name)) from error
    except ValueError as error:
        print_message(f"respsd bench serve: {error}")
        raise typer.Exit(ExitCode.USAGE) from error
    limits = (first_token_ms, per_token_ms, whole_ms)
    objectives = Objectives(*(None if each is None else each * _MS for each in limits))
    rows = [load_row(run, objectives) for run in runs]
    if plot is not None:
        from respsd.bench.load.chart import draw_load

        draw_load(rows, plot, f"{model.target}, {model.dtype} on {model.device}, {requests} requests a rate")
    if output is OutputFormat.JSON:
        print_json({"target": model.target, "dtype": model.dtype, "results": [load_document(row) for row in rows]})
    else:
        _print(rows)


def _texts(files: Sequence[Path] | None) -> list[str]:
    from respsd.bench.questions import built_in_turns, read_turns

    found = [turns for file in files or () for turns in read_turns(file)] or built_in_turns()
    return [turns[0] for turns in found]


async def _run(
    address: str,
    texts: Sequence[str],
    rates: Sequence[float],
    requests: int,
    options: GenerateOptions,
    timeout: float,
    rng: random.Random,
) -> tuple[ModelInfo, list[LoadRun]]:
    from respsd.bench.load.sending import run_load
    from respsd.telemetry.progress import ProgressReport

    runs = []
    async with AsyncClient(address) as client:
        model = await client.model_info(timeout=timeout)
        prompts: list[Prompt] = [
            [{"role": "user", "content": text}] if model.has_chat_template else text for text in texts
        ]
        await client.generate(prompts[0], timeout=timeout, **options)  # warm-up, and refused options show here
        with ProgressReport("requests", requests * len(rates), SystemClock()) as progress:
            for rate in rates:
                arrivals = poisson_arrivals(rate, requests, rng)
                runs.append(
                    await run_load(
                        client,
                        prompts,
                        rate,
                        arrivals,
                        options,
                        timeout=timeout,
                        progress=lambda: progress.advance(1),
                    )
                )
    return model, runs


def _print(rows: Sequence[LoadRow]) -> None:
    headers = (
        "offered/s",
        "answered/s",
        "goodput/s",
        "good",
        "tokens/s",
        "first p50 ms",
        "p90",
        "p99",
        "next p50 ms",
        "p90",
        "p99",
        "whole p50 ms",
        "p90",
        "p99",
        "in flight",
        "refused",
    )
    print_table(headers, [_cells(row) for row in rows])


def _cells(row: LoadRow) -> tuple[object, ...]:
    from respsd.bench.wording import share

    return (
        f"{row.offered:g}",
        f"{row.answered:.3g}",
        f"{row.goodput:.3g}",
        share(row.good_share),
        f"{row.tokens_per_second:.1f}",
        *_three(row.time_to_first_token),
        *_three(row.inter_token_latency),
        *_three(row.whole),
        row.most_in_flight,
        ", ".join(f"{count} {code}" for code, count in row.refusals.items()) or None,
    )


def _three(found: Percentiles | None) -> tuple[object, ...]:
    from respsd.bench.wording import milliseconds

    if found is None:
        return (None, None, None)
    return tuple(milliseconds(each) for each in (found.p50, found.p90, found.p99))
