"""LeRobot's folders of versions 2.1 and 3.0, laid out as its own writer lays them out."""

import json
import logging
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rltrainer.errors import ParamsError, ReplayBufferError
from rltrainer.tools.datasets import from_lerobot
from tests.unit.data.reference import as_obs, found
from tests.unit.tools.refusals import error_text, refuses

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

# Frames 0 1 2 of a success, 10 11 12 of a failure; the last frame of each is done.
FRAMES = np.array([0, 1, 2, 10, 11, 12])
COLUMNS: dict[str, Any] = {
    "observation.state": as_obs(FRAMES), "action": np.linspace(-3, 3, 6, dtype=np.float32).reshape(6, 1),
    "timestamp": np.arange(6, dtype=np.float32), "frame_index": np.array([0, 1, 2, 0, 1, 2]),
    "episode_index": np.array([0, 0, 0, 1, 1, 1]), "index": np.arange(6), "task_index": np.zeros(6, np.int64),
    "next.reward": 2.0 ** np.arange(6, dtype=np.float32), "next.done": np.isin(FRAMES, [2, 12]),
    "next.success": FRAMES == 2,
}  # fmt: skip


def written(folder: Path, version: str = "v2.1", **changes: Any) -> Path:
    """Write a data set; `changes` replace columns, underscores in the place of dots."""
    columns = {name: changes.get(name.replace(".", "_"), column) for name, column in COLUMNS.items()}
    columns = {name: np.asarray(column) for name, column in columns.items() if column is not None}
    features: dict[str, Any] = {
        name: {"dtype": str(column.dtype), "shape": list(column.shape[1:]) or [1], "names": None}
        for name, column in columns.items()
    }
    names = ["height", "width", "channels"]
    features["observation.images.top"] = {"dtype": "video", "shape": [96, 96, 3], "names": names}
    per_file = {
        "v2.1": ("data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet", "data/chunk-000/episode_{:06d}"),
        "v3.0": ("data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet", "data/chunk-000/file-{:03d}"),
    }[version]
    info = {"codebase_version": version, "fps": 10, "total_episodes": 2, "total_frames": len(columns["index"])}
    (folder / "meta").mkdir(parents=True, exist_ok=True)
    (folder / "data" / "chunk-000").mkdir(parents=True, exist_ok=True)
    (folder / "meta" / "info.json").write_text(json.dumps(info | {"data_path": per_file[0], "features": features}))
    episodes = columns["episode_index"]
    groups = [episodes == i for i in (0, 1)] if version == "v2.1" else [np.ones(len(episodes), bool)]
    for i, rows in enumerate(groups):
        table = pa.table({name: list(column[rows]) for name, column in columns.items()})
        parquet.write_table(table, folder / f"{per_file[1].format(i)}.parquet")
    return folder


HELD = {
    0: (-3.0, 1.0, 1.0, False, False, 0.5),
    1: (pytest.approx(-1.8), 2.0, 2.0, False, False, 0.5),
    2: (pytest.approx(-0.6), 4.0, 2.0, True, False, 0.0),
    10: (pytest.approx(0.6), 8.0, 11.0, False, False, 0.5),
    11: (pytest.approx(1.8), 16.0, 12.0, False, True, 0.5),
}


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_frames_are_transitions(tmp_path: Path, version: str, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path, version)
    with caplog.at_level(logging.WARNING, logger="rltrainer"):
        buffer = from_lerobot(path, seed=1)
    batch = buffer.sample(200, gamma=0.5)
    assert batch.action.shape == (200, 1)
    batch.action = batch.action.squeeze(1)
    rows = found(batch)
    assert rows[2][2] in (2.0, 10.0)  # a terminal frame's successor is any
    rows[2] = (*rows[2][:2], 2.0, *rows[2][3:])
    assert rows == HELD
    assert buffer.observation_space == gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    assert buffer.action_space == gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    assert (buffer.describe().num_terminated, buffer.describe().num_truncated) == (1, 1)
    text = "1 of 6 transitions have no known successor and are left out; their episodes end before them"
    assert [record.message for record in caplog.records] == [f"from_lerobot: {path}: {text}"]


def test_frames_without_successes_dones_or_rewards(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told = from_lerobot(written(tmp_path, next_success=None)).describe()
    assert (told.num_terminated, told.num_truncated, told.num_transitions) == (2, 0, 6)
    told = from_lerobot(written(tmp_path, next_success=None, next_done=None)).describe()
    assert (told.num_terminated, told.num_truncated, told.num_transitions) == (0, 2, 4)
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="rltrainer"):
        buffer = from_lerobot(written(tmp_path, next_reward=None))
    assert buffer.sample(20).reward.abs().sum() == 0
    assert caplog.records[0].message == f"from_lerobot: {tmp_path}: there is no column 'next.reward': rewards are 0"


def test_frames_in_any_order_and_with_gaps(tmp_path: Path) -> None:
    order = np.array([5, 0, 3, 2, 4, 1])
    shuffled = {name.replace(".", "_"): column[order] for name, column in COLUMNS.items()}
    assert len(from_lerobot(written(tmp_path / "a", "v3.0", **shuffled))) == 5
    # Frame 1 of the second episode is missing: frame 0 has no successor, and frame 2 no beginning.
    rows = np.array([0, 1, 2, 3, 5])
    gap = {name.replace(".", "_"): column[rows] for name, column in COLUMNS.items()}
    buffer = from_lerobot(written(tmp_path / "b", "v3.0", **gap))
    assert sorted(buffer.sample(60).obs[:, 0].unique().tolist()) == [0, 1, 2]
    joined = {name.replace(".", "_"): np.concatenate([column, column[3:]]) for name, column in COLUMNS.items()}
    text = r"expected each frame once, found episode_index \d+ with frame_index 0 twice\. Read each data set by itself"
    with pytest.raises(ReplayBufferError, match=text):
        from_lerobot(written(tmp_path / "c", "v3.0", **joined))


def test_several_features_are_a_dict(tmp_path: Path) -> None:
    keys = ["observation.state", "timestamp"]
    buffer = from_lerobot(written(tmp_path), keys=keys)
    space = buffer.observation_space
    assert isinstance(space, gym.spaces.Dict)
    assert {key: part.shape for key, part in space.items()} == {"observation.state": (2,), "timestamp": (1,)}
    batch = buffer.sample(50)
    assert set(batch.obs["timestamp"].flatten().tolist()) == {0.0, 1.0, 2.0, 3.0, 4.0}
    bounded = from_lerobot(tmp_path, keys=["timestamp"], action_space=gym.spaces.Box(-3, 3, (1,)))
    assert bounded.action_space == gym.spaces.Box(-3, 3, (1,))


@pytest.mark.parametrize(("keys", "error", "text"), [
    (["observation.images.top"], ReplayBufferError,
     "feature 'observation.images.top': expected numbers, found video; keys that"),
    (["state"], ReplayBufferError,
     "feature 'state': expected a dtype and a shape, found None; there are ['action', 'episode_in"),
    *((keys, ParamsError, "from_lerobot.keys: must be a sequence of names of features, such as")
      for keys in ("observation.state", [], [3])),
])  # fmt: skip
def test_keys_that_are_refused(keys: Any, error: type[Exception], text: str, tmp_path: Path) -> None:
    origin = f"from_lerobot: {tmp_path}: " if error is ReplayBufferError else ""
    assert error_text(error, from_lerobot, written(tmp_path), keys=keys).startswith(origin + text)


def test_folders_that_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    info = path / "meta" / "info.json"
    text = info.read_text()
    for damaged, expected in (
        (text.replace('"shape": [2]', '"shape": [3]'), "expected columns of the shapes in meta/info.json, found Value"),
        ("[]", r"meta/info.json: expected an object with features, found \[\]"),
        ("{", "meta/info.json: expected JSON, found JSONDecodeError"),
    ):
        info.write_text(damaged)
        refuses(ReplayBufferError, expected, from_lerobot, path)
    info.unlink()
    refuses(ReplayBufferError, "meta/info.json: there is no such file", from_lerobot, path)
    info.write_text(text)
    for file in (path / "data").rglob("*.parquet"):
        file.unlink()
    refuses(ReplayBufferError, "from_lerobot: .*: expected Parquet files, found none in data", from_lerobot, path)
    parquet.write_table(pa.table({"action": [[1.0]]}), path / "data" / "x.parquet")
    refuses(ReplayBufferError, r"expected the column 'observation.state', found \['action'\]", from_lerobot, path)


def test_the_paths_in_the_file_are_not_followed(tmp_path: Path) -> None:
    path = written(tmp_path)
    info = json.loads((path / "meta" / "info.json").read_text())
    (path / "meta" / "info.json").write_text(json.dumps(info | {"data_path": "../../{chunk_index.__class__}"}))
    assert len(from_lerobot(path)) == 5
