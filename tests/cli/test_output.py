from __future__ import annotations

import json

import pytest

from respsd.cli.output import print_json, print_message, print_table


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"text": "é", "n": [1, None]})
    out, err = capsys.readouterr()
    assert json.loads(out) == {"text": "é", "n": [1, None]}
    assert out.endswith("}\n")
    assert err == ""


def test_json_has_no_numbers_that_parsers_refuse() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        print_json(float("nan"))


def test_a_table_in_a_pipe_is_never_cut_off(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["version", "aliases"], [[1, "baseline"], [20, "x" * 300], [3, None], [4, "[red]"]])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == ["VERSION  ALIASES", "1        baseline", f"20       {'x' * 300}", "3", "4        [red]"]


def test_messages_leave_stdout_to_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    print_message("nothing found")
    assert capsys.readouterr() == ("", "nothing found\n")
