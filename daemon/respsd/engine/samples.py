"""Several samples of one prompt: requests that share their id and prefill and differ in their seeds."""

from __future__ import annotations

import dataclasses
import hashlib

from respsd.engine.request import GenerationRequest

_SEED_BYTES = 8
_SEED_BITS = 53
"""Derived seeds stay exact in JSON numbers."""


def sample_seed(seed: int, sample: int) -> int:
    """The seed of one sample, which alone gives the same text again.

    Sample 0 has the request's own seed, so asking for more samples does not change the first. Sample i > 0 has the
    first 53 bits of BLAKE2b-64 over the seed and i, each as 8 bytes, big-endian. (Not seed + i: the samples of
    neighbouring seeds would be the same ones, shifted.)
    """
    if sample == 0:
        return seed
    key = seed.to_bytes(8, "big") + sample.to_bytes(8, "big")
    digest = hashlib.blake2b(key, digest_size=_SEED_BYTES).digest()
    return int.from_bytes(digest, "big") >> (8 * _SEED_BYTES - _SEED_BITS)


def samples_of(request: GenerationRequest) -> tuple[GenerationRequest, ...]:
    """What the engine is asked for: the request itself, or each of its samples; one scores the prompt for all."""
    if request.samples == 1:
        return (request,)
    return (request, *(_sample(request, number) for number in range(1, request.samples)))


def _sample(request: GenerationRequest, number: int) -> GenerationRequest:
    sampling = dataclasses.replace(request.sampling, seed=sample_seed(request.sampling.seed, number))
    return dataclasses.replace(request, sampling=sampling, sample=number, prompt_log_probs=None)
