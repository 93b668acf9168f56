"""Small tokenizers of the common kinds, trained in a moment on a few words."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from respsd.engine.tokenizer import HfTokenizer

WORDS = ["the cat sat on the mat, and then the other cat sat on that hat"] * 4
SPECIALS = ["<unk>", "<s>", "</s>"]


def _wrapped(raw: Tokenizer) -> HfTokenizer:
    return HfTokenizer(
        PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    )


@functools.cache
def byte_level() -> HfTokenizer:
    """GPT-2's kind: every byte is a token, words carry their leading space; most characters beyond ASCII are split."""
    raw = Tokenizer(models.BPE(unk_token=None))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=285, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    raw.train_from_iterator(WORDS, trainer)
    return _wrapped(raw)


@functools.cache
def byte_fallback() -> HfTokenizer:
    """Llama 2's kind: a mark for each space, the text's first one dropped; unknown characters as byte tokens."""
    marked = pre_tokenizers.Metaspace().replacement
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=80, special_tokens=SPECIALS, show_progress=False)
    trained.train_from_iterator(WORDS, trainer)
    model = json.loads(trained.to_str())["model"]
    vocab = model["vocab"] | {token: len(model["vocab"]) + i for i, token in enumerate(byte_tokens)}
    merges = [tuple(pair) for pair in model["merges"]]
    raw = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    raw.normalizer = normalizers.Sequence([normalizers.Prepend(marked), normalizers.Replace(" ", marked)])
    raw.decoder = decoders.Sequence(
        [decoders.Replace(marked, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    raw.add_special_tokens(SPECIALS)
    return _wrapped(raw)


@functools.cache
def word_level() -> HfTokenizer:
    """Whole words and no decoder: tokens are joined by spaces."""
    words = sorted({word for line in WORDS for word in line.split()})
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(SPECIALS + words)}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    raw.add_special_tokens(SPECIALS)
    return _wrapped(raw)


class Chunks:
    """A tokenizer whose tokens are any bytes: a part of a character, or the end of one and the start of the next."""

    special_token_ids: tuple[int, ...] = ()

    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return b"".join(self._chunks[token_id] for token_id in token_ids).decode(errors="replace")
