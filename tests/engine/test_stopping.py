"""Where outputs end: one cut for tokens, text and reason, at the earliest boundary (bug reports 1, 2, 4, 6, 7)."""

from __future__ import annotations

import pytest
from support.tokenizers import Chunks

from respsd.engine.detokenizer import Detokenizer
from respsd.engine.events import FinishReason
from respsd.engine.request import GenerationRequest, StoppingParams
from respsd.engine.stopping import Cut, StopScanner

EOS, STOP = 2, 3
WORDS = {EOS: "", STOP: "<stop>", 10: "ten ", 11: "eleven ", 20: "twenty ", 21: "x", 30: "a\n", 31: "\nb", 32: "\n\nc"}


class Words:
    """Token texts from a table; what `held` names comes out with the next token or at the end."""

    def __init__(self, held: int | None = None) -> None:
        self._held_token = held
        self._held = ""
        self.pushed: list[int] = []

    def push(self, token_id: int) -> str:
        self.pushed.append(token_id)
        if token_id == self._held_token:
            self._held += WORDS[token_id]
            return ""
        return self.flush() + WORDS[token_id]

    def flush(self) -> str:
        text, self._held = self._held, ""
        return text


def scanner(*, text: Words | None = None, clamped: bool = False, max_new_tokens: int = 100, **stopping) -> StopScanner:
    request = GenerationRequest("r", (1,), StoppingParams(max_new_tokens, **stopping), clamped_to_context=clamped)
    return StopScanner(request, (EOS,), text or Words())


def test_block_without_an_end_is_kept_whole():
    assert scanner().scan([10, 11]) == Cut(2, "ten eleven ")


def test_eos_in_the_middle_of_a_block_ends_it_there():
    """Row 1; row 7: what lies behind EOS is in no count."""
    text = Words()
    assert scanner(text=text).scan([10, 11, EOS, 20, 21, 10]) == Cut(3, "ten eleven ", FinishReason.EOS)
    assert text.pushed == [10, 11]


def test_first_of_several_eos_counts():
    assert scanner().scan([EOS, 10, EOS]) == Cut(1, "", FinishReason.EOS)


def test_ignored_eos_is_an_ordinary_token():
    assert scanner(ignore_eos=True).scan([10, EOS, 11]) == Cut(3, "ten eleven ")


def test_ignored_eos_still_stops_where_it_is_a_stop_token():
    assert scanner(ignore_eos=True, stop_token_ids=(EOS,)).scan([10, EOS, 11]).reason is FinishReason.STOP_TOKEN


def test_stop_before_the_budget_wins_though_the_block_passes_both():
    """Row 2."""
    cut = scanner(max_new_tokens=5, stop_token_ids=(STOP,)).scan([10, 11, STOP, 20, 21, 10])
    assert cut == Cut(3, "ten eleven ", FinishReason.STOP_TOKEN)


def test_budget_before_the_stop_wins():
    cut = scanner(max_new_tokens=2, stop_token_ids=(STOP,)).scan([10, 11, STOP])
    assert cut == Cut(2, "ten eleven ", FinishReason.LENGTH)


@pytest.mark.parametrize("last", [EOS, STOP])
def test_stop_on_the_last_token_of_the_budget_is_a_stop(last):
    cut = scanner(max_new_tokens=2, stop_token_ids=(STOP,)).scan([10, last])
    assert cut.kept == 2
    assert cut.reason is (FinishReason.EOS if last == EOS else FinishReason.STOP_TOKEN)


@pytest.mark.parametrize("budget", [1, 2, 3, 7])
@pytest.mark.parametrize("block", [1, 2, 9])
def test_budget_is_exact_for_any_block(budget, block):
    """Row 6."""
    judge, total = scanner(max_new_tokens=budget, ignore_eos=True), 0
    while True:
        cut = judge.scan([10] * block)
        total += cut.kept
        if cut.reason is not None:
            break
    assert total == budget
    assert cut.reason is FinishReason.LENGTH


def test_budget_that_is_the_rest_of_the_context_ends_as_context():
    assert scanner(max_new_tokens=2, clamped=True).scan([10, 11, 20]).reason is FinishReason.CONTEXT


def test_stop_string_across_two_blocks_is_found():
    """Row 4: the two halves in two blocks."""
    judge = scanner(stop_strings=("\n\n",))
    assert judge.scan([10, 30]) == Cut(2, "ten a")
    assert judge.scan([31, 10]) == Cut(1, "", FinishReason.STOP_STRING, "\n\n")


def test_stop_string_at_the_start_of_a_long_block_is_found():
    """Row 4: offset 0 of 8."""
    judge = scanner(stop_strings=("\n\n",))
    judge.scan([10])
    assert judge.scan([32, *[10] * 7]) == Cut(1, "", FinishReason.STOP_STRING, "\n\n")


def test_tokens_up_to_the_completing_one_are_kept_and_the_text_is_cut():
    cut = scanner(stop_strings=("even t",)).scan([10, 11, 20, 21])
    assert cut == Cut(3, "ten el", FinishReason.STOP_STRING, "even t")
    kept = scanner(stop_strings=("even t",), include_stop=True).scan([10, 11, 20, 21])
    assert kept == Cut(3, "ten eleven t", FinishReason.STOP_STRING, "even t")


def test_stop_token_text_is_kept_on_request():
    assert scanner(stop_token_ids=(STOP,), include_stop=True).scan([10, STOP]).text == "ten <stop>"


def test_possible_beginning_of_a_stop_string_is_held_back():
    judge = scanner(stop_strings=("xxy", "q"))
    assert judge.scan([10, 21]) == Cut(2, "ten ")
    assert judge.scan([21]) == Cut(1, "")
    assert judge.scan([21]) == Cut(1, "x")
    assert judge.scan([10]) == Cut(1, "xxten ")
    assert judge.close() == ""


def test_held_text_is_released_at_an_end_without_a_match():
    judge = scanner(stop_strings=("ten ten ten",))
    assert judge.scan([10, 10]) == Cut(2, "")
    assert judge.scan([EOS]) == Cut(1, "ten ten ", FinishReason.EOS)
    judge = scanner(stop_strings=("ten ten ten",))
    judge.scan([10])
    assert judge.close() == "ten "


def test_unfinished_characters_are_released_at_the_end():
    assert scanner(text=Words(held=10)).scan([11, 10, EOS]).text == "eleven ten "
    judge = scanner(text=Words(held=10), max_new_tokens=2)
    assert judge.scan([11, 10, 11]) == Cut(2, "eleven ten ", FinishReason.LENGTH)
    judge = scanner(text=Words(held=10))
    assert judge.scan([11, 10]) == Cut(2, "eleven ")
    assert judge.close() == "ten "


def test_first_completed_stop_string_wins():
    assert scanner(stop_strings=("leven", "eve")).scan([11]) == Cut(1, "el", FinishReason.STOP_STRING, "eve")
    assert scanner(stop_strings=("ven", "even")).scan([11]) == Cut(1, "el", FinishReason.STOP_STRING, "even")


def test_stop_string_on_the_last_token_of_the_budget_is_a_stop():
    cut = scanner(max_new_tokens=1, stop_strings=("lev",)).scan([11, 10])
    assert cut == Cut(1, "e", FinishReason.STOP_STRING, "lev")


def test_stop_string_before_the_minimum_is_plain_text():
    judge = scanner(stop_strings=("\n\n",), min_new_tokens=3)
    assert judge.scan([32, 10]) == Cut(2, "\n\ncten ")
    assert judge.scan([32]) == Cut(1, "", FinishReason.STOP_STRING, "\n\n")


def test_stop_string_that_ends_at_the_minimum_counts():
    judge = scanner(stop_strings=("\n\n",), min_new_tokens=2)
    assert judge.scan([30, 31, 10]) == Cut(2, "a", FinishReason.STOP_STRING, "\n\n")


def test_early_stop_string_is_not_found_again_later():
    """The held text holds a whole stop string from before the minimum; only a new one may end the output."""
    judge = scanner(stop_strings=("xx", "axxxy"), min_new_tokens=3)
    assert judge.scan([21, 21]) == Cut(2, "x")
    assert judge.scan([10]) == Cut(1, "xten ")


def test_empty_stop_string_stops_nothing():
    assert scanner(stop_strings=("",)).scan([10]) == Cut(1, "ten ")


def test_unfinished_bytes_in_the_stopping_token_do_not_leak():
    chunks = Chunks([b"ab\xe2", b"\x82"])
    judge = StopScanner(
        GenerationRequest("r", (1,), StoppingParams(9, stop_strings=("b",))),
        (),
        Detokenizer(chunks, skip_special_tokens=True),
    )
    assert judge.scan([0, 1]) == Cut(1, "a", FinishReason.STOP_STRING, "b")
    assert judge.close() == ""
