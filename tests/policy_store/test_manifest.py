from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from policy_store import Golden, InvalidManifest, Manifest, ManifestDraft, Normaliser

CREATED = "2026-11-30T12:00:00.123456Z"


def published(draft: ManifestDraft) -> Manifest:
    return Manifest.publish(draft, version=7, created=CREATED, weights_sha256="ab" * 32)


def test_a_manifest_survives_its_json_exactly(resps_draft: ManifestDraft) -> None:
    draft = replace(
        resps_draft,
        parent=3,
        normaliser=Normaliser(mean=(0.1, 1 / 3, -2e-300, 0.0), std=(1.0, 5e-324, 1e300, 0.7)),
        training_window={"first_row": 10, "last_row": 900, "filters": ["fresh"]},
        note="zweite Fassung\n\u2028",
    )
    manifest = published(draft)
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_the_json_has_plain_lists_and_null(static_draft: ManifestDraft) -> None:
    document = json.loads(Manifest.publish(static_draft, version=1, created=CREATED, weights_sha256=None).to_json())
    assert document["format_version"] == 1
    assert document["action_table"] == [[16, 4, 4]]
    assert document["action"] == [16, 4, 4]
    assert document["weights_sha256"] is None
    assert document["observation_schema"] is None


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"kind": "learned"}, "kind"),
        ({"action_table": []}, "action_table"),
        ({"action_table": [[16, 4, 4], [16, 4, 4]]}, "action_table"),
        ({"action_table": [[16, 4], [8, 3, 3]]}, "action_table"),
        ({"action_table": [[1, 4, 4], [16, 4, 4]]}, "action_table"),
        ({"action_table": [[16, -1, 4], [16, 4, 4]]}, "action_table"),
        ({"action_table": [[True, 4, 4], [16, 4, 4]]}, "action_table"),
        ({"action": [16, 4, 4]}, "action"),
        ({"golden": None}, "architecture, observation_schema or golden"),
        ({"architecture": {"hidden_sizes": [3], "activation": "relu"}}, "architecture.activation"),
        ({"architecture": {"hidden_sizes": [0], "activation": "tanh"}}, "architecture.hidden_sizes"),
        ({"architecture": {"activation": "tanh"}}, "architecture.hidden_sizes"),
        ({"observation_schema": {"name": "test"}}, "observation_schema.width"),
        ({"observation_schema": {"width": "4"}}, "observation_schema.width"),
        ({"golden": {"observation": [0, 0, 0], "logits": [0, 0]}}, "golden.observation"),
        ({"golden": {"observation": [0, 0, 0, 0], "logits": [0]}}, "golden.logits"),
        ({"golden": {"observation": [0, 0, 0, "x"], "logits": [0, 0]}}, "golden.observation"),
        ({"normaliser": {"mean": [0] * 4, "std": [1, 1, 1, 0]}}, "normaliser.std"),
        ({"normaliser": {"mean": [0] * 4, "std": [1, 1, 1, 10**400]}}, "normaliser.std"),
        ({"normaliser": {"mean": [0] * 5, "std": [1] * 4}}, "normaliser.mean"),
        ({"format_version": 2}, "format_version"),
        ({"version": "7"}, "version"),
        ({"pickle": "gASVA"}, "pickle"),
    ],
)
def test_a_contradiction_is_refused_by_field(resps_draft: ManifestDraft, change: dict[str, Any], field: str) -> None:
    document = json.loads(published(resps_draft).to_json()) | change
    with pytest.raises(InvalidManifest) as refused:
        Manifest.from_json(json.dumps(document).encode())
    assert refused.value.field == field


@pytest.mark.parametrize("text", [b"", b"[]", b"\xff\xfe", b'{"format_version": NaN}', b"[" * 100_000])
def test_what_is_no_json_object_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidManifest):
        Manifest.from_json(text)


def test_every_field_is_needed(resps_draft: ManifestDraft) -> None:
    document = json.loads(published(resps_draft).to_json())
    for field in document:
        rest = {key: value for key, value in document.items() if key != field}
        with pytest.raises(InvalidManifest) as refused:
            Manifest.from_json(json.dumps(rest).encode())
        assert refused.value.field == field


def test_a_number_that_json_cannot_say_is_refused(resps_draft: ManifestDraft) -> None:
    with pytest.raises(InvalidManifest, match="golden"):
        replace(resps_draft, golden=Golden((0.0, 0.0, 0.0, float("nan")), (0.0, 0.0)))
    with pytest.raises(InvalidManifest, match="training_window"):
        published(replace(resps_draft, training_window={"loss": float("inf")})).to_json()


def test_a_static_version_is_its_one_action_and_nothing_else(
    static_draft: ManifestDraft, resps_draft: ManifestDraft
) -> None:
    with pytest.raises(InvalidManifest):
        replace(static_draft, action=(8, 3, 3))
    with pytest.raises(InvalidManifest):
        replace(static_draft, golden=resps_draft.golden)
    assert static_draft.observation_width == 0
