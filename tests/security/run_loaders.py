"""Ways to damage a checkpoint of a run, whose buffer lies in segments."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from rltrainer.checkpoint import CheckpointStore, read_checkpoint
from rltrainer.checkpoint.manifest import _checksum
from rltrainer.checkpoint.store import live_state
from rltrainer.data import replay_file
from tests.security.mutations import in_place_of, mutated, signed, with_other_text


def write_run(trainer: Any, directory: Path) -> Path:
    """Save the run of an off-policy trainer, with its buffer in several blocks, and return the checkpoint."""
    trainer.save(directory / "alone")
    store = CheckpointStore(directory / "run", 1, 0)
    store.open()
    before, replay_file.MIN_NBYTES = replay_file.MIN_NBYTES, 100
    try:
        parts = read_checkpoint(directory / "alone") | {"buffer": live_state(trainer.params.buffer)}
    finally:
        replay_file.MIN_NBYTES = before
    store.save(parts, 1, None)
    store.close()
    found = store.newest_intact()
    assert found is not None
    assert len(list((found.parent / "segments").iterdir())) > 2
    return found


def ways_to_damage(checkpoint: Path) -> dict[str, tuple[Callable[[Random], None], bool]]:
    """Return by name what damages one file of it, and whether a checksum gives that away."""
    folder = checkpoint.parent / "segments"
    files = {path: path.read_bytes() for path in (*checkpoint.iterdir(), *folder.iterdir())}
    put = in_place_of(files)
    manifest, names = checkpoint / "manifest.json", sorted(path.name for path in folder.iterdir())

    def with_segment(old: str, data: bytes) -> dict[Path, bytes]:
        """Put another segment into the place of one, in a manifest made anew."""
        checksum = hashlib.sha256(data).hexdigest()
        text = files[manifest].decode().replace(old, f"{checksum}.safetensors")
        plain = json.loads(text)
        plain["segments"][f"{checksum}.safetensors"] = {"size": len(data), "sha256": checksum}
        return {folder / f"{checksum}.safetensors": data, manifest: _signed_manifest(plain)}

    def change_segment(random: Random) -> None:
        name = random.choice(names)
        put({folder / name: mutated(random, files[folder / name])})

    def change_and_sign_segment(random: Random) -> None:
        name = random.choice(names)
        data = files[folder / name]
        data = with_other_text(random, data) if random.random() < 0.5 else mutated(random, data)
        put(with_segment(name, signed(data)))

    def change_order(random: Random) -> None:
        plain = json.loads(files[manifest])
        found = plain["blocks"]["buffer"]["blocks"]
        plain["blocks"]["buffer"]["blocks"] = random.choices(found, k=random.choice([len(found), random.randrange(9)]))
        put({manifest: _signed_manifest(plain)})

    return {
        "manifest, of a run": (lambda random: put({manifest: mutated(random, files[manifest])}), True),
        "member, segment": (change_segment, True),
        "signed member, segment": (change_and_sign_segment, False),
        "signed member, segments in another order": (change_order, False),
    }


def _signed_manifest(plain: dict[str, Any]) -> bytes:
    plain.pop("checksum")
    return json.dumps(plain | {"checksum": _checksum(plain)}).encode()
