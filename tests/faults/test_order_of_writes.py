"""What is written is on the disk before its name is: no kill of a process can show that, only the order of the calls.

A machine that loses its power keeps what was flushed: of a file by `fsync`, of a folder's names by its own. Anything
else may be there or not, in any order.
"""

import dataclasses
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rltrainer.checkpoint.folder import write_checkpoint
from rltrainer.checkpoint.store import CheckpointStore
from rltrainer.data import buffer_state
from rltrainer.files.atomic_write import make_folder, replaced_file
from rltrainer.state.state_file import write_state
from rltrainer.tools.evaluation import filming
from tests.unit.checkpoint.test_store import Run


@dataclasses.dataclass
class Disk:
    """Notes in order what is flushed, renamed and removed below a folder, by readable names.

    A hidden name `.x.<owner>.new` is "x new", and the folder's own is ".".
    """

    root: Path
    calls: list[str] = dataclasses.field(default_factory=list)
    sizes: dict[int, int] = dataclasses.field(default_factory=dict)
    """What each file held when it was flushed, by inode."""

    def name(self, path: Path) -> str:
        name = path.relative_to(self.root).as_posix()
        return re.sub(r"(^|/)\.([^/]+?)\.[0-9]+-[0-9a-f-]+\.(new|old|gone|tmp|mp4)", r"\1\2 \3", name)

    def note_flush(self, descriptor: int) -> None:
        """Note which file is flushed, and how much is in it."""
        status = os.fstat(descriptor)
        path = next(p for p in [self.root, *self.root.rglob("*")] if os.path.samestat(p.lstat(), status))
        self.calls.append(f"flush {self.name(path)}")
        self.sizes[status.st_ino] = status.st_size

    def note_rename(self, source: Any, target: Any) -> None:
        """Note a rename."""
        self.calls.append(f"rename {self.name(Path(source))} to {self.name(Path(target))}")

    def assert_flushed(self) -> None:
        """Check that each file was flushed with all that it holds now."""
        files = [path for path in self.root.rglob("*") if path.is_file()]
        assert files
        assert {f: self.sizes.get(f.stat().st_ino) for f in files} == {f: f.stat().st_size for f in files}


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk, fsync, replace, rmtree = Disk(tmp_path), os.fsync, os.replace, shutil.rmtree

    def noted_fsync(descriptor: int) -> None:
        disk.note_flush(descriptor)
        fsync(descriptor)

    def noted_replace(source: Any, target: Any) -> None:
        replace(source, target)
        disk.note_rename(source, target)

    def noted_rmtree(path: Any) -> None:
        disk.calls.append(f"remove {disk.name(Path(path))}")
        rmtree(path)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    monkeypatch.setattr(shutil, "rmtree", noted_rmtree)
    return disk


def test_a_file_is_flushed_then_named_then_its_name_is_flushed(disk: Disk) -> None:
    for text in (b"1", b"22"):
        with replaced_file(disk.root / "file") as stream:
            stream.write(text)
        assert disk.calls == ["flush file tmp", "rename file tmp to file", "flush ."]
        disk.assert_flushed()
        disk.calls.clear()


def test_a_state_is_flushed_whole(disk: Disk) -> None:
    write_state(disk.root / "state", "tiny", {"x": torch.arange(10_000)})
    assert disk.calls == ["flush state tmp", "rename state tmp to state", "flush ."]
    disk.assert_flushed()


def test_a_video_is_flushed_before_it_has_its_name(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_frames(path: str, size: tuple[int, int], **options: Any) -> Iterator[None]:
        """Write bytes as ffmpeg does: to a file of its own that is complete when the stream is closed."""
        with open(path, "wb") as file:
            while True:
                file.write((yield))  # type: ignore[arg-type]  # a frame is sent

    monkeypatch.setattr(filming, "require_encoder", lambda owner: SimpleNamespace(write_frames=write_frames))
    video = filming.VideoFile(disk.root / "film.mp4", 30)
    for _ in range(2):
        video.add(np.zeros((48, 64, 3), np.uint8))
    video.close()
    assert disk.calls == ["flush film.mp4 mp4", "rename film.mp4 mp4 to film.mp4", "flush ."]
    disk.assert_flushed()


def test_the_names_of_new_folders_are_flushed(disk: Disk) -> None:
    make_folder(disk.root / "a" / "b")
    assert (disk.root / "a" / "b").is_dir()
    assert disk.calls == ["flush .", "flush a"]
    make_folder(disk.root / "a" / "b")
    assert disk.calls == ["flush .", "flush a"]


def test_a_folder_whose_name_a_file_has(disk: Disk) -> None:
    (disk.root / "a").touch()
    with pytest.raises(FileExistsError):
        make_folder(disk.root / "a")


def test_a_checkpoint_is_flushed_before_it_has_its_name(disk: Disk) -> None:
    parts = {"one": {"x": torch.arange(10_000)}, "two": {"y": 2}}
    members = [f"flush c new/{name}" for name in ("one.safetensors", "two.safetensors", "manifest.json")]
    written = [*members, "flush c new"]
    write_checkpoint(disk.root / "runs" / "c", parts)
    runs = [re.sub(r"\bc\b", "runs/c", call) for call in [*written, "rename c new to c"]]
    assert disk.calls == ["flush .", *runs, "flush runs"]
    disk.assert_flushed()


def test_a_checkpoint_that_is_replaced_is_removed_when_the_name_of_the_new_one_is_flushed(disk: Disk) -> None:
    parts = {"one": {"x": 1}}
    write_checkpoint(disk.root / "c", parts)
    disk.calls.clear()
    write_checkpoint(disk.root / "c", parts, overwrite=True)
    assert disk.calls[3:] == ["rename c to c old", "rename c new to c", "flush .", "remove c old"]


def test_rows_are_flushed_before_the_checkpoint_that_lists_them(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_state, "MIN_NBYTES", 100)
    monkeypatch.setattr(buffer_state, "MAX_NBYTES", 400)
    run, store = Run(), CheckpointStore(disk.root / "run", keep_last=1, keep_best=0)
    run.go_on(70)
    store.open()
    disk.calls.clear()
    store.save(run.state(), 1, None)
    number = "run/checkpoint-000000000001"
    rows = sorted((disk.root / "run" / "rows").iterdir())
    assert len(rows) > 1
    assert disk.calls == [
        *(f"flush run/rows/{path.name}" for path in rows), "flush run/rows",
        *(f"flush {number} new/{part}.safetensors" for part in run.state()),
        f"flush {number} new/manifest.json", f"flush {number} new",
        f"rename {number} new to {number}", "flush run",
    ]  # fmt: skip
    disk.assert_flushed()
    disk.calls.clear()
    store.save(run.state(), 2, None)
    store.close()
    gone = [call for call in disk.calls if call.startswith(("remove", "flush run")) and "new" not in call]
    assert gone == ["flush run/rows", "flush run", "remove run/checkpoint-000000000001 gone"]
