from __future__ import annotations

import json
import shutil

import pytest

from respsd.bench.reference import compare_with_reference
from respsd.errors import CheckpointError


@pytest.fixture(scope="module")
def recording(reference_dir):
    return reference_dir / "golden-a"


def test_every_recorded_tree_and_decode_is_matched_exactly(recording):
    trees, decodes = compare_with_reference(recording)
    assert (trees.checked, trees.failed, trees.first) == (32, 0, ())
    assert (decodes.checked, decodes.failed, decodes.first) == (24, 0, ())


def test_a_recording_that_differs_is_reported(recording, tmp_path):
    folder = tmp_path / "changed"
    shutil.copytree(recording, folder, copy_function=shutil.copyfile)
    folder.chmod(0o755)
    trees = json.loads((folder / "trees.json").read_text())[:2]
    decodes = json.loads((folder / "decodes.json").read_text())[:2]
    trees[1]["parents"][3] = 0
    decodes[0]["accepted"][1] += 1
    decodes[1]["output"][5] += 1
    (folder / "trees.json").write_text(json.dumps(trees))
    (folder / "decodes.json").write_text(json.dumps(decodes))
    tree_report, decode_report = compare_with_reference(folder)
    assert (tree_report.checked, tree_report.failed) == (2, 1)
    assert "tree 1" in tree_report.first[0]
    assert "parents" in tree_report.first[0]
    assert decode_report.failed == 2
    assert "accepted differs from place 1" in decode_report.first[0]
    assert "output differs from place 5" in decode_report.first[1]


def test_a_folder_that_is_no_recording_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"trees\.json"):
        compare_with_reference(tmp_path)
