"""A benchmark's result as one JSON document: the form that `respsd bench -o json` prints."""

from __future__ import annotations

from dataclasses import asdict

from respsd.bench.comparison.report import ALL_SETS, Row
from respsd.bench.comparison.run import BenchResult
from respsd.bench.comparison.sweep import SweepReport
from respsd.bench.paired import PairedRatio
from respsd.bench.percentiles import Percentiles

Document = dict[str, object]


def bench_document(result: BenchResult) -> Document:
    """Durations are in seconds, but for those that say `ms`."""
    rows = [_row(result, row) for row in result.rows]
    return {
        "version": result.version,
        "target": result.target,
        "drafter": result.drafter,
        "dtype": result.dtype,
        "device": result.device,
        "threads": result.threads,
        "exact": result.exact,
        "max_new_tokens": result.max_new_tokens,
        "ratio_to": result.first,
        "equal_to": result.plain,
        "results": [row for row in rows if row["questions"] != ALL_SETS],
        "overall": [row for row in rows if row["questions"] == ALL_SETS],
        "noise": [
            {"method": cell.method, "concurrency": cell.concurrency, **_ratio(ratio)} for cell, ratio in result.noise
        ],
        "sweep": [_sweep(report) for report in result.sweeps],
        "skipped": [{"method": cell.method, "concurrency": cell.concurrency} for cell in result.skipped],
    }


def _row(result: BenchResult, row: Row) -> Document:
    action = result.actions.get((row.method, row.concurrency))
    document: Document = {
        "questions": row.questions,
        "method": row.method,
        "action": None if action is None else str(action),
        "concurrency": row.concurrency,
        "tokens_per_second": row.tokens_per_second,
        **_ratio(row.ratio),
        "end_to_end": {"tokens_per_second": row.whole_tokens_per_second, **_ratio(row.whole_ratio)},
        "ratio_to_one_stream": None if row.ratio_to_one_stream is None else _ratio(row.ratio_to_one_stream),
        "tau": row.tau,
        "time_to_first_token": _percentiles(row.time_to_first_token),
        "inter_token_latency": _percentiles(row.inter_token_latency),
        "equal_outputs": row.equal_outputs,
        "answers": row.answers,
        "tokens": row.tokens,
        "steps": None if row.steps is None else asdict(row.steps),
    }
    return document


def _ratio(ratio: PairedRatio | None) -> Document:
    """The ratio's fields, all None where there is none."""
    if ratio is None:
        return dict.fromkeys(
            ("ratio", "ratio_low", "ratio_high", "ratio_confidence", "ratio_geometric_mean", "p", "pairs")
        )
    return {
        "ratio": ratio.ratio,
        "ratio_low": ratio.low,
        "ratio_high": ratio.high,
        "ratio_confidence": ratio.confidence,
        "ratio_geometric_mean": ratio.geometric_mean,
        "p": ratio.p,
        "pairs": ratio.pairs,
    }


def _percentiles(found: Percentiles | None) -> Document | None:
    return None if found is None else dict(asdict(found))


def _sweep(report: SweepReport) -> Document:
    return {
        "concurrency": report.concurrency,
        "best": str(report.best),
        "rounds": [
            [{"action": str(action), "relative_speed": speed} for action, speed in each.relative_speeds]
            for each in report.rounds
        ],
    }
