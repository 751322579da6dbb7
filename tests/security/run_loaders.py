"""Ways to damage a checkpoint of a run, whose buffer lies in files of rows."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from rltrainer.checkpoint import CheckpointStore, read_checkpoint
from rltrainer.checkpoint.folder import _checksum
from rltrainer.checkpoint.store import live_state
from rltrainer.data import buffer_state
from tests.security.mutations import in_place_of, mutated, signed, with_other_text


def write_run(trainer: Any, directory: Path) -> Path:
    """Save the run of an off-policy trainer, with its buffer in several files, and return the checkpoint."""
    trainer.save(directory / "alone")
    store = CheckpointStore(directory / "run", 1, 0)
    store.open()
    before, buffer_state.MAX_NBYTES = buffer_state.MAX_NBYTES, 200
    try:
        parts = read_checkpoint(directory / "alone") | {"buffer": live_state(trainer.params.buffer)}
        store.save(parts, 1, None)
    finally:
        buffer_state.MAX_NBYTES = before
    store.close()
    found = store.newest_intact()
    assert found is not None
    assert len(list((found.parent / "rows").iterdir())) > 2
    return found


def ways_to_damage(checkpoint: Path) -> dict[str, tuple[Callable[[Random], None], bool]]:
    """Return by name what damages one file of it, and whether a checksum gives that away."""
    folder = checkpoint.parent / "rows"
    files = {path: path.read_bytes() for path in (*checkpoint.iterdir(), *folder.iterdir())}
    put = in_place_of(files)
    manifest, names = checkpoint / "manifest.json", sorted(path.name for path in folder.iterdir())

    def change_rows(random: Random) -> None:
        name = random.choice(names)
        put({folder / name: mutated(random, files[folder / name])})

    def change_and_sign_rows(random: Random) -> None:
        name = random.choice(names)
        data = files[folder / name]
        data = signed(with_other_text(random, data) if random.random() < 0.5 else mutated(random, data))
        plain = json.loads(files[manifest])
        plain["rows"]["buffer"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        put({folder / name: data, manifest: signed_manifest(plain)})

    def change_order(random: Random) -> None:
        plain = json.loads(files[manifest])
        found = plain["rows"]["buffer"]
        order = random.sample(sorted(found), k=random.choice([len(found), random.randrange(len(found))]))
        plain["rows"]["buffer"] = {name: found[name] for name in order}
        put({manifest: signed_manifest(plain)})

    return {
        "manifest, of a run": (lambda random: put({manifest: mutated(random, files[manifest])}), True),
        "member, rows": (change_rows, True),
        "signed member, rows": (change_and_sign_rows, False),
        "signed member, rows in another order": (change_order, False),
    }


def signed_manifest(plain: dict[str, Any]) -> bytes:
    """Return the bytes of a manifest whose checksum fits."""
    plain.pop("checksum")
    return json.dumps(plain | {"checksum": _checksum(plain)}).encode()
