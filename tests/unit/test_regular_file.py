"""Only files are opened to be read; what would be waited for is refused at once."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from rltrainer.regular_file import open_regular


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(path))


CASES: list[tuple[Callable[[Path], object], str]] = [
    (os.mkfifo, "is a pipe, no regular file"),
    (Path.mkdir, "is a folder, no regular file"),
    (lambda path: path.symlink_to("/dev/zero"), "is a device, no regular file"),
    (make_socket, "No such device or address"),
    (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
    (lambda path: path.symlink_to(path.parent / "pipe"), "is a pipe, no regular file"),
    (lambda path: None, "No such file or directory"),
]


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
