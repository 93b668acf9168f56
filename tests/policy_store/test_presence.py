"""Whether a daemon has the store, asked from another process as it is in life."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from policy_store import PolicyStore, StoreInService, StoreUnavailable
from policy_store.presence import in_service, out_of_service

HOLD = """
import sys, time
from pathlib import Path
from policy_store.presence import in_service
with in_service(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_daemon_in_another_process_keeps_offline_work_out_until_it_is_gone(store: PolicyStore) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(store.path)], stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == "held\n"
        with pytest.raises(StoreInService, match=str(store.path)), out_of_service(store.path):
            raise AssertionError("the daemon has it")
        daemon.send_signal(signal.SIGKILL)
        daemon.wait()
        with out_of_service(store.path):
            pass


def test_two_daemons_may_share_a_store(store: PolicyStore) -> None:
    with in_service(store.path), in_service(store.path), pytest.raises(StoreInService), out_of_service(store.path):
        raise AssertionError("the daemons have it")
    with out_of_service(store.path), pytest.raises(StoreInService), out_of_service(store.path):
        raise AssertionError("others are at it")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="nowhere"), in_service(tmp_path / "nowhere"):
        raise AssertionError("there is nothing to hold")
