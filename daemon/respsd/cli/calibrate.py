"""`respsd calibrate`: what draft trees cost and earn on this machine, and the constant action that follows."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from respsd.cli import models
from respsd.cli.output import OutputFormat, OutputOption, print_json, print_message, print_table
from respsd.clock import SystemClock
from respsd.control.action import EAGLE3, OFF, Action, ActionTable
from respsd.errors import CalibrationFailed
from respsd.paths import CALIBRATIONS

if TYPE_CHECKING:
    from respsd.calibration.check import Check
    from respsd.calibration.record import Calibration
    from respsd.control.batch_plan import BatchPlan

_SHOWN = 12


def calibrate(
    *,
    seconds: Annotated[
        float | None, typer.Option(min=1, help="About how long to measure.", show_default="60, or as set")
    ] = None,
    check: Annotated[
        int, typer.Option(min=0, help="Then measure so many actions by themselves and compare with the prediction.")
    ] = 0,
    check_prompts: Annotated[int, typer.Option(min=2, max=8, help="Prompts of that comparison.")] = 6,
    demo: models.DemoOption = False,
    target: models.TargetOption = None,
    drafter: models.DrafterOption = None,
    dtype: models.DtypeOption = None,
    device: models.DeviceOption = None,
    state_dir: models.StateDirOption = None,
    config: models.ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Time draft trees on this machine, measure what they earn, and keep the result for the daemon's next start."""
    settings = models.model_settings(
        demo=demo,
        target=target,
        drafter=drafter,
        dtype=dtype,
        device=device,
        state_dir=state_dir,
        config=config,
        calibration={"seconds": seconds},
    )
    loaded = models.load(settings)

    from respsd.calibration.check import compare
    from respsd.calibration.measure import calibrate as measure
    from respsd.calibration.record import CalibrationFiles

    if loaded.drafter is None:
        raise CalibrationFailed("there is no drafter, so nothing but 'off' can be run: give --drafter")
    table, clock = settings.control.table(), SystemClock()
    print_message(f"measuring for about {settings.calibration.seconds:.0f} s")
    result = measure(
        loaded,
        table,
        seconds=settings.calibration.seconds,
        max_running=settings.engine.max_running,
        clock=clock,
        shapes=settings.engine.step_shapes,
    )
    file = CalibrationFiles(settings.state_dir / CALIBRATIONS).save(result)
    plan = result.plan(table, settings.engine.max_running)
    checked = compare(loaded, result, table, check, check_prompts) if check else None
    if output is OutputFormat.JSON:
        check_document = None if checked is None else asdict(checked)
        print_json({**_document(result, table, plan), "file": str(file), "check": check_document})
    else:
        _print(result, table, plan)
        if checked is not None:
            _print_check(checked)
        print_message(f"stored in {file}")


def _document(result: Calibration, table: ActionTable, plan: BatchPlan) -> dict[str, object]:
    return {
        "setup": asdict(result.setup),
        "created": result.created,
        "seconds": result.seconds,
        "baseline": str(plan.alone),
        "by_sequences": [{"from": least, "action": str(action)} for least, action in plan.steps],
        "fit_error": result.model.cost.fit_error,
        "places": result.model.acceptance.places,
        "contexts": list(result.model.contexts),
        "actions": [_prediction(result, action) for action in _ranked(result, table)],
        "model": asdict(result.model),
    }


def _prediction(result: Calibration, action: Action) -> dict[str, object]:
    model = result.model
    steps = [model.cost.step(action, context) for context in model.contexts]
    return {
        "action": str(action),
        "tokens_per_second": math.exp(model.log_speed(action)),
        "tau": model.acceptance.of(action),
        "step_seconds": [step.total for step in steps],
        "draft_seconds": [step.draft for step in steps],
        "verify_seconds": [step.verify for step in steps],
    }


def _ranked(result: Calibration, table: ActionTable) -> list[Action]:
    """The actions worth knowing of, the fastest first."""
    actions = dict.fromkeys((OFF, *table, *((EAGLE3,) if result.covers(EAGLE3) else ())))
    return sorted(actions, key=result.model.log_speed, reverse=True)


def _print(result: Calibration, table: ActionTable, plan: BatchPlan) -> None:
    ranked = _ranked(result, table)
    baseline = plan.alone
    shown = list(dict.fromkeys([*ranked[:_SHOWN], baseline, *(a for a in (EAGLE3, OFF) if a in ranked), ranked[-1]]))
    shown.sort(key=ranked.index)
    contexts = [f"step at {context:.0f}" for context in result.model.contexts]
    rows = [_row(result, action, baseline, ranked.index(action) + 1) for action in shown]
    print_table(("rank", "action", "tokens/s", "tau", *contexts, "draft", "verify", ""), rows)
    model = result.model
    gain = math.exp(model.log_speed(baseline) - model.log_speed(OFF))
    print_message(
        f"{len(ranked)} actions; step times are predicted to {model.cost.fit_error:.0%} (root mean square, each from "
        f"the others); tau from {model.acceptance.places} places of the model's own greedy answers; "
        f"{result.seconds:.0f} s"
    )
    if baseline.is_off:
        print_message("baseline: off, since no tree makes decoding faster with this drafter on this machine")
    else:
        print_message(f"baseline: {baseline}, predicted {gain:.2f} times as fast as off")
        print_message(f"by the number of sequences in a step: {plan}")


def _row(result: Calibration, action: Action, baseline: Action, rank: int) -> tuple[object, ...]:
    model = result.model
    steps = [model.cost.step(action, context) for context in model.contexts]
    times = [f"{step.total * 1e3:.1f} ms" for step in steps]
    parts = (f"{steps[0].draft * 1e3:.1f} ms", f"{steps[0].verify * 1e3:.1f} ms")
    speed = f"{math.exp(model.log_speed(action)):.1f}"
    notes = [note for note, noted in (("baseline", baseline), ("eagle3", EAGLE3)) if noted == action]
    return (rank, action, speed, f"{model.acceptance.of(action):.2f}", *times, *parts, ", ".join(notes))


def _print_check(checked: Check) -> None:
    rows = [
        (
            each.action,
            f"{each.predicted_ratio:.2f}",
            f"{each.ratio:.2f}",
            f"{each.ratio_error:.0%}",
            f"{each.predicted_tau:.2f}",
            f"{each.tau:.2f}",
            f"{each.tokens_per_second:.1f}",
        )
        for each in checked.actions
    ]
    print_table(("action", "predicted ratio", "measured", "error", "predicted tau", "measured", "tokens/s"), rows)
    print_message(
        f"ratios are to off; rank correlation {checked.rank_correlation:.2f}, "
        f"predictions off by {checked.error:.0%} (root mean square)"
    )
