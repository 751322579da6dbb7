"""Parquet files, written by pyarrow: lists, structs, folders, and what no numbers can be made of."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rltrainer.errors import ReplayBufferError
from rltrainer.tools.datasets import from_parquet
from tests.unit.tools.datasets.logged import ROWS, assert_is_the_log, parquet
from tests.unit.tools.refusals import error_text, refuses

pa = pytest.importorskip("pyarrow")
module = pytest.importorskip("pyarrow.parquet")


def saved(folder: Path, **changes: Any) -> Path:
    return parquet(folder / "log.parquet", **changes)


@pytest.mark.parametrize("kind", [pa.list_(pa.float64(), 2), pa.large_list(pa.float32()), pa.list_(pa.float32())])
def test_lists_of_every_kind(tmp_path: Path, kind: pa.DataType) -> None:
    assert_is_the_log(from_parquet(saved(tmp_path, observations=pa.array(list(ROWS["observations"]), kind))))


def test_structs_are_dicts(tmp_path: Path) -> None:
    parts = [{"a": list(map(float, row)), "b": {"c": i}} for i, row in enumerate(ROWS["observations"])]
    buffer = from_parquet(saved(tmp_path, observations=pa.array(parts)))
    assert buffer.observation_space == gym.spaces.Dict(
        {"a": gym.spaces.Box(-np.inf, np.inf, (2,)), "b": gym.spaces.Dict({"c": gym.spaces.Discrete(8)})}
    )
    batch = buffer.sample(200)
    pairs = set(zip(batch.obs["b"]["c"].tolist(), batch.next_obs["b"]["c"].tolist(), strict=True))
    assert {pair for pair in pairs if pair[0] != 2} == {(0, 1), (1, 2), (3, 4), (4, 5), (6, 7)}


def test_images_nested_or_flat(tmp_path: Path) -> None:
    image = np.arange(8 * 12, dtype=np.uint8).reshape(8, 2, 2, 3)
    kind = pa.list_(pa.list_(pa.list_(pa.uint8())))
    nested = from_parquet(saved(tmp_path, observations=pa.array(image.tolist(), kind)))
    assert nested.observation_space == gym.spaces.Box(0, 255, (2, 2, 3), np.uint8)
    flat = saved(tmp_path, observations=pa.array(list(image.reshape(8, 12))))
    found = from_parquet(flat, observation_space=nested.observation_space, seed=0).sample(50).obs
    expected = image.reshape(8, 12)[[0, 1, 2, 3, 4, 6]].tolist()
    assert set(map(tuple, found.flatten(1).tolist())) == set(map(tuple, expected))


def test_a_folder_in_the_order_of_names(tmp_path: Path) -> None:
    for name, rows in (("b/2.parquet", slice(5, 8)), ("a.parquet", slice(0, 5))):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        parquet(tmp_path / name, **{key: x[rows] for key, x in ROWS.items()}, note=None)
    assert_is_the_log(from_parquet(tmp_path))
    parquet(tmp_path / "c.parquet", observations=np.zeros((8, 3)))
    text = r"c.parquet: expected columns as in a.parquet: \{'actions': \(\), 'obs"
    refuses(ReplayBufferError, text, from_parquet, tmp_path)


@pytest.mark.parametrize(("changes", "text"), [
    ({"rewards": pa.array([1.0, None] * 4)}, "column 'rewards': expected numbers, found 4 missing"),
    ({"observations": pa.array([[1.0, None]] * 8)}, "column 'observations': expected numbers, found 8 missing"),
    ({"observations": pa.array([[1.0], [1.0, 2.0]] * 4)},
     "column 'observations': expected lists of one length, found 1 to 2"),
    ({"rewards": pa.array(["a"] * 8)}, "column 'rewards': expected numbers, found string"),
    ({"observations": pa.array([[b"a"]] * 8)}, "column 'observations': expected numbers, found binary"),
    ({"rewards": None}, "expected the member 'rewards', found ['actions', 'observations', 'terminals', 'timeouts']"),
])  # fmt: skip
def test_columns_that_are_refused(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    saved(tmp_path, **changes)
    said = error_text(ReplayBufferError, from_parquet, tmp_path / "log.parquet")
    assert said.startswith(f"from_parquet: {tmp_path / 'log.parquet'}: {text}")


def test_a_run_that_stands_for_too_much_is_not_unpacked(tmp_path: Path) -> None:
    size = 20_000_000  # one run in each page says that all are the same
    table = pa.table({"rewards": pa.array(np.zeros(size))})
    module.write_table(table, tmp_path / "log.parquet", compression="zstd", row_group_size=size)
    assert (tmp_path / "log.parquet").stat().st_size < 100_000
    text = "expected columns of at most .* bytes in a file of .*, found 160,000,000"
    refuses(ReplayBufferError, text, from_parquet, tmp_path / "log.parquet")
