"""No change of the wire API breaks programs that were built against an earlier one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from support.wire_lint import compiled

PROTO = Path(__file__).resolve().parents[2] / "proto"
TEXT = """
syntax = "proto3";
package shop.v1;
service ShopService { rpc Buy(BuyRequest) returns (stream BuyResponse); }
message BuyRequest {
  string name = 1;
  optional uint32 count = 2;
  repeated Part parts = 3;
  oneof way { bool cash = 4; string card = 5; }
  map<string, double> prices = 6;
  message Part { bytes data = 1; }
}
message BuyResponse { Kind kind = 1; }
enum Kind { KIND_UNSPECIFIED = 0; KIND_GOOD = 1; }
"""
BREAKING = [
    ("string name = 1;", ""),
    ("string name = 1", "string name = 7"),
    ("string name = 1", "string title = 1"),
    ("string name = 1", "bytes name = 1"),
    ("string name = 1", "optional string name = 1"),
    ("optional uint32", "uint32"),
    ("uint32 count", "uint64 count"),
    ("repeated Part", "Part"),
    ("oneof way { bool cash = 4; string card = 5; }", "bool cash = 4; string card = 5;"),
    ("map<string, double>", "map<string, float>"),
    ("KIND_GOOD = 1", "KIND_GOOD = 2"),
    ("KIND_GOOD = 1", "KIND_FINE = 1"),
    ("returns (stream BuyResponse)", "returns (BuyResponse)"),
    ("rpc Buy(", "rpc Sell("),
    ("message Part { bytes data = 1; }", "message Part { bytes data = 2; }"),
    ("message BuyResponse { Kind kind = 1; }", "message BuyResponse { int32 kind = 1; }"),
]
ADDING = [
    ("string name = 1;", "string name = 1; string more = 9;"),
    ("KIND_GOOD = 1;", "KIND_GOOD = 1; KIND_BAD = 2;"),
    ("message BuyRequest", "message Other { int32 x = 1; } message BuyRequest"),
    ("rpc Buy(", "rpc Look(BuyRequest) returns (BuyResponse); rpc Buy("),
]


@pytest.fixture(scope="module")
def wire() -> ModuleType:
    """proto/snapshot.py, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("wire_snapshot", PROTO / "snapshot.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def promises(wire: ModuleType, folder: Path, text: str) -> set[str]:
    folder.mkdir()
    (folder / "shop.proto").write_text(text)
    files: FileDescriptorSet = compiled(folder)
    proto: FileDescriptorProto = files.file[0]
    return set(wire.promises(proto))


def test_every_promise_that_was_made_is_kept(wire: ModuleType) -> None:
    broken = set(wire.snapshot()) - set(wire.present())
    assert broken == set(), "programs that were built against the earlier API would break"


def test_what_was_added_is_promised_from_now_on(wire: ModuleType) -> None:
    added = set(wire.present()) - set(wire.snapshot())
    assert added == set(), f"run: {Path(sys.executable).name} proto/snapshot.py"


@pytest.mark.parametrize(("old", "new"), BREAKING)
def test_a_breaking_change_is_seen(wire: ModuleType, tmp_path: Path, old: str, new: str) -> None:
    assert old in TEXT
    before, after = promises(wire, tmp_path / "a", TEXT), promises(wire, tmp_path / "b", TEXT.replace(old, new))
    assert before - after


@pytest.mark.parametrize(("old", "new"), ADDING)
def test_an_addition_breaks_nothing(wire: ModuleType, tmp_path: Path, old: str, new: str) -> None:
    before, after = promises(wire, tmp_path / "a", TEXT), promises(wire, tmp_path / "b", TEXT.replace(old, new))
    assert before - after == set()
    assert after - before


def test_the_command_refuses_to_break_a_promise(
    wire: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "snapshot.txt"
    made.write_text("respsd.v1.Chunk.sound = 9: bytes\n")
    monkeypatch.setattr(wire, "SNAPSHOT", made)
    monkeypatch.setattr(sys, "argv", ["snapshot.py"])
    assert wire.main() == 1
    assert "respsd.v1.Chunk.sound = 9: bytes" in capsys.readouterr().err
    assert made.read_text() == "respsd.v1.Chunk.sound = 9: bytes\n"
    monkeypatch.setattr(sys, "argv", ["snapshot.py", "--breaking"])
    assert wire.main() == 0
    assert made.read_text().splitlines() == wire.present()
