"""Only files are opened to be read; what would be waited for is refused at once."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from rltrainer.files.regular_file import open_regular, read_lines, read_text


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(path))


CASES: list[tuple[Callable[[Path], object], str]] = [
    (os.mkfifo, "is a pipe, no regular file"), (Path.mkdir, "is a folder, no regular file"),
    (lambda path: path.symlink_to("/dev/zero"), "is a device, no regular file"),
    (make_socket, "No such device or address"),
    (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
    (lambda path: path.symlink_to(path.parent / "pipe"), "is a pipe, no regular file"),
    (lambda path: None, "No such file or directory"),
]  # fmt: skip


@pytest.mark.timeout(5)
@pytest.mark.parametrize(("make", "text"), CASES)
def test_what_is_no_file_is_refused_at_once(make: Callable[[Path], object], text: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    make(tmp_path / "f")
    num_open = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=text) as error:
        open_regular(tmp_path / "f")
    assert error.value.filename == str(tmp_path / "f")
    assert len(os.listdir("/proc/self/fd")) == num_open


def test_files_and_links_to_them_are_read(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"data")
    (tmp_path / "link").symlink_to("f")
    for name in ("f", "link"):
        with open_regular(tmp_path / name) as file:
            assert file.read() == b"data"
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        open_regular(tmp_path / "link", follows_links=False)


def test_text_is_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rltrainer.files.regular_file.MAX_TEXT_SIZE", 4)
    for text, is_read in ((b"", True), (b"abcd", True), (b"abcde", False)):
        (tmp_path / "f").write_bytes(text)
        with open_regular(tmp_path / "f") as file:
            if is_read:
                assert read_text(file) == text
                continue
            with pytest.raises(OSError, match="is longer than 4 bytes"):
                read_text(file)


def test_lines_are_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rltrainer.files.regular_file.MAX_TEXT_SIZE", 4)
    for text, lines in ((b"", []), (b"abc\n\nd", [b"abc\n", b"\n", b"d"]), (b"abcd", [b"abcd"])):
        (tmp_path / "f").write_bytes(text)
        with open_regular(tmp_path / "f") as file:
            assert list(read_lines(file)) == lines
    (tmp_path / "f").write_bytes(b"a\nabcd\n")
    with open_regular(tmp_path / "f") as file:
        lines_of_file = read_lines(file)
        assert next(lines_of_file) == b"a\n"
        with pytest.raises(OSError, match="has a line of more than 4 bytes"):
            next(lines_of_file)
