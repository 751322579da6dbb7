"""Files of other projects with bytes changed or cut off: an error of ours that names the file, or a buffer."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rltrainer.errors import RLTrainerError
from rltrainer.tools.datasets import from_hdf5, from_npz, from_parquet
from tests.unit.tools.datasets.logged import ROWS


def npz(path: Path) -> None:
    np.savez_compressed(path, **ROWS)


def hdf5(path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for name, column in ROWS.items():
            file.create_dataset(name, data=column, compression="gzip", chunks=True)


def parquet(path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({name: list(column) for name, column in ROWS.items()}), path)


def damaged(whole: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.2:
        return whole[: rng.randrange(len(whole))]
    data = bytearray(whole)
    for _ in range(rng.choice([1, 1, 2, 5, 30])):
        data[rng.randrange(len(data))] = rng.choice([0, 255, rng.randrange(256)])
    return bytes(data)


@pytest.mark.parametrize(
    ("write", "read", "name"),
    [(npz, from_npz, "log.npz"), (hdf5, from_hdf5, "log.hdf5"), (parquet, from_parquet, "log.parquet")],
)
def test_damage_is_an_error_of_ours(
    tmp_path: Path, write: Callable[[Path], None], read: Callable[[Path], object], name: str
) -> None:
    path, rng, told = tmp_path / name, random.Random(3), []
    write(path)
    whole = path.read_bytes()
    for _ in range(250):
        path.write_bytes(damaged(whole, rng))
        try:
            read(path)
        except RLTrainerError as error:
            told.append(str(error))
    assert [text for text in told if str(path) not in text] == []
    assert len(told) > 50


@pytest.mark.parametrize("read", [from_npz, from_hdf5, from_parquet])
def test_a_pipe_is_not_waited_for(tmp_path: Path, read: Callable[[Path], object]) -> None:
    pytest.importorskip("h5py")
    pytest.importorskip("pyarrow")
    os.mkfifo(tmp_path / "log")
    with pytest.raises(RLTrainerError, match="found OSError: 'is a pipe, no regular file'"):
        read(tmp_path / "log")
