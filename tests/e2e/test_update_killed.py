"""kill -9 of the whole daemon at random moments of an update: it starts again on a version that verifies.

`RESPSD_TEST_UPDATE_KILLS=30 pytest -s tests/e2e/test_update_killed.py` kills it thirty times.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.update_kills import UpdateKills

KILLS = int(os.environ.get("RESPSD_TEST_UPDATE_KILLS", "3"))


@pytest.mark.slow
@pytest.mark.timeout(600 + 180 * KILLS)
def test_killed_in_an_update_it_starts_again_with_every_committed_row_and_no_half_version(tmp_path: Path) -> None:
    report = UpdateKills(tmp_path, seed=3).run(KILLS)
    print(report)  # noqa: T201 - shown where it fails, or is asked for
    assert report.faults == []
    assert report.moments.total() == KILLS
    assert report.versions > 3  # baseline, first learner, eagle3, and what the updates stored
    assert report.requests > KILLS
