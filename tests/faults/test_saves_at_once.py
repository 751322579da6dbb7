"""Several saves of one file at once, and what killed ones left behind."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rltrainer.checkpoint.folder import read_checkpoint, write_checkpoint
from rltrainer.files import atomic_write
from rltrainer.files.atomic_write import hidden_name, replaced_file


def save(path: Path, content: bytes) -> None:
    with replaced_file(path) as file:
        file.write(content)


def test_threads_that_save_to_one_path(tmp_path: Path) -> None:
    path, errors = tmp_path / "file", []

    def save_often(content: bytes) -> None:
        try:
            for _ in range(30):
                save(path, content)
        except BaseException as error:
            errors.append(error)

    contents = [letter * 10_000 for letter in (b"a", b"b", b"c")]
    threads = [threading.Thread(target=save_often, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert path.read_bytes() in contents
    assert os.listdir(tmp_path) == ["file"]


def test_no_two_names_are_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in containers whose process ids, host names and threads are the same."""
    monkeypatch.setattr(atomic_write, "host_id", lambda: "0a")
    monkeypatch.setattr("threading.get_ident", lambda: 1)
    assert len({hidden_name(tmp_path / "file", "tmp") for _ in range(1000)}) == 1000


KILLED = """
import os, signal, sys
from pathlib import Path
from rltrainer.files.atomic_write import replaced_file
with replaced_file(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_save_left_goes_with_the_next_one(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "file")], check=False)
    (leftover,) = os.listdir(tmp_path)
    assert leftover.startswith(".file.")
    save(tmp_path / "file", b"whole")
    assert os.listdir(tmp_path) == ["file"]


def test_what_another_container_is_writing_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process id means another process there, though the host's name may be the same."""
    here = os.readlink
    monkeypatch.setattr("os.readlink", lambda path: "pid:[1]" if str(path) == "/proc/self/ns/pid" else here(path))
    theirs = hidden_name(tmp_path / "file", "tmp")
    monkeypatch.undo()
    theirs.write_bytes(b"half")
    save(tmp_path / "file", b"whole")
    assert theirs.exists()


def test_what_another_container_had_moved_away_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was killed between two renames, and this one goes on."""
    path = tmp_path / "checkpoint"
    write_checkpoint(path, {"part": {"number": 7}})
    monkeypatch.setattr(atomic_write, "host_id", lambda: "0a")
    os.replace(path, hidden_name(path, "old"))
    monkeypatch.undo()
    assert read_checkpoint(path)["part"]["number"] == 7
    assert os.listdir(tmp_path) == ["checkpoint"]
