"""`respsd rollout`: how often the rollout would err on given noise, and the noise of this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from respsd.cli import models, prove
from respsd.cli.output import OutputFormat, OutputOption, print_json, print_table
from respsd.clock import SystemClock
from respsd.control.action import Action
from respsd.rollout.simulation import Scenario, Summary, simulate

if TYPE_CHECKING:
    from collections.abc import Mapping

app = typer.Typer(help="Try out how policies are rolled out.", no_args_is_help=True)


@app.callback()
def rollout() -> None:
    """Try out how policies are rolled out."""


app.command("prove")(prove.prove)


@app.command("simulate")
def simulate_rollouts(
    *,
    runs: Annotated[int, typer.Option(min=1, help="Evaluations to simulate.")] = 1000,
    effect: Annotated[
        float, typer.Option(min=-0.95, max=10.0, help="How much faster the candidate is: -0.05 is 5 % slower.")
    ] = 0.0,
    noise_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Noise of `rollout measure-noise`.", show_default="measured on the demo model"
        ),
    ] = None,
    scenario: Annotated[
        Scenario,
        typer.Option(help="What else happens: nothing, a workload 15 % slower from the swap on, drift, a neighbour."),
    ] = Scenario.CALM,
    seed: Annotated[int, typer.Option(help="The same seed gives the same runs.")] = 0,
    config: models.ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Run the rollout's own arms, pairs and judge on measured noise, with the settings of section [rollout]."""
    from respsd.rollout.noise import read_noise
    from respsd.rollout.rounds import judge_settings
    from respsd.settings_loader import load_settings
    from respsd.telemetry.logging import configure_logging
    from respsd.telemetry.progress import ProgressReport

    settings = load_settings({}, config=config)
    configure_logging(settings.log.level, settings.log.format)
    noise = read_noise(noise_file)
    persistence = noise.about.get("persistence")
    with ProgressReport("runs", runs, SystemClock()) as progress:
        summary = simulate(
            noise,
            judge_settings(settings.rollout, "candidate"),
            runs=runs,
            effect=effect,
            scenario=scenario,
            seed=seed,
            persistence=persistence if isinstance(persistence, int) else settings.control.persistence,
            progress=lambda: progress.advance(1),
        )
    if output is OutputFormat.JSON:
        print_json({**asdict(summary), "noise": noise.figures()})
    else:
        _print(summary, noise.figures())


@app.command("measure-noise")
def measure(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Noise file to write.")],
    *,
    action: Annotated[str, typer.Option(metavar="TT,d,k|off", help="Action of both arms.")] = "8,3,3",
    questions: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="question.jsonl files (repeat).", exists=True, show_default="built-in set"),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Questions of each file.")] = 12,
    max_new_tokens: Annotated[int, typer.Option(min=16, help="Tokens of each answer at most.")] = 256,
    concurrency: Annotated[int, typer.Option(min=1, help="Answers at the same time.")] = 1,
    demo: models.DemoOption = False,
    target: models.TargetOption = None,
    drafter: models.DrafterOption = None,
    dtype: models.DtypeOption = None,
    device: models.DeviceOption = None,
    config: models.ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Answer questions with two equal arms alternating and write down how much their speeds scatter."""
    parsed = Action.parse(action)
    settings = models.model_settings(
        demo=demo, target=target, drafter=drafter, dtype=dtype, device=device, config=config
    )

    from respsd.bench.questions import question_sets
    from respsd.rollout.measuring import measure_noise
    from respsd.rollout.noise import write_noise
    from respsd.telemetry.progress import ProgressReport

    loaded = models.load(settings)
    sets = question_sets(questions or (), loaded.tokenizer, limit=limit, max_prompt_tokens=1024)
    prompts = [prompt for each in sets for prompt in each.prompts]
    with ProgressReport("questions", len(prompts), SystemClock()) as progress:
        noise = measure_noise(
            loaded,
            prompts,
            parsed,
            persistence=settings.control.persistence,
            max_new_tokens=max_new_tokens,
            concurrency=concurrency,
            progress=lambda: progress.advance(1),
        )
    write_noise(noise, file)
    if output is OutputFormat.JSON:
        print_json({"file": str(file), "about": dict(noise.about), **noise.figures()})
    else:
        _print_figures(noise.figures())


def _print(summary: Summary, noise: Mapping[str, float]) -> None:
    rows = [(name.replace("_", " "), value) for name, value in asdict(summary).items()]
    rows.append(("noise of a quad, log ratio", f"{noise['quad_log_ratio_sd']:.3f}"))
    print_table(("figure", "value"), rows)


def _print_figures(figures: Mapping[str, float]) -> None:
    print_table(("figure", "value"), [(name.replace("_", " "), f"{value:.4g}") for name, value in figures.items()])
