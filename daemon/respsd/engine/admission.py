"""Admission: whether a request can ever run, whether it fits now, and the sequence that it becomes."""

from __future__ import annotations

from respsd.clock import Clock
from respsd.control.action import Action
from respsd.control.router import PolicyRouter
from respsd.control.signals import SignalTracker
from respsd.engine.api import Deliver
from respsd.engine.drafter import Drafter
from respsd.engine.kv_cache import KvPool, SequenceCache
from respsd.engine.request import GenerationRequest
from respsd.engine.sampling import Sampler
from respsd.engine.sequence import Sequence
from respsd.engine.stopping import StopScanner
from respsd.engine.target import Target
from respsd.engine.tokenizer import HfTokenizer
from respsd.errors import InvalidRequest


class Admission:
    """Reserves a request's whole memory, the largest draft tree included, before it starts."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        tokenizer: HfTokenizer,
        router: PolicyRouter,
        pool: KvPool,
        reserved: Action,
        clock: Clock,
    ) -> None:
        """:param reserved: at least as large in every knob as any action that a policy can choose."""
        self._target = target
        self._drafter = drafter
        self._tokenizer = tokenizer
        self._router = router
        self._pool = pool
        self._reserved = reserved
        self._clock = clock

    @property
    def pool(self) -> KvPool:
        """The KV budget."""
        return self._pool

    def check(self, request: GenerationRequest) -> None:
        """Raise InvalidRequest or UnknownPolicy where the request could never run."""
        if not request.prompt_ids:
            raise InvalidRequest("prompt", (), "it must hold at least one token")
        total = len(request.prompt_ids) + request.stopping.max_new_tokens
        if total > self._target.context_length:
            limit = f"prompt and output together have {self._target.context_length} positions"
            raise InvalidRequest("max_new_tokens", request.stopping.max_new_tokens, limit)
        self._router.resolve(request.speculation)
        self._pool.check_possible(self.kv_tokens(request))

    def kv_tokens(self, request: GenerationRequest) -> int:
        """KV tokens that the request needs at most."""
        tree = self._largest_tree(request)
        return len(request.prompt_ids) + request.stopping.max_new_tokens + tree.total_tokens

    def admit(
        self, request: GenerationRequest, deliver: Deliver, submitted_ns: int, created_at_ns: int
    ) -> Sequence | None:
        """Reserve and build; None where the memory is not free now."""
        kv_tokens = self.kv_tokens(request)
        if not self._pool.fits(kv_tokens):
            return None
        controllers = self._router.resolve(request.speculation)
        tree = self._largest_tree(request)
        prefix = len(request.prompt_ids) + request.stopping.max_new_tokens
        draft_cache = None
        if self._drafter is not None and not tree.is_off:
            scratch = max(1, tree.depth * tree.top_k)
            draft_cache = SequenceCache(self._drafter.layout, prefix + scratch)
        sequence = Sequence(
            request=request,
            deliver=deliver,
            controllers=controllers,
            sampler=Sampler(
                request.sampling,
                request.stopping,
                request.prompt_ids,
                self._target.vocab_size,
                self._tokenizer.eos_token_ids,
            ),
            scanner=StopScanner(
                request,
                self._tokenizer.eos_token_ids,
                self._tokenizer.detokenizer(skip_special_tokens=request.skip_special_tokens),
            ),
            signals=SignalTracker(),
            cache=SequenceCache(self._target.layout, kv_tokens),
            draft_cache=draft_cache,
            kv_tokens=kv_tokens,
            submitted_ns=submitted_ns,
            admitted_ns=self._clock.monotonic_ns(),
            created_at_ns=created_at_ns,
        )
        self._pool.reserve(kv_tokens)
        return sequence

    def release(self, sequence: Sequence) -> None:
        """Give a finished sequence's memory back."""
        self._pool.release(sequence.kv_tokens)

    def _largest_tree(self, request: GenerationRequest) -> Action:
        return request.speculation.action or self._reserved
