"""Incremental text: only certain characters, spaces in their places, nothing lost at the end, constant work."""

from __future__ import annotations

import pytest
from support import tokenizers

from respsd.engine.detokenizer import Detokenizer

KINDS = [tokenizers.byte_level, tokenizers.byte_fallback, tokenizers.word_level]


def pieces_of(detokenizer: Detokenizer, token_ids: list[int]) -> list[str]:
    return [detokenizer.push(token_id) for token_id in token_ids]


def byte_ids(kind, data: bytes) -> list[int]:
    """Token ids of single bytes."""
    vocab = kind()._tokenizer.get_vocab()
    if kind is tokenizers.byte_fallback:
        return [vocab[f"<0x{byte:02X}>"] for byte in data]
    printable = {kind().decode([i]): i for i in vocab.values()}  # ASCII bytes
    rest = dict(zip("€😀".encode(), kind().encode("€😀"), strict=True))
    return [rest.get(byte, printable.get(chr(byte), -1)) for byte in data]


@pytest.mark.parametrize("kind", KINDS)
def test_spaces_between_tokens_are_kept(kind):
    token_ids = kind().encode("the cat sat")
    detokenizer = kind().detokenizer(skip_special_tokens=True)
    assert [detokenizer.push(token_id) for token_id in token_ids] == ["the", " cat", " sat"]
    assert detokenizer.flush() == ""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("before", ["the", "the cat sat on the mat and"])
def test_text_that_goes_on_from_a_prompt_reads_as_in_the_whole(kind, before):
    """With echo the two are shown as one text; alone, Llama's kind drops the first token's space."""
    whole = f"{before} cat sat"
    prompt, token_ids = kind().encode(before), kind().encode(whole)
    assert token_ids[: len(prompt)] == prompt
    detokenizer = kind().detokenizer(skip_special_tokens=True, follows=tuple(prompt))
    pieces = [detokenizer.push(token_id) for token_id in token_ids[len(prompt) :]]
    assert before + "".join(pieces) + detokenizer.flush() == whole


@pytest.mark.parametrize("kind", [tokenizers.byte_level, tokenizers.byte_fallback])
@pytest.mark.parametrize("cut", [1, 2])
def test_a_character_that_the_prompt_began_comes_whole(kind, cut):
    sign, cat = byte_ids(kind, "€".encode()), kind().encode("the cat")[1:]
    prompt = [*kind().encode("the"), *sign[:cut]]
    detokenizer = kind().detokenizer(skip_special_tokens=True, follows=tuple(prompt))
    assert pieces_of(detokenizer, [*sign[cut:], *cat]) == [*[""] * (2 - cut), "€", " cat"]
    assert detokenizer.flush() == ""


@pytest.mark.parametrize("kind", [tokenizers.byte_level, tokenizers.byte_fallback])
def test_what_is_broken_in_a_prompt_is_not_shown_again(kind):
    cat = kind().encode("the cat")[1:]
    prompt = (*kind().encode("the"), *byte_ids(kind, b"\xe2\x82"))
    detokenizer = kind().detokenizer(skip_special_tokens=True, follows=prompt)
    assert pieces_of(detokenizer, cat) == [" cat"]
    assert kind().detokenizer(skip_special_tokens=True, follows=prompt).flush() == ""


@pytest.mark.parametrize("kind", [tokenizers.byte_level, tokenizers.byte_fallback])
def test_character_of_several_tokens_appears_with_its_last_byte(kind):
    detokenizer = kind().detokenizer(skip_special_tokens=True)
    assert pieces_of(detokenizer, byte_ids(kind, b"\xf0\x9f\x98\x80\xe2\x82\xac")) == ["", "", "", "😀", "", "", "€"]


@pytest.mark.parametrize("kind", [tokenizers.byte_level, tokenizers.byte_fallback])
def test_unfinished_character_comes_out_at_the_end_only(kind):
    detokenizer = kind().detokenizer(skip_special_tokens=True)
    assert pieces_of(detokenizer, byte_ids(kind, b"a\xe2\x82")) == ["a", "", ""]
    assert set(detokenizer.flush()) == {"\ufffd"}
    assert detokenizer.flush() == ""


def test_broken_byte_is_shown_with_the_token_that_makes_it_certain():
    detokenizer = tokenizers.byte_level().detokenizer(skip_special_tokens=True)
    assert pieces_of(detokenizer, byte_ids(tokenizers.byte_level, b"\xe2\x82ab")) == ["", "", "\ufffda", "b"]


def test_shown_characters_stay_when_a_byte_run_breaks_later():
    """A cut in the middle of the second sign must not take the first one back."""
    kind = tokenizers.byte_fallback
    detokenizer = kind().detokenizer(skip_special_tokens=True)
    token_ids = byte_ids(kind, b"\xe2\x82\xac\xe2\x82")
    assert pieces_of(detokenizer, token_ids) == ["", "", "€", "", ""]
    assert set(detokenizer.flush()) == {"\ufffd"}
    assert "€" not in kind().decode(token_ids)


def test_special_tokens_are_skipped_or_shown():
    kind = tokenizers.byte_fallback()
    the, cat = kind.encode("the cat")
    assert pieces_of(kind.detokenizer(skip_special_tokens=True), [1, the, 2, cat]) == ["", "the", "", " cat"]
    shown = "".join(pieces_of(kind.detokenizer(skip_special_tokens=False), [1, the, 2, cat]))
    assert shown == kind.decode([1, the, 2, cat], skip_special_tokens=False)


class _Spy:
    """Notes how many tokens each decoding takes."""

    def __init__(self, kind) -> None:
        self.longest = 0
        self.special_token_ids = kind.special_token_ids
        self._kind = kind

    def decode(self, token_ids, *, skip_special_tokens=True):
        self.longest = max(self.longest, len(token_ids))
        return self._kind.decode(token_ids, skip_special_tokens=skip_special_tokens)


@pytest.mark.parametrize("kind", [tokenizers.byte_level, tokenizers.byte_fallback])
@pytest.mark.parametrize("what", ["words", "specials", "broken bytes"])
def test_work_per_token_does_not_grow_with_the_output(kind, what):
    spy = _Spy(kind())
    detokenizer = Detokenizer(spy, skip_special_tokens=True)
    tokens = {
        "words": kind().encode("the cat sat on the mat "),
        "specials": [1, 2],
        "broken bytes": byte_ids(kind, b"\xe2"),
    }[what]
    for token in tokens * (200 // len(tokens)):
        detokenizer.push(token)
    assert spy.longest <= 12
