"""Requests, updates, retention and the command line at once on the same files: nobody is locked out, no row is lost.

`STORM_SECONDS=60` makes it longer.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.storm import KEPT_WINDOWS, Storm, whole_requests


@pytest.mark.slow
@pytest.mark.timeout(3600)  # however long a busy machine takes to do everything once
def test_all_at_once_nobody_is_locked_out_and_no_row_is_lost(tmp_path: Path) -> None:
    report = Storm(tmp_path, float(os.environ.get("STORM_SECONDS", "6"))).run()
    print(report)  # noqa: T201 - shown where it fails, or is asked for
    assert report.faults == []
    assert report.recorder is not None
    assert (report.recorder.state, sum(report.recorder.dropped_requests.values())) == ("ok", 0)
    assert report.recorder.written_requests == report.offered > 1
    requests, partial = whole_requests(tmp_path / "transitions.db")
    assert partial == 0
    assert requests + report.deleted == report.offered
    assert requests >= min(report.offered, KEPT_WINDOWS // 6)  # two that delete at once do not delete twice as much
    assert report.updates > 0
    assert report.deleted > 0
    assert len(report.commands) == 6
