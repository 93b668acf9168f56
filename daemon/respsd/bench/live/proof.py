"""Whether the rollout decides right on this machine: a bad candidate, an equal one and a good one, on live streams."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from policy_store import PolicyStore
from respsd import __version__
from respsd.bench.live.daemon import live_daemon
from respsd.bench.live.traffic import Traffic, chat_prompts
from respsd.control.action import Action
from respsd.control.manifests import static_manifest
from respsd_client import Client, GenerateOptions, Prompt

UNDISTURBED: Mapping[str, str] = {
    "RESPSD_CALIBRATION__AT_START": "never",
    "RESPSD_EXPLORATION__SHARE": "0",
    "RESPSD_LEARNING__ENABLED": "false",
    "RESPSD_ROLLOUT__COOLDOWN_SECONDS": "0",
    "RESPSD_ROLLOUT__ALPHA_PER_DAY": "0.5",
    "RESPSD_ROLLOUT__HOLDOUT_LAST_GOOD": "0",
    "RESPSD_ROLLOUT__HOLDOUT_BASELINE": "0",
    "RESPSD_ROLLOUT__HOLDOUT_OFF": "0",
    "RESPSD_ENGINE__EXACT": "true",  # else half precision may differ from plain decoding where two logits are near
}
"""Nothing but the candidate under test moves an alias."""
BAD_WITHIN, GOOD_WITHIN = 15, 60
"""Requests."""

Name = Literal["bad", "equal", "good"]
Verdict = Literal["rolled back", "promoted", "undecided"]


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate."""

    name: Name
    champion: Action
    candidate: Action
    verdict: Verdict
    requests: int
    """That were answered until then."""
    different: int
    """Answers whose tokens are not plain decoding's."""
    reason: str
    """The rollout's, with its figures."""

    @property
    def is_right(self) -> bool:
        """Whether it is what it should be."""
        wanted = {
            "bad": self.verdict == "rolled back" and self.requests <= BAD_WITHIN,
            "equal": self.verdict != "rolled back",
            "good": self.verdict == "promoted",
        }
        return wanted[self.name] and self.different == 0


def run_proof(
    flags: Sequence[str],
    texts: Sequence[str],
    *,
    good: Action,
    bad: Action,
    equal_requests: int,
    streams: int,
    max_new_tokens: int,
    state_dir: Path,
    progress: Callable[[], None] = lambda: None,
) -> list[Trial]:
    """Try all three against a daemon of its own. :param flags: of `respsd serve`, which name the models"""
    environment = {**UNDISTURBED, "RESPSD_CONTROL__BASELINE": str(good)}
    options: GenerateOptions = {"max_new_tokens": max_new_tokens}
    with live_daemon(flags, state_dir, environment) as address, Client(address) as client:
        prompts = chat_prompts(client, texts)
        plain = Traffic(client, prompts, {**options, "action": "off"}, streams, progress).once()
        tokens = [each.token_ids for each in plain]
        rig = _Rig(client, prompts, tokens, options, streams, progress)
        bad_trial = rig.try_out("bad", good, bad, BAD_WITHIN)
        equal_trial = rig.try_out("equal", good, good, equal_requests)
        client.withdraw_candidate(reason="that was enough of it")
        client.promote_policy(rig.version(bad), reason="an artificially bad champion")
        return [bad_trial, equal_trial, rig.try_out("good", bad, good, GOOD_WITHIN)]


class _Rig:
    """A daemon, and what its answers should be."""

    def __init__(
        self,
        client: Client,
        prompts: Sequence[Prompt],
        expected: Sequence[tuple[int, ...]],
        options: GenerateOptions,
        streams: int,
        progress: Callable[[], None],
    ) -> None:
        self._client = client
        self._traffic = Traffic(client, prompts, options, streams, progress)
        self._expected = expected

    def version(self, action: Action) -> int:
        """A new version that always chooses `action`."""
        with tempfile.TemporaryDirectory() as folder, PolicyStore(Path(folder)) as scratch:
            draft = static_manifest(action, code_version=__version__, note="for a proof")
            archive = scratch.export(scratch.create(draft, actor="proof"))
        version = self._client.import_policy(archive, reason="for a proof").entries[0].to_version
        assert version is not None
        return version

    def try_out(self, name: Name, champion: Action, candidate: Action, most: int) -> Trial:
        """Nominate a version with that action and serve until it is decided, at most so many requests."""
        version = self.version(candidate)
        self._client.nominate_policy(version, reason=f"{name} on purpose")
        answered = self._traffic.until(lambda: self._verdict(version)[0] != "undecided", most)
        verdict, reason = self._verdict(version)
        different = sum(each.token_ids != self._expected[each.prompt] for each in answered)
        return Trial(name, champion, candidate, verdict, len(answered), different, reason)

    def _verdict(self, version: int) -> tuple[Verdict, str]:
        for entry in self._client.policy_history(version):
            if entry.event == "quarantine":
                return "rolled back", entry.reason
            if entry.event == "promote" and entry.to_version == version:
                return "promoted", entry.reason
        return "undecided", ""
