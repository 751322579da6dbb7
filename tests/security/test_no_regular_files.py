"""Pipes, devices, sockets, folders and endless links in the place of files: refused at once, by every reader."""

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rltrainer as rl
from rltrainer.errors import CheckpointError, RLTrainerError
from tests.resume.runs import build
from tests.security.loaders import READERS


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(path))


MAKERS: list[Callable[[Path], object]] = [
    os.mkfifo, make_socket, Path.mkdir, lambda path: path.symlink_to("/dev/zero"),
    lambda path: path.symlink_to("/dev/tty"), lambda path: path.symlink_to(path),
    lambda path: path.symlink_to("/proc/self/mem"), lambda path: path.symlink_to("missing"),
]  # fmt: skip


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", MAKERS)
def test_no_reader_waits(make: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "f"
    make(path)
    for read in (*READERS, build("ppo").restore):
        with pytest.raises(RLTrainerError) as error:
            read(path)
        assert str(path) in str(error.value)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("member", ["manifest.json", "algorithm.safetensors", "buffer.safetensors"])
def test_no_member_is_waited_for(make: Callable[[Path], object], member: str, tmp_path: Path) -> None:
    trainer: Any = build("dqn")
    path = tmp_path / "checkpoint"
    trainer.save(path)
    os.unlink(path / member)
    make(path / member)
    with pytest.raises(CheckpointError) as error:
        trainer.restore(path)
    assert str(path) in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.timeout(20)
def test_a_link_to_a_whole_file_is_read(tmp_path: Path) -> None:
    build("sac").algorithm.save(tmp_path / "a")
    (tmp_path / "link").symlink_to("a")
    assert isinstance(rl.load(tmp_path / "link"), rl.SAC)
    shutil.rmtree(tmp_path)
