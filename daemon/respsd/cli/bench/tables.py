"""What the bench commands print for people."""

from __future__ import annotations

import sys

from respsd.bench.comparison.report import Row
from respsd.bench.comparison.run import BenchResult
from respsd.bench.paired import PairedRatio
from respsd.bench.wording import milliseconds, share
from respsd.cli.output import print_table

_HEADERS = (
    "questions",
    "method",
    "streams",
    "tokens/s",
    "ratio",
    "interval",
    "p",
    "whole",
    "tau",
    "first token ms",
    "next p50 ms",
    "p99 ms",
    "draft",
    "verify",
    "rest",
    "policy",
    "equal",
)


def print_bench(result: BenchResult) -> None:
    """The rows, then what they mean, the noise, the sweeps and the acceptance by depth."""
    print_table(_HEADERS, [_cells(result, row) for row in result.rows])
    print_lines(
        "",
        f"{result.target}, {result.dtype} on {result.device}, {result.threads} threads, "
        f"{'exact, ' if result.exact else ''}answers of at most {result.max_new_tokens} tokens",
        f"ratio: to {result.first}, of decoding one stream, or of all tokens of several; whole: with the prefill",
        f"equal: share of the questions answered as by {result.plain}",
    )
    for cell, ratio in result.noise:
        print_lines(
            f"noise: {cell.method} against itself, {_streams(cell.concurrency)}: {ratio.ratio:.3f} ({_interval(ratio)})"
        )
    for report in result.sweeps:
        measured = sum(len(each.relative_speeds) for each in report.rounds)
        print_lines(f"sweep, {_streams(report.concurrency)}: {report.best} is the best of {measured} measured")
    for skipped in result.skipped:
        print_lines(f"left out: {skipped.method} cannot run {_streams(skipped.concurrency)}")
    _print_acceptance(result)


def print_lines(*lines: str) -> None:
    """Lines below a table."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _cells(result: BenchResult, row: Row) -> tuple[object, ...]:
    ratio, whole, steps = row.ratio, row.whole_ratio, row.steps
    first, following = row.time_to_first_token, row.inter_token_latency
    return (
        row.questions,
        result.label(row),
        row.concurrency,
        f"{row.tokens_per_second:.1f}",
        None if ratio is None else f"{ratio.ratio:.2f}",
        None if ratio is None else _interval(ratio),
        None if ratio is None else f"{ratio.p:.2g}",
        None if whole is None else f"{whole.ratio:.2f}",
        f"{row.tau:.2f}",
        None if first is None else milliseconds(first.p50),
        None if following is None else milliseconds(following.p50),
        None if following is None else milliseconds(following.p99),
        None if steps is None else share(steps.draft_share),
        None if steps is None else share(steps.verify_share),
        None if steps is None else share(steps.overhead_share),
        None if steps is None else f"{steps.policy_share:.2%}",
        share(row.equal_outputs),
    )


def _print_acceptance(result: BenchResult) -> None:
    """Of the rows over all sets, or of the only set."""
    last = result.rows[-1].questions if result.rows else ""
    for row in result.rows:
        if row.questions == last and row.steps is not None and row.steps.acceptance:
            depths = " ".join(f"{each:.2f}" for each in row.steps.acceptance)
            print_lines(f"accepted at depth 1, 2, ... by {result.label(row)}, {_streams(row.concurrency)}: {depths}")


def _interval(ratio: PairedRatio) -> str:
    return f"{ratio.low:.2f} to {ratio.high:.2f}"


def _streams(concurrency: int) -> str:
    return "one stream" if concurrency == 1 else f"{concurrency} streams"
