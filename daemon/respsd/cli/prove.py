"""`respsd rollout prove`: does the rollout decide right here, on live streams?"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from respsd.cli import models
from respsd.cli.exit_codes import ExitCode
from respsd.cli.output import OutputFormat, OutputOption, print_json, print_message, print_table
from respsd.cli.policy.reading import service_faults
from respsd.clock import SystemClock
from respsd.control.action import Action


def prove(
    *,
    good: Annotated[str, typer.Option(metavar="TT,d,k|off", help="An action that is fast here.")] = "8,3,3",
    bad: Annotated[
        str | None, typer.Option(metavar="TT,d,k", help="One that is slow.", show_default="the table's largest")
    ] = None,
    questions: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="question.jsonl files (repeat).", exists=True, show_default="built-in set"),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Questions, which are asked again and again.")] = 16,
    streams: Annotated[int, typer.Option(min=1, help="Requests at a time.")] = 2,
    equal_requests: Annotated[int, typer.Option(min=1, help="Requests that an equal candidate has to stand.")] = 30,
    max_new_tokens: Annotated[int, typer.Option(min=16, help="Tokens of each answer at most.")] = 192,
    state_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A new folder, kept afterwards.", show_default="a temporary folder"),
    ] = None,
    demo: models.DemoOption = False,
    target: models.TargetOption = None,
    drafter: models.DrafterOption = None,
    dtype: models.DtypeOption = None,
    device: models.DeviceOption = None,
    config: models.ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Nominate a bad, an equal and a good candidate while streams run; exits 0 only if all went right.

    The daemon is one of its own. Right is: the bad candidate is rolled back by itself within 15 requests, the equal one
    is not, the good one is promoted in place of a bad champion, and every answer has the tokens of plain decoding.
    """
    from respsd.bench.live.proof import run_proof
    from respsd.bench.questions import built_in_turns, read_turns
    from respsd.telemetry.logging import configure_logging
    from respsd.telemetry.progress import ProgressReport

    flags = models.serve_flags(demo=demo, target=target, drafter=drafter, dtype=dtype, device=device, config=config)
    settings = models.model_settings(
        demo=demo, target=target, drafter=drafter, dtype=dtype, device=device, config=config
    )
    configure_logging(settings.log.level, settings.log.format)
    turns = [each for file in questions or () for each in read_turns(file)] or built_in_turns()
    texts = [each[0] for each in turns[:: max(1, len(turns) // limit)][:limit]]
    with ExitStack() as stack:
        folder = state_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="respsd-prove-")))
        stack.enter_context(service_faults(str(folder)))
        progress = stack.enter_context(ProgressReport("requests", 4 * len(texts), SystemClock()))
        trials = run_proof(
            flags,
            texts,
            good=Action.parse(good),
            bad=settings.control.table().largest if bad is None else Action.parse(bad),
            equal_requests=equal_requests,
            streams=streams,
            max_new_tokens=max_new_tokens,
            state_dir=folder.resolve(),
            progress=lambda: progress.advance(1),
        )
    if output is OutputFormat.JSON:
        names = ("name", "verdict", "requests", "different", "reason")
        print_json(
            [
                {name: getattr(each, name) for name in names}
                | {"champion": str(each.champion), "candidate": str(each.candidate), "right": each.is_right}
                for each in trials
            ]
        )
    else:
        headers = ("candidate", "action", "against", "verdict", "requests", "other tokens", "right")
        print_table(
            headers,
            [
                (t.name, t.candidate, t.champion, t.verdict, t.requests, t.different, "yes" if t.is_right else "NO")
                for t in trials
            ],
        )
        for each in trials:
            if each.reason:
                print_message(f"{each.name}: {each.reason}")
    if not all(each.is_right for each in trials):
        raise typer.Exit(ExitCode.FAILED)
