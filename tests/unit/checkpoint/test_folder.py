"""Checkpoint directories: what is replaced and what is not, faults at every line, what a kill leaves, damaged ones."""

import errno
import hashlib
import json
import multiprocessing
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from rltrainer.checkpoint import CheckpointStore, read_checkpoint, write_checkpoint
from rltrainer.checkpoint.folder import read_manifest
from rltrainer.errors import CheckpointError
from rltrainer.files.atomic_write import hidden_name

WATCHED = ("checkpoint/folder.py", "atomic_write.py", "state_file.py")


def state(number: float) -> dict[str, Any]:
    return {"a": {"w": torch.full((3,), float(number))}, "b": {"number": number}}


def write(path: Path, number: int) -> None:
    write_checkpoint(path, state(number), overwrite=True)


def number_in(path: Path | None, shard: int = 0) -> int:
    """Return which checkpoint stands at a path; raises unless it is whole."""
    assert path is not None
    states = read_checkpoint(path, shard=shard)
    assert states["a"]["w"].tolist() == [states["b"]["number"]] * 3
    return int(states["b"]["number"])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@contextmanager
def interrupted_at(line: int, error: BaseException, watched: tuple[str, ...] = WATCHED) -> Iterator[list[str]]:
    """Raise at this line of all that the package runs to write, counted from 0; yields the line if there was one."""
    count, reached = -1, []

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.endswith(watched):
            return None
        if event == "line":
            count += 1
            if count == line:
                sys.settrace(None)
                reached.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
                raise error
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield reached
    finally:
        sys.settrace(before)


# Raised at either end of a `with`, an interrupt leaves the file to be closed by the garbage collector.
@pytest.mark.usefixtures("collected")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("error", "is_first"), [(KeyboardInterrupt, True), (KeyboardInterrupt, False), (OSError, False)]
)
def test_whatever_is_raised_at_any_line_the_old_or_the_new_one_stands(
    error: type[BaseException], is_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # hundreds of saves
    path, line = tmp_path / "checkpoint", 0
    if not is_first:
        write(path, 0)
    while True:
        with interrupted_at(line, error(errno.ENOSPC, "full")) as reached, suppress(CheckpointError, error):
            write(path, line + 1)
        if not reached:
            break
        if is_first and not path.exists():
            with pytest.raises(CheckpointError, match="there is no such checkpoint"):
                read_checkpoint(path)
        else:
            assert number_in(path) in (line, line + 1), reached
            assert path.is_dir()
        # What the interrupted save left behind is gone after the next one.
        write(path, line + 1)
        assert names(tmp_path) == ["checkpoint"], reached
        assert number_in(path) == line + 1
        if is_first:
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
        line += 1
    assert line > 100


@pytest.mark.parametrize("name", ["replace", "fsync", "mkdir", "listdir", "open", "unlink"])
def test_whatever_the_system_refuses_is_an_error_with_path_and_cause(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, call, function = tmp_path / "checkpoint", 0, getattr(os, name)
    write(path, 0)
    while True:
        num_calls = 0

        def fail(*args: Any, call: int = call, **kwargs: Any) -> Any:
            nonlocal num_calls
            num_calls += 1
            if num_calls == call + 1:
                raise OSError(errno.EDQUOT, "Disk quota exceeded")
            return function(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            try:
                write(path, call + 1)
            except CheckpointError as error:
                assert str(error).startswith(f"{path}: could not be written (")  # noqa: PT017
                assert "Disk quota exceeded" in str(error)  # noqa: PT017
        if num_calls <= call:
            break
        assert number_in(path) in (call, call + 1)
        write(path, call + 1)
        assert names(tmp_path) == ["checkpoint"]
        call += 1


def save_and_die(path: Path, when: str) -> None:
    """Save once, and die while the second save puts its directory into place."""
    replace = os.replace

    def kill(source: Any, target: Any) -> None:
        if when == "before":
            os._exit(9)
        replace(source, target)
        if (when == "between" and str(target).endswith(".old")) or (when == "after" and target == path):
            os._exit(9)

    write(path, 1)
    os.replace = kill
    write(path, 2)


@pytest.mark.parametrize(("when", "expected"), [("before", 1), ("between", 1), ("after", 2)])
@pytest.mark.parametrize("saves", [True, False])
def test_a_kill_loses_nothing_and_its_leftovers_go_with_the_next_save(
    when: str, expected: int, saves: bool, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint"
    process = multiprocessing.get_context("forkserver").Process(target=save_and_die, args=(path, when))
    process.start()
    process.join()
    assert process.exitcode == 9
    assert path.exists() == (when != "between")
    if saves:
        write(path, 3)
        assert number_in(path) == 3
        assert names(tmp_path) == ["checkpoint"]
    else:
        assert number_in(path) == expected
        assert path.exists()


def test_what_other_saves_are_writing_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    write(path, 1)
    others = [f".checkpoint.{os.getppid()}{host}.new" for host in ("", "-00000000-1-0")]
    others += [".checkpoint.mine.new", ".checkpoint.b.99999999.old"]
    for name in others:
        (tmp_path / name).mkdir()
    (tmp_path / ".checkpoint.99999999.new").mkdir()
    write(path, 2)
    assert names(tmp_path) == sorted(["checkpoint", *others])


def test_a_part_of_a_checkpoint_is_not_put_back(tmp_path: Path) -> None:
    write(tmp_path / "a", 1)
    (tmp_path / "a" / "a.safetensors").unlink()
    os.replace(tmp_path / "a", tmp_path / ".a.99999999.old")
    with pytest.raises(CheckpointError, match="there is no such checkpoint"):
        read_checkpoint(tmp_path / "a")
    assert names(tmp_path) == [".a.99999999.old"]


def test_what_a_save_under_way_has_moved_aside_is_left_alone(tmp_path: Path) -> None:
    """Only of a thread that is over is it put back."""
    path, moved, over = tmp_path / "checkpoint", threading.Event(), threading.Event()

    def move_aside() -> None:
        write(path, 1)
        os.replace(path, hidden_name(path, "old"))
        moved.set()
        over.wait(30)

    thread = threading.Thread(target=move_aside)
    thread.start()
    assert moved.wait(30)
    with pytest.raises(CheckpointError, match="there is no such checkpoint"):
        read_checkpoint(path)
    over.set()
    thread.join()
    assert number_in(path) == 1


def test_threads_that_save_to_one_path_leave_one_of_theirs(tmp_path: Path) -> None:
    path, errors = tmp_path / "checkpoint", []

    def save(number: int) -> None:
        try:
            for _ in range(15):
                with suppress(CheckpointError):  # another one was quicker
                    write(path, number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=save, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert number_in(path) in (1, 2, 3)
    write(path, 4)
    assert names(tmp_path) == ["checkpoint"]


def make(path: Path, **contents: str) -> None:
    """Make a folder of these files of text, of which `manifest` is the manifest."""
    path.mkdir()
    for name, text in contents.items():
        (path / ("manifest.json" if name == "manifest" else f"{name}.txt")).write_text(text)


def make_with(path: Path, act: Callable[[Path], object]) -> None:
    """Write a checkpoint, and do something to it."""
    write(path, 1)
    act(path)


def make_lying_manifest(path: Path) -> None:
    plain = {"rltrainer": "checkpoint", "version": 3, "rows": {}, "serial": 0, "step": None, "score": None}
    make(path, manifest=json.dumps(plain | {"checksum": ""}), thesis="precious")
    edit_manifest(path, files={"thesis.txt": {"size": 8, "sha256": ""}})


def make_linked_member(path: Path) -> None:
    write(path, 1)
    (path / "a.safetensors").rename(path.with_name("moved"))
    (path / "a.safetensors").symlink_to("../moved")


def make_link(path: Path) -> None:
    write(path.with_name("elsewhere"), 1)
    path.symlink_to("elsewhere")


ONLY = "and only a checkpoint is replaced. Save to another path."
MAKERS: list[tuple[Callable[[Path], object], str]] = [
    (lambda path: path.write_text("precious"), f"is no folder, {ONLY}"),
    (lambda path: make(path, thesis="precious"), f"is no checkpoint, {ONLY}"),
    (make_link, f"is a symbolic link, {ONLY}"),
    (lambda path: path.symlink_to("nowhere"), f"is a symbolic link, {ONLY}"),
    (os.mkfifo, f"is no folder, {ONLY}"),
    (
        lambda path: make_with(path, lambda made: (made / "best.safetensors").write_text("precious")),
        "holds 'best.safetensors' beside a checkpoint, and would be replaced as a whole. Move it away",
    ),
    (lambda path: make_with(path, lambda made: (made / "logs").mkdir()), "holds 'logs' beside a checkpoint, and would"),
    (lambda path: make(path, manifest='{"files": {"thesis.txt": {}}}'), "manifest.json: damaged (KeyError"),
    (make_lying_manifest, "manifest.json: damaged (CheckpointError"),
    (make_linked_member, "holds 'a.safetensors' beside a checkpoint"),
    (
        lambda path: make_with(path, lambda made: edit_manifest(made, version=7)),
        "written in format 7, this release reads format 3. Upgrade it.",
    ),
    (
        lambda path: make_with(path, lambda made: edit_manifest(made, version=2)),
        "written in format 2 by a version before 0.1.0, this release reads format 3. Load it with the version",
    ),
]


def snapshot(folder: Path) -> dict[str, Any]:
    return {
        str(path): path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize(("make", "text"), MAKERS)
def test_what_is_no_checkpoint_is_never_replaced(make: Any, text: str, tmp_path: Path) -> None:
    path = tmp_path / "path"
    make(path)
    before = snapshot(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        write(path, 2)
    assert str(path) in str(caught.value)
    assert text in str(caught.value)
    with pytest.raises(CheckpointError, match="path: exists, and is not replaced. Save to another path, or with over"):
        write_checkpoint(path, {"b": {"number": 2}})
    assert snapshot(tmp_path) == before


def test_what_comes_to_be_there_during_a_save_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, replace = tmp_path / "path", os.replace

    def be_late(source: Any, target: Any) -> None:
        make(path, thesis="precious")
        replace(source, target)

    monkeypatch.setattr(os, "replace", be_late)
    with pytest.raises(CheckpointError, match=r"path: could not be written \("):
        write_checkpoint(path, {"b": {"number": 2}})
    assert names(tmp_path) == ["path"]
    assert names(path) == ["thesis.txt"]


def test_an_empty_folder_and_a_damaged_checkpoint_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "path").mkdir()
    write(tmp_path / "path", 1)
    assert number_in(tmp_path / "path") == 1
    with pytest.raises(CheckpointError, match="path: exists, and is not replaced. Save to another path, or with over"):
        write_checkpoint(tmp_path / "path", {"b": {"number": 2}})
    (tmp_path / "path" / "a.safetensors").unlink()
    (tmp_path / "path" / "b.safetensors").write_bytes(b"")
    write(tmp_path / "path", 2)
    assert number_in(tmp_path / "path") == 2
    (tmp_path / "latest").symlink_to("path")
    assert number_in(tmp_path / "latest") == 2


@pytest.mark.parametrize("path", [".", "", "/", "..", "a/.."])
def test_a_path_without_a_name(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="must end in the name of a checkpoint"):
        write_checkpoint(path, {})


@pytest.mark.parametrize("parent", ["file/checkpoint", "closed/checkpoint", "/proc/nothing/checkpoint"])
def test_a_place_where_nothing_can_be_written(parent: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "closed").mkdir(mode=0o500)
    if parent.startswith("closed") and os.access(tmp_path / "closed", os.W_OK):
        parent = "/proc/checkpoint"  # root may write everywhere but there
    with pytest.raises(CheckpointError, match=r"checkpoint: could not be written \("):
        write(tmp_path / parent, 1)


@pytest.mark.parametrize("member", ["a.safetensors", "manifest.json"])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "missing", "added"])
def test_a_member_that_is_no_file_is_refused_and_not_waited_for(member: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    write(path, 1)
    (path / member).rename(tmp_path / "moved")
    if kind == "added":
        shutil.copy(tmp_path / "moved", path / member)
        (path / "more.safetensors").touch()
    else:
        {"link": lambda file: file.symlink_to("../moved"), "pipe": os.mkfifo, "folder": os.mkdir, "missing": str}[kind](
            path / member
        )
    text = f"{member}: is no regular file" if kind != "missing" else f"{member}: missing"
    text = "is no checkpoint: it has no manifest" if member == "manifest.json" else text
    text = "more.safetensors: not in the manifest" if kind == "added" else text
    with pytest.raises(CheckpointError, match=text):
        read_checkpoint(path)


def edit_manifest(path: Path, **changes: Any) -> None:
    """Change a manifest, and make its checksum fit."""
    plain = json.loads((path / "manifest.json").read_text()) | changes
    plain.pop("checksum")
    plain["checksum"] = hashlib.sha256(json.dumps(plain).encode()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(plain))


ENTRY = {"size": 1, "sha256": ""}
LIES: list[dict[str, Any]] = [
    {"version": "3"}, {"version": None}, {"version": 0}, {"version": True}, {"version": -1}, {"version": 3.0},
    {"files": None}, {"files": []}, {"files": {"a.safetensors": None}}, {"files": {"a.safetensors": {}}},
    {"files": {"a.safetensors": {"size": "1", "sha256": ""}}}, {"files": {"a.safetensors": {"size": 1, "sha256": 3}}},
    {"files": {"../a.safetensors": ENTRY}}, {"files": {"/a.safetensors": ENTRY}}, {"files": {"a.txt": ENTRY}},
    {"files": {"a.safetensors": {"size": -1, "sha256": ""}}},
    {"rltrainer": "buffer"}, {"rltrainer": None}, {"serial": -1}, {"serial": None}, {"step": 2**70}, {"score": "1"},
    {"score": float("nan")}, {"rows": None}, {"rows": {"a": {}}}, {"rows": {"c": {}}},
    {"rows": {"a": {"a.safetensors": ENTRY}}}, {"rows": {"a": None}},
    {"rows": {"a": {"a-0-1.safetensors": {"size": 1}}}}, {"rows": {"a": {"../a-0-1.safetensors": ENTRY}}},
    *({"num_shards": number} for number in (0, -1, "2", None, True, 2.0, 2**70)),
]  # fmt: skip


@pytest.mark.parametrize("changes", LIES, ids=str)
def test_a_manifest_that_we_did_not_write(changes: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path / "c", 1)
    edit_manifest(tmp_path / "c", **changes)
    text = r"manifest.json: (damaged|not a manifest of rltrainer)"
    if changes == {"rows": {"a": {}}}:  # a part without rows
        text = "a.safetensors: expected a list of rows, found none"
    with pytest.raises(CheckpointError, match=text):
        read_checkpoint(tmp_path / "c")


def test_what_another_process_has_put_back_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c"
    write(path, 1)
    os.replace(path, tmp_path / ".c.99999999.old")

    def be_late(source: Any, target: Any) -> None:
        write_checkpoint_by_another(path)
        raise OSError(errno.ENOTEMPTY, "Directory not empty")

    def write_checkpoint_by_another(path: Path) -> None:
        monkeypatch.undo()
        shutil.copytree(tmp_path / ".c.99999999.old", path)

    monkeypatch.setattr(os, "replace", be_late)
    assert number_in(path) == 1


@pytest.mark.parametrize("text", ["", "{", "3", "[]", "null", '"x"', "[" * 10**5, "\udcff", "{}" + " " * (1 << 20)])
def test_a_manifest_that_is_no_manifest(text: str, tmp_path: Path) -> None:
    write(tmp_path / "c", 1)
    (tmp_path / "c" / "manifest.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(CheckpointError, match=r"manifest.json: (damaged|not a manifest of rltrainer)"):
        read_checkpoint(tmp_path / "c")


def test_a_manifest_of_more_files_than_there_are_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "c", 1)
    manifest = tmp_path / "c" / "manifest.json"
    size = manifest.stat().st_size
    monkeypatch.setattr("rltrainer.checkpoint.folder.FREE_SIZE", 100)
    read_checkpoint(tmp_path / "c")
    manifest.write_text(manifest.read_text() + " " * 4000)
    text = rf"manifest.json: damaged: expected at most \d,100 bytes for the \d files there, found {size + 4000:,}$"
    with pytest.raises(CheckpointError, match=text):
        read_checkpoint(tmp_path / "c")


def test_a_member_whose_size_or_contents_lie_is_refused_even_if_it_is_signed(tmp_path: Path) -> None:
    write(tmp_path / "c", 1)
    member = tmp_path / "c" / "a.safetensors"
    data = member.read_bytes().replace(b'"shape": [3]', b'"shape": [9]')
    member.write_bytes(data)
    files = json.loads((tmp_path / "c" / "manifest.json").read_text())["files"]
    sizes = {size: rf"expected {size} bytes, found \d+" for size in (0, 10**15, 1)}
    for size, text in (sizes | {len(data): "not a readable a file"}).items():
        entry = {"size": size, "sha256": hashlib.sha256(data).hexdigest()}
        edit_manifest(tmp_path / "c", files=files | {"a.safetensors": entry})
        with pytest.raises(CheckpointError, match=f"a.safetensors: {text}"):
            read_checkpoint(tmp_path / "c")


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
