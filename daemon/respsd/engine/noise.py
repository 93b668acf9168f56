"""Gumbel noise that is a function of (seed, absolute position, token id) and of nothing else.

Adding it to a row of logits and taking the best token draws exactly from softmax(logits): with E = -log(1 - u) a
standard exponential, argmax(logits - log E) is the first to fire of independent clocks with rates exp(logits), and a
clock is first with probability rate / sum of rates. Because the noise belongs to the position, every node of a draft
tree at that position, every batch and plain decoding draw the same token from the same logits.
"""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
WordArray = npt.NDArray[np.uint32]

_KEY_TAG = 0x7265737073640001
"""Second half of every key: other uses of a request's seed take another tag and share no stream with this one."""
_UNIT = np.float32(2.0**-32)
_BELOW_ONE = np.float32(1.0 - 2.0**-24)


def random_words(seed: int, position: int, count: int) -> WordArray:
    """`count` uniform 32-bit words, one for each token id: Philox keyed by `seed`, its counter set by `position`.

    Raw words, since numpy keeps a bit generator's stream the same across versions, and not the methods built on it.
    """
    counter = np.array([0, position, 0, 0], dtype=np.uint64)  # 2**64 blocks of four words at each position
    philox = np.random.Philox(key=np.array([seed, _KEY_TAG], dtype=np.uint64), counter=counter)
    words: npt.NDArray[np.uint64] = philox.random_raw((count + 1) // 2)
    if sys.byteorder == "big":
        words = words.byteswap()
    return words.view(np.uint32)[:count]


def gumbel_of(words: WordArray) -> FloatArray:
    """Standard Gumbel variates of uniform words, float32 and finite: between -2.9 and 22.2.

    With u = word / 2**32 kept inside (0, 1), g = -log(-log(1 - u)). The large values come from small u, where float32
    is fine: a 24-bit grid next to 1 would tie the best tokens of flat distributions over large vocabularies.
    """
    uniforms = np.maximum(words, 1).astype(np.float32) * _UNIT
    np.minimum(uniforms, _BELOW_ONE, out=uniforms)
    exponentials = -np.log1p(-uniforms)
    noise: FloatArray = -np.log(exponentials)
    return noise


def gumbel(seed: int, position: int, vocab_size: int) -> FloatArray:
    """The noise of every token id at one absolute position, float32 [vocab]."""
    return gumbel_of(random_words(seed, position, vocab_size))
