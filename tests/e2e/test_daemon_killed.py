"""kill -9 of the daemon under load: it is ready again, its databases are sound, and no committed row is lost.

`RESPSD_TEST_KILLS=50 pytest -s tests/e2e/test_daemon_killed.py` kills it fifty times.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.kills import AT_START, Kills

KILLS = int(os.environ.get("RESPSD_TEST_KILLS", AT_START))


@pytest.mark.slow
@pytest.mark.timeout(120 + 120 * KILLS)
def test_killed_under_load_it_is_ready_again_with_sound_files_and_every_committed_row(tmp_path: Path) -> None:
    report = Kills(tmp_path, seed=7).run(KILLS)
    print(report)  # noqa: T201
    assert report.faults == []
    assert report.kills == KILLS
    assert report.kills_at_start == KILLS // AT_START
    assert len(report.ready_seconds) >= KILLS - report.kills_at_start + 1
    assert report.requests > KILLS
    assert report.rows > report.requests
