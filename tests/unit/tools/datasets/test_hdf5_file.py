"""HDF5 files in D4RL's layout, written by h5py; and those that refer to other files, or claim what they do not hold."""

import logging
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rltrainer.errors import MissingExtraError, ReplayBufferError
from rltrainer.tools.datasets import from_hdf5
from tests.unit.tools.datasets.logged import AFTER, ROWS, WARNING, assert_is_the_log, assert_is_the_whole_log

h5py = pytest.importorskip("h5py")


def saved(folder: Path, **changes: Any) -> Path:
    path = folder / "log.hdf5"
    with h5py.File(path, "w") as file:
        for name, array in (ROWS | changes).items():
            if array is not None:
                file[name] = array
        file["infos/qpos"] = np.zeros((8, 3))
        file["metadata/algorithm"] = b"SAC"
    return path


def test_as_d4rl_writes_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = saved(tmp_path)
    with caplog.at_level(logging.WARNING, logger="rltrainer"):
        assert_is_the_log(from_hdf5(path))
    assert [record.message for record in caplog.records] == [f"from_hdf5: {path}: {WARNING}"]


def test_with_successors(tmp_path: Path) -> None:
    assert_is_the_whole_log(from_hdf5(saved(tmp_path, next_observations=AFTER)))


def test_compressed_in_chunks(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "log.hdf5", "w") as file:
        for name, array in ROWS.items():
            options: Any = {"compression": "gzip", "shuffle": True, "fletcher32": True}
            file.create_dataset(name, data=array, chunks=True, **options)
    assert_is_the_log(from_hdf5(tmp_path / "log.hdf5"))


def test_groups_are_dicts(tmp_path: Path) -> None:
    changes = {"observations": None, "observations/state": ROWS["observations"], "observations/deep/step": np.arange(8)}
    buffer = from_hdf5(saved(tmp_path, **changes))
    batch = buffer.sample(200)
    pairs = set(zip(batch.obs["deep"]["step"].tolist(), batch.next_obs["deep"]["step"].tolist(), strict=True))
    assert {pair for pair in pairs if pair[0] != 2} == {(0, 1), (1, 2), (3, 4), (4, 5), (6, 7)}
    space = buffer.observation_space
    assert isinstance(space, gym.spaces.Dict)
    assert space["state"] == gym.spaces.Box(-np.inf, np.inf, (2,))


def test_without_time_outs_nobody_knows_where_episodes_end(tmp_path: Path) -> None:
    with pytest.raises(ReplayBufferError, match="expected the member 'truncations' or 'timeouts', found "):
        from_hdf5(saved(tmp_path, timeouts=None))


def test_links_are_not_followed(tmp_path: Path) -> None:
    saved(tmp_path).rename(tmp_path / "other.hdf5")
    for link in (h5py.ExternalLink("other.hdf5", "rewards"), h5py.SoftLink("/infos/qpos")):
        path = saved(tmp_path, rewards=link)
        with pytest.raises(ReplayBufferError) as raised:
            from_hdf5(path)
        assert str(raised.value) == f"from_hdf5: {path}: member 'rewards': expected data, found a link"


def test_data_in_other_files_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(64))
    path = saved(tmp_path, rewards=None)
    with h5py.File(path, "a") as file:
        file.create_dataset("rewards", (8,), "f8", external=[(str(tmp_path / "secret"), 0, 64)])
    with pytest.raises(
        ReplayBufferError, match="member 'rewards': expected data in this file, found a reference to oth"
    ):
        from_hdf5(path)
    saved(tmp_path).rename(tmp_path / "other.hdf5")
    path = saved(tmp_path, rewards=None)
    layout = h5py.VirtualLayout((8,), "f8")
    layout[:] = h5py.VirtualSource(str(tmp_path / "other.hdf5"), "rewards", (8,))
    with h5py.File(path, "a") as file:
        file.create_virtual_dataset("rewards", layout)
    with pytest.raises(
        ReplayBufferError, match="member 'rewards': expected data in this file, found a reference to oth"
    ):
        from_hdf5(path)


def test_what_is_not_there_is_not_made(tmp_path: Path) -> None:
    path = saved(tmp_path, rewards=None)
    with h5py.File(path, "a") as file:
        file.create_dataset("rewards", (10**12,), "f8", chunks=(1000,))  # nothing of it was ever written
    limit = max(1 << 20, 1032 * path.stat().st_size)
    with pytest.raises(ReplayBufferError) as raised:
        from_hdf5(path)
    text = f"expected columns of at most {limit:,} bytes in a file of {path.stat().st_size:,}, found 8,000,000,000,"
    assert str(raised.value).startswith(f"from_hdf5: {path}: {text}")


def test_groups_that_hold_themselves(tmp_path: Path) -> None:
    path = saved(tmp_path, observations=None)
    with h5py.File(path, "a") as file:
        group = file.create_group("observations")
        group["again"] = group
    with pytest.raises(
        ReplayBufferError, match="member 'observations/again': expected data of its own, found a second"
    ):
        from_hdf5(path)


def test_texts_and_plugins_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ReplayBufferError, match="member 'rewards': expected numbers, found object"):
        from_hdf5(saved(tmp_path, rewards=np.array([b"a"] * 8, object)))
    with pytest.raises(ReplayBufferError, match=r"member 'rewards': expected numbers, found \[\('x', '<f4'\)\]"):
        from_hdf5(saved(tmp_path, rewards=np.zeros(8, [("x", "f4")])))
    path = saved(tmp_path, rewards=None)
    with h5py.File(path, "a") as file:
        file["rewards"] = np.dtype("f8")
    with pytest.raises(ReplayBufferError, match="member 'rewards': expected numbers, found Datatype"):
        from_hdf5(path)
    path = saved(tmp_path, rewards=None)
    with h5py.File(path, "a") as file:
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_chunk((8,))
        plan.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, ())  # Zstandard: a library that nobody here has
        h5py.h5d.create(file.id, b"rewards", h5py.h5t.NATIVE_DOUBLE, h5py.h5s.create_simple((8,)), plan)
    with pytest.raises(
        ReplayBufferError, match=r"'rewards': expected a compression that HDF5 brings, found the filters"
    ):
        from_hdf5(path)


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "log.hdf5"
    path.write_bytes(b"text")
    with pytest.raises(ReplayBufferError) as raised:
        from_hdf5(path)
    assert str(raised.value).startswith(f"from_hdf5: {path}: expected an HDF5 file, found OSError: ")
    assert "0x" not in str(raised.value)
    with pytest.raises(ReplayBufferError, match="expected an HDF5 file, found OSError: 'is a folder, no regular file'"):
        from_hdf5(tmp_path)
    whole = saved(tmp_path).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ReplayBufferError, match="expected an HDF5 file, found OSError"):
        from_hdf5(path)


def test_without_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(
        MissingExtraError, match='from_hdf5 needs a package .* Run in a clone: pip install "\\.\\[hdf5\\]"'
    ):
        from_hdf5(tmp_path / "log.hdf5")
