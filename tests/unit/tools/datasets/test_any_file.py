"""The readers of files: the same rows from each kind, the reader by the name, damage, and packages that are missing."""

import logging
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rltrainer as rl
from rltrainer.errors import MissingExtraError, ParamsError, ReplayBufferError, RLTrainerError, SpaceError
from rltrainer.tools.datasets import from_hdf5, from_lerobot, from_minari, from_npz, from_parquet, to_minari
from tests.security.mutations import mutated
from tests.unit.data.reference import make_buffer
from tests.unit.tools.datasets import logged
from tests.unit.tools.datasets.logged import hdf5, held, npz, parquet
from tests.unit.tools.datasets.test_lerobot_folder import written
from tests.unit.tools.refusals import error_text, refuses

Write = Callable[..., Path]
Read = Callable[..., rl.ReplayBuffer]
KINDS = [(npz, from_npz, "a .npz"), (hdf5, from_hdf5, "an HDF5"), (parquet, from_parquet, "a Parquet")]
each_kind = pytest.mark.parametrize(("write", "read", "kind"), KINDS)


@each_kind
def test_rows_whose_successor_is_unknown_are_left_out_and_counted(
    write: Write, read: Read, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "log")
    path = path if path.exists() else tmp_path / "log.npz"  # NumPy adds the ending
    with caplog.at_level(logging.WARNING, logger="rltrainer"):
        logged.assert_is_the_log(read(path))
    assert [record.message for record in caplog.records] == [f"{read.__name__}: {path}: {logged.WARNING}"]
    caplog.clear()
    buffer = read(write(tmp_path / "whole.npz", next_observations=logged.AFTER))
    assert len(buffer) == 8
    logged.assert_is_the_whole_log(buffer)
    assert not caplog.records


@each_kind
def test_columns_by_their_paths_are_dicts(write: Write, read: Read, kind: str, tmp_path: Path) -> None:
    changes = {
        "observations": None,
        "observations/state/x": logged.ROWS["observations"],
        "observations/step": np.arange(8),
    }
    buffer = read(write(tmp_path / "log.npz", **changes))
    assert buffer.observation_space == gym.spaces.Dict(
        {"state": gym.spaces.Dict({"x": gym.spaces.Box(-np.inf, np.inf, (2,))}), "step": gym.spaces.Discrete(8)}
    )
    batch = buffer.sample(200)
    seen = dict(zip(batch.obs["step"].tolist(), batch.next_obs["state"]["x"][:, 0].tolist(), strict=True))
    assert {step: after for step, after in seen.items() if step != 2} == {0: 1, 1: 2, 3: 11, 4: 12, 6: 21}


@each_kind
def test_files_that_are_none(write: Write, read: Read, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "log.npz"
    refuses(ReplayBufferError, "log.npz: there is no such file", read, path)
    path.write_bytes(b"text, long enough for a footer")
    said = error_text(ReplayBufferError, read, path)
    found = {npz: "BadZipFile: 'File is not a zip file'", hdf5: "OSError: ", parquet: "ArrowInvalid: 'Parquet magic "}
    assert said.startswith(f"{read.__name__}: {path}: expected {kind} file, found {found[write]}")
    assert "0x" not in said
    os.mkfifo(tmp_path / "pipe")  # which is not waited for
    refuses(ReplayBufferError, "found OSError: 'is a pipe, no regular file'", read, tmp_path / "pipe")
    path.unlink()
    path.mkdir()
    folder = "expected Parquet files, found none in log.npz" if write is parquet else "found OSError: 'is a folder, no"
    refuses(ReplayBufferError, folder, read, path)


@each_kind
def test_damage_is_an_error_of_ours(write: Write, read: Read, kind: str, tmp_path: Path) -> None:
    path, rng, told = tmp_path / "log.npz", random.Random(3), []
    whole = write(path).read_bytes()
    for _ in range(250):
        path.write_bytes(mutated(rng, whole))
        try:
            read(path)
        except RLTrainerError as error:
            told.append(str(error))
    assert [text for text in told if str(path) not in text] == []
    assert len(told) > 50


@pytest.mark.parametrize(("name", "write", "read"), [
    ("log.npz", npz, from_npz), ("log.hdf5", hdf5, from_hdf5), ("log.h5", hdf5, from_hdf5),
    ("log.parquet", parquet, from_parquet), ("robot", written, from_lerobot),
])  # fmt: skip
def test_each_kind_is_read_by_its_own_reader(name: str, write: Write, read: Read, tmp_path: Path) -> None:
    write(tmp_path / name)
    found, expected = rl.datasets.load(str(tmp_path / name)), read(tmp_path / name)
    assert found.describe() == expected.describe()
    assert (found.observation_space, found.action_space) == (expected.observation_space, expected.action_space)


def test_saved_buffers_and_data_sets_of_minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = rl.datasets.load(npz(tmp_path / "log.npz"))
    buffer.save(tmp_path / "log.safetensors")
    assert held(rl.datasets.load(tmp_path / "log.safetensors")) == held(buffer)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    rl.datasets.to_minari(buffer, "numbers/logged-v0")
    expected = held(rl.datasets.from_minari("numbers/logged-v0"))
    assert held(rl.datasets.load("numbers/logged-v0")) == expected
    assert held(rl.datasets.load(tmp_path / "minari" / "numbers" / "logged-v0")) == expected


def test_paths_and_spaces_are_checked(tmp_path: Path) -> None:
    refuses(ParamsError, r"datasets.load.path: must be a path; got 3 \(int\)", rl.datasets.load, 3)
    refuses(ReplayBufferError, "from_minari: ", rl.datasets.load, tmp_path / "nothing")
    space: Any = gym.spaces.Box(-2.0, 2.0, (1,))
    refuses(SpaceError, "from_npz: ", rl.datasets.load, npz(tmp_path / "log.npz"), action_space=space)


@pytest.mark.parametrize(("call", "package", "extra"), [
    (from_hdf5, "h5py", "hdf5"), (from_parquet, "pyarrow", "parquet"), (from_minari, "minari", "minari"),
    (lambda path: to_minari(make_buffer(3), "log-v0"), "minari", "minari"),
])  # fmt: skip
def test_a_missing_package_is_named(call: Any, package: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package] or [package]:
        monkeypatch.setitem(sys.modules, name, None)
    text = rf'needs a package .* Run: pip install "rltrainer\[{extra}\]"'
    refuses(MissingExtraError, text, call, "log")
