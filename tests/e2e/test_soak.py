"""Mixed traffic on the whole daemon: every request ends in the right status, and nothing of it stays behind.

`RESPSD_TEST_SOAK_SECONDS=600 pytest -s tests/e2e/test_soak.py` goes on for ten minutes and then also looks at memory.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.daemons import daemon, tiny_flags
from support.soak import CLIENTS, FULL, LONGER_SECONDS, SETTINGS, Soak, SoakReport, milliseconds, missing_rows

SECONDS = float(os.environ.get("RESPSD_TEST_SOAK_SECONDS", "20"))
MOST_REFUSAL_MS = 50
WARM_SECONDS = 60
"""By then caches and pools have their size."""
MOST_GROWTH = 0.01
ENDS = {"OK", "CANCELLED", "DEADLINE_EXCEEDED", "INVALID_ARGUMENT", "NOT_FOUND", FULL}


def _is_enough(report: SoakReport) -> bool:
    """Whether everything happened that is to end well."""
    return (
        {end for _, end in report.ends} >= ENDS
        and len(report.finished) > CLIENTS
        and report.killed_clients > 0
        and report.swaps > 0
        and len({result.policy_version_first for result in report.finished}) > 1
    )


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + LONGER_SECONDS + 600)
async def test_mixed_traffic_ends_as_it_must_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with daemon(tmp_path, *tiny_flags(), environment=SETTINGS) as served:
        report = await Soak(served, tmp_path / "respsd.sock", seed=11).run(SECONDS, _is_enough)
    waits = {
        name: {share: milliseconds(seconds, share) for share in (0.5, 0.9, 0.99, 1.0)}
        for name, seconds in (("refusal", report.refusal_seconds), ("look", report.look_seconds))
    }
    print(report, f"{len(report.finished)} finished, {len(report.refusal_seconds)} refusals, {waits} ms")  # noqa: T201
    print("resident KiB:", [(round(at), kib) for at, kib in report.memory[::30]])  # noqa: T201
    assert report.faults == []
    assert report.exit_code == 0
    assert missing_rows(tmp_path / "transitions.db", report.finished) == []
    assert {end for _, end in report.ends} == ENDS
    assert _is_enough(report)
    assert report.refusal_seconds
    # On a machine that lets even the cheapest question wait, a refusal may take as long as that.
    assert waits["refusal"][0.5] < MOST_REFUSAL_MS + 2 * waits["look"][0.5]
    if SECONDS >= 3 * WARM_SECONDS:
        early = report.memory_between(WARM_SECONDS, WARM_SECONDS + 30)
        late = report.memory_between(SECONDS - 30, SECONDS)
        print(f"{early} KiB after the first minute, {late} KiB in the last half minute")  # noqa: T201
        assert late < (1 + MOST_GROWTH) * early
