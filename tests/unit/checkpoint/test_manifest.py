"""The manifest of a run's checkpoint says which is the newest and the best: it is believed only as it was written."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rltrainer.checkpoint import CheckpointStore
from rltrainer.checkpoint.manifest import read_manifest
from rltrainer.errors import CheckpointError


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Return that of a checkpoint which holds one number."""
    store = CheckpointStore(tmp_path, None, 0)
    store.open()
    store.save({"a": {"w": torch.ones(1)}}, 200, 2.5)
    store.close()
    return tmp_path / "checkpoint-000000000200" / "manifest.json"


def test_a_flipped_bit_is_noticed_wherever_it_is(manifest: Path) -> None:
    content = manifest.read_bytes()
    for position in range(len(content)):
        for bit in (0, 2):  # a digit becomes another one
            flipped = bytearray(content)
            flipped[position] ^= 1 << bit
            manifest.write_bytes(flipped)
            with pytest.raises(CheckpointError, match="manifest.json: "):
                read_manifest(manifest.parent)
    manifest.write_bytes(content)
    assert read_manifest(manifest.parent).step == 200


@pytest.mark.parametrize(("name", "value"), [("serial", 9), ("step", 201), ("score", 3.5), ("files", {})])
def test_what_was_changed_is_named(name: str, value: Any, manifest: Path) -> None:
    plain = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(plain | {name: value}))
    with pytest.raises(CheckpointError, match=r"manifest.json: .*changed after it was written \(SHA-256 differs"):
        read_manifest(manifest.parent)
