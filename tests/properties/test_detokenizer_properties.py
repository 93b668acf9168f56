"""Whatever the tokens: the pieces joined are what the tokenizer makes of all of them at once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support import tokenizers
from support.tokenizers import Chunks

from respsd.engine.detokenizer import Detokenizer, TextDecoder


def joined(kind: TextDecoder, token_ids: list[int], skip: bool) -> str:
    detokenizer = Detokenizer(kind, skip_special_tokens=skip)
    return "".join([detokenizer.push(token_id) for token_id in token_ids]) + detokenizer.flush()


@settings(deadline=None)
@given(st.lists(st.integers(0, 280), max_size=40), st.booleans())
def test_any_byte_level_tokens_join_to_the_whole(token_ids, skip):
    kind = tokenizers.byte_level()
    assert joined(kind, token_ids, skip) == kind.decode(token_ids, skip_special_tokens=skip)


pieces_of_characters = st.binary(min_size=1, max_size=5) | st.sampled_from(
    [
        b"\xe2",
        b"\x82",
        b"\xac",
        b"\xac\xe2",
        b"\x82\xac",
        b"\xac\xe2\x82",
        b"\xf0\x9f",
        b"\x98\x80\xf0",
        b"a\xe2",
        b"\xaca",
    ]
)


@settings(deadline=None, max_examples=300)
@given(st.lists(pieces_of_characters, max_size=14))
def test_tokens_of_any_bytes_join_to_the_whole(chunks):
    kind, token_ids = Chunks(chunks), list(range(len(chunks)))
    assert joined(kind, token_ids, True) == kind.decode(token_ids)


@settings(deadline=None)
@given(st.text(max_size=30), st.booleans())
def test_any_text_joins_to_the_whole(text, skip):
    for kind in (tokenizers.byte_level(), tokenizers.byte_fallback(), tokenizers.word_level()):
        token_ids = kind.encode(text)
        assert joined(kind, token_ids, skip) == kind.decode(token_ids, skip_special_tokens=skip)


@settings(deadline=None)
@given(st.lists(st.integers(0, 294), max_size=40), st.booleans())
def test_byte_fallback_tokens_join_to_the_whole_unless_bytes_are_broken(token_ids, skip):
    kind = tokenizers.byte_fallback()
    whole = kind.decode(token_ids, skip_special_tokens=skip)
    ours = joined(kind, token_ids, skip)
    if "\ufffd" not in whole:
        assert ours == whole
    else:
        assert "\ufffd" in ours


@settings(deadline=None)
@given(st.text(alphabet="ab €😀日", max_size=20))
def test_no_piece_of_valid_text_holds_a_broken_character(text):
    for kind in (tokenizers.byte_level(), tokenizers.byte_fallback()):
        detokenizer = kind.detokenizer(skip_special_tokens=True)
        assert all("\ufffd" not in detokenizer.push(token_id) for token_id in kind.encode(text))
        assert detokenizer.flush() == ""
