"""The wire API keeps to the rules that other people's tools and readers expect of a .proto file."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from support.wire_lint import compiled, lint

PROTO = Path(__file__).resolve().parents[2] / "proto"
GOOD = """
syntax = "proto3";
package shop.v1;
import "google/protobuf/timestamp.proto";
// Sells.
service ShopService {
  // Buys.
  rpc Buy(BuyRequest) returns (BuyResponse);
}
// What.
message BuyRequest {
  // How.
  Way way = 1;
  // Which.
  oneof kind {
    // By name.
    string name = 2;
  }
  // Tags.
  map<string, string> tags = 3;
}
// When.
message BuyResponse {
  // At.
  optional google.protobuf.Timestamp at = 1;
}
// A way.
enum Way {
  // None.
  WAY_UNSPECIFIED = 0;
  // Cash.
  WAY_CASH = 1;
}
"""
BREAKS = {
    ("package shop.v1", "package shop"): "shop.proto package 'shop' has no version at its end",
    ("string name = 2", "string theName = 2"): "BuyRequest.theName is no lower_snake_case field name",
    ("    // By name.\n", ""): "BuyRequest.name has no comment",
    ("// What.\n", ""): "BuyRequest has no comment",
    ("  // Buys.\n", ""): "ShopService.Buy has no comment",
    ("  // Which.\n", ""): "BuyRequest.kind has no comment",
    ("  // Cash.\n", ""): "Way.WAY_CASH has no comment",
    ("WAY_UNSPECIFIED", "WAY_NONE"): "Way does not begin with WAY_UNSPECIFIED = 0",
    ("WAY_CASH", "CASH"): "Way.CASH is no UPPER_SNAKE_CASE name that begins with WAY_",
    ("ShopService", "Shop"): "Shop is no name ending in Service",
    ("rpc Buy(", "rpc buy("): "Shop.v1.ShopService.buy is no PascalCase method name",
    ("(BuyRequest)", "(BuyResponse)"): "Buy takes or gives shop.v1.BuyResponse instead of a BuyRequest of its own",
    ("optional google.protobuf.Timestamp", "int64"): "does not use google/protobuf/timestamp.proto",
}


def compile_text(folder: Path, text: str) -> FileDescriptorSet:
    (folder / "shop" / "v1").mkdir(parents=True)
    (folder / "shop" / "v1" / "shop.proto").write_text(text)
    return compiled(folder)


def test_the_wire_api_breaks_no_rule() -> None:
    files = compiled(PROTO)
    # Other people's APIs, which are served under their own names, keep to their own rules.
    ours = FileDescriptorSet(file=[file for file in files.file if file.package.startswith("respsd.")])
    assert len(ours.file) >= 4
    assert lint(ours) == []


def test_a_good_file_has_no_complaint(tmp_path: Path) -> None:
    assert lint(compile_text(tmp_path, GOOD)) == []


@pytest.mark.parametrize(("change", "complaint"), BREAKS.items(), ids=lambda each: str(each)[:40])
def test_each_rule_is_looked_after(tmp_path: Path, change: tuple[str, str], complaint: str) -> None:
    old, new = change
    assert old in GOOD
    found = lint(compile_text(tmp_path, GOOD.replace(old, new)))
    assert any(complaint.lower() in each.lower() for each in found), found
