"""Data of any kind, read by how its name ends or what its folder holds."""

from collections.abc import Callable
from pathlib import Path

import pytest

import rltrainer as rl
from rltrainer.errors import ParamsError, ReplayBufferError, SpaceError
from tests.unit.tools.datasets.logged import held
from tests.unit.tools.datasets.test_damage import hdf5, npz, parquet
from tests.unit.tools.datasets.test_lerobot_folder import written


@pytest.mark.parametrize(
    ("name", "write", "read"),
    [
        ("log.npz", npz, rl.datasets.from_npz),
        ("log.hdf5", hdf5, rl.datasets.from_hdf5),
        ("log.h5", hdf5, rl.datasets.from_hdf5),
        ("log.parquet", parquet, rl.datasets.from_parquet),
        ("robot", written, rl.datasets.from_lerobot),
    ],
)
def test_each_kind_is_read_by_its_own_reader(
    name: str, write: Callable[[Path], object], read: Callable[[Path], rl.ReplayBuffer], tmp_path: Path
) -> None:
    write(tmp_path / name)
    found, expected = rl.datasets.load(str(tmp_path / name)), read(tmp_path / name)
    assert found.describe() == expected.describe()
    assert (found.observation_space, found.action_space) == (expected.observation_space, expected.action_space)


def test_saved_buffers_and_data_sets_of_minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npz(tmp_path / "log.npz")
    buffer = rl.datasets.load(tmp_path / "log.npz")
    buffer.save(tmp_path / "log.safetensors")
    assert held(rl.datasets.load(tmp_path / "log.safetensors")) == held(buffer)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    rl.datasets.to_minari(buffer, "numbers/logged-v0")
    expected = held(rl.datasets.from_minari("numbers/logged-v0"))
    assert held(rl.datasets.load("numbers/logged-v0")) == expected
    assert held(rl.datasets.load(tmp_path / "minari" / "numbers" / "logged-v0")) == expected


def test_what_is_none(tmp_path: Path) -> None:
    with pytest.raises(ParamsError, match=r"datasets.load.path: must be a path; got 3 \(int\)"):
        rl.datasets.load(3)  # type: ignore[arg-type]
    with pytest.raises(ReplayBufferError, match="from_minari: "):
        rl.datasets.load(tmp_path / "nothing")
    npz(tmp_path / "log.npz")
    with pytest.raises(SpaceError):
        rl.datasets.load(tmp_path / "log.npz", action_space=rl.make_vec("Pendulum-v1", 1).single_action_space)
