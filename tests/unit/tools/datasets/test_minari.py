"""Minari data sets through Minari: written by its own functions and read by us, and written by us and read by both."""

import json
import logging
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rltrainer.data import ReplayBuffer
from rltrainer.errors import ParamsError, ReplayBufferError, SpaceError
from rltrainer.tools.datasets import from_minari, to_minari
from tests.unit.data.reference import OBS, Cell, World, add_step, as_obs, found, make_buffer, make_rollout
from tests.unit.tools.refusals import error_text, refuses

minari = pytest.importorskip("minari")
h5py = pytest.importorskip("h5py")
pytest.importorskip("pyarrow")
from minari.data_collector import EpisodeBuffer  # noqa: E402 - after it is known to be there


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def episode(obs: Any, last: str, **changes: Any) -> Any:
    """Return an episode with rewards 1, 2, 4, ...; `last` says which flag ends it."""
    size = len(next(iter(obs.values())) if isinstance(obs, dict) else obs) - 1
    ends = np.arange(size) == size - 1
    columns = {
        "observations": obs, "actions": np.arange(size) % 3, "rewards": 2.0 ** np.arange(size), "infos": {},
        "terminations": ends & (last == "terminated"), "truncations": ends & (last == "truncated"),
    }  # fmt: skip
    return EpisodeBuffer(**columns | changes)


def created(episodes: list[Any], space: gym.Space[Any] = OBS, name: str = "test/log-v0", **options: Any) -> Path:
    spaces = {"observation_space": space, "action_space": gym.spaces.Discrete(3)}
    with pytest.warns(UserWarning, match="is set to None|env_spec is None"):
        return Path(minari.create_dataset_from_buffers(name, episodes, **spaces, **options).spec.data_path)


LOG = [
    episode(as_obs([0, 1, 2]), "terminated"),
    episode(as_obs([10, 11, 12]), "truncated"),
    episode(as_obs([12, 13]), "nothing"),  # begins where the one before ended, as a small world may
    episode(as_obs([30, 31]), "truncated"),
]
HELD = {
    0: (0, 1.0, 1.0, False, False, 0.5), 1: (1, 2.0, 2.0, True, False, 0.0), 10: (0, 1.0, 11.0, False, False, 0.5),
    11: (1, 2.0, 12.0, False, True, 0.5), 12: (0, 1.0, 13.0, False, True, 0.5), 30: (0, 1.0, 31.0, False, True, 0.5),
}  # fmt: skip


@pytest.mark.parametrize("data_format", ["hdf5", "arrow", "parquet"])
def test_every_transition_of_every_format(
    data_format: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = created(LOG, data_format=data_format)
    buffer = from_minari("test/log-v0", seed=3)
    assert found(buffer.sample(300, gamma=0.5)) == HELD
    assert (buffer.observation_space, buffer.action_space) == (OBS, gym.spaces.Discrete(3))
    # Windows of two steps stay within their episodes.
    two = found(buffer.sample(300, n_step=2, gamma=0.5))
    assert (two[0], two[10], two[11]) == ((0, 2.0, 2.0, True, False, 0.0), (0, 2.0, 12.0, False, True, 0.25), HELD[11])
    assert buffer.describe().num_episodes == 4
    assert not caplog.records
    monkeypatch.chdir(path.parent)
    for folder in (path, path.parent, str(path), "data"):
        assert len(from_minari(folder)) == 6


def test_dicts_and_tuples_are_trees() -> None:
    space = gym.spaces.Dict({"a": OBS, "b": gym.spaces.Tuple([gym.spaces.Discrete(9), gym.spaces.Box(0, 1, ())])})
    obs = {"a": as_obs([0, 1, 2]), "b": (np.array([3, 4, 5]), np.array([0.0, 0.5, 1.0], np.float32))}
    created([episode(obs, "terminated")], space)
    buffer = from_minari("test/log-v0")
    assert buffer.observation_space == space
    batch = buffer.sample(50)
    rows = set(zip(batch.obs["b"][0].tolist(), batch.next_obs["b"][1].tolist(), strict=True))
    assert rows == {(3, 0.5), (4, 1.0)}


def test_images_as_they_are_and_as_jpeg() -> None:
    space, image = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8), np.full((3, 8, 8, 3), 100, np.uint8)
    for name, jpeg in (("jpeg-v0", True), ("raw-v0", False)):
        created([episode(image, "terminated")], space, name, jpeg_encoding=jpeg)
        assert from_minari(name).sample(4).obs.float().sub(100).abs().max() <= 2
    assert (from_minari("raw-v0").sample(4).obs == 100).all()


def test_other_spaces_are_given_and_leave_texts_out() -> None:
    created(LOG)
    wide = gym.spaces.Box(-99, 99, (2,), np.float32)
    buffer = from_minari("test/log-v0", observation_space=wide, action_space=gym.spaces.Discrete(7))
    assert (buffer.observation_space, buffer.action_space) == (wide, gym.spaces.Discrete(7))
    text = r"from_minari: .*data: ReplayBuffer.from_arrays: actions: must lie in Discrete\(1"
    refuses(SpaceError, text, from_minari, "test/log-v0", action_space=gym.spaces.Discrete(1))
    space = gym.spaces.Dict({"a": OBS, "mission": gym.spaces.Text(9)})
    created([episode({"a": as_obs([0, 1, 2]), "mission": ["go"] * 3}, "terminated")], space, "texts-v0")
    refuses(SpaceError, "from_minari: .*: unsupported space Text", from_minari, "texts-v0")
    buffer = from_minari("texts-v0", observation_space=gym.spaces.Dict({"a": OBS}))
    assert sorted(buffer.sample(20).obs["a"][:, 0].unique().tolist()) == [0, 1]


def test_a_round_trip() -> None:
    world, buffer = World(5, 3, 0.3), make_buffer(600, 3)
    for _ in range(15):
        buffer.add_rollout(make_rollout([world.step() for _ in range(6)]))
    texts = {"algorithm_name": "random", "description": "a world", "code_permalink": "x"}
    folder = to_minari(buffer, "round/trip-v0", env="CartPole-v1", author="me", author_email="a@b.c", **texts)
    again = from_minari("round/trip-v0")
    assert folder == Path(minari.load_dataset("round/trip-v0").spec.data_path).parent
    for n_step in (1, 3):
        mine, its = (found(each.sample(60 * len(buffer), n_step=n_step)) for each in (buffer, again))
        for obs, row in mine.items():  # what is not finished is truncated
            assert its[obs][:4] + its[obs][5:] == row[:4] + row[5:]
            assert its[obs][4] >= row[4]
    whole, read = buffer.describe(), again.describe()
    assert (read.num_transitions, read.num_unfinished) == (whole.num_transitions, 0)
    assert read.num_episodes == whole.num_episodes + whole.num_unfinished
    # And so says Minari.
    data = minari.load_dataset("round/trip-v0")
    assert (data.total_episodes, data.total_steps) == (read.num_episodes, read.num_transitions)
    assert [len(each.observations) - len(each.rewards) for each in data] == [1] * read.num_episodes
    assert data.recover_environment().spec.id == "CartPole-v1"
    expected: dict[str, Any] = {**texts, "author": {"me"}, "author_email": {"a@b.c"}}
    assert {name: data.storage.metadata[name] for name in expected} == expected


def test_a_round_trip_of_trees_of_other_dtypes(caplog: pytest.LogCaptureFixture) -> None:
    space = gym.spaces.Dict(
        {"image": gym.spaces.Box(0, 255, (8, 8, 3), np.uint8), "x": gym.spaces.Box(-1, 1, (2,), np.float64)}
    )
    actions = gym.spaces.Box(-2, 2, (1,), np.float32)
    rng = np.random.default_rng(0)
    data = {"image": rng.integers(0, 256, (9, 8, 8, 3), np.uint8), "x": rng.uniform(-1, 1, (9, 2))}
    buffer = ReplayBuffer.from_arrays(
        observations=data, actions=rng.uniform(-2, 2, (9, 1)), rewards=rng.normal(size=9),
        terminations=np.isin(np.arange(9), [3, 8]), truncations=np.zeros(9, bool),
        observation_space=space, action_space=actions,
    )  # fmt: skip
    to_minari(buffer, "tree-v0")
    again = from_minari("tree-v0")
    assert (again.observation_space, again.action_space) == (space, actions)
    ([mine], [its]) = (each.state_dict()["rows"] for each in (buffer, again))
    assert mine["data"].keys() == its["data"].keys()
    for name, column in mine["data"].items():
        assert len(column) == 9
        assert torch.equal(column, its["data"][name]), name
    assert not caplog.records


def test_stacked_frames_are_written_as_stacks() -> None:
    space = gym.spaces.Box(0, 255, (2, 1), np.uint8)
    buffer = ReplayBuffer(9, space, gym.spaces.Discrete(2), frame_stack=2)
    no = np.zeros(1, bool)
    for i, (obs, after) in enumerate([([7, 7], [7, 8]), ([7, 8], [8, 9])]):
        stacks = (np.array([[[x] for x in pair]], np.uint8) for pair in (obs, after))
        first, second = stacks
        buffer.add(first, np.zeros(1, int), np.zeros(1), second, no | (i == 1), no)
    to_minari(buffer, "stack-v0")
    batch = from_minari("stack-v0").sample(30)
    assert {tuple(x) for x in batch.next_obs.flatten(1).tolist()} == {(7, 8), (8, 9)}


def test_what_lost_its_beginning_is_not_written(caplog: pytest.LogCaptureFixture) -> None:
    buffer = make_buffer(2)
    for i in range(3):
        add_step(buffer, None, [Cell(i, 0, 1.0, i + 1, i == 1, False)])
    with caplog.at_level(logging.WARNING, logger="rltrainer"):
        folder = to_minari(buffer, "log-v0")
    text = "1 of 2 transitions belong to episodes whose beginning was overwritten, and are left out"
    assert [record.message for record in caplog.records] == [f"to_minari: {folder}: {text}"]
    assert list(found(from_minari("log-v0").sample(9))) == [2]


def test_writing_that_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = make_buffer(3)
    text = "to_minari.buffer: must hold an episode from its beginning; got none"
    refuses(ReplayBufferError, text, to_minari, buffer, "log-v0")
    add_step(buffer, None, [Cell(0, 0, 1.0, 1, True, False)])
    for name in ("log", "a b-v0"):
        text = "to_minari.name: must be the name of a data set with its version, such as"
        refuses(ParamsError, text, to_minari, buffer, name)
    refuses(ParamsError, "to_minari.name: must be a text that is not empty", to_minari, buffer, "")
    text = r"to_minari.buffer: must be a ReplayBuffer; got \[1\] \(list\)"
    refuses(ReplayBufferError, text, to_minari, [1], "log-v0")
    with monkeypatch.context() as relative:
        relative.chdir(tmp_path)
        relative.setenv("MINARI_DATASETS_PATH", "here")
        text = "MINARI_DATASETS_PATH: expected an absolute path, found here/log-v0"
        refuses(ReplayBufferError, text, to_minari, buffer, "log-v0")
    folder = to_minari(buffer, "log-v0")
    said = error_text(ReplayBufferError, to_minari, buffer, "log-v0")
    assert said == f"to_minari: {folder}: expected nothing there, found a data set. Raise the version."
    # Nothing half is left behind.
    text = r"to_minari: .*log-v1: could not be written \(NameNotFound"
    refuses(ReplayBufferError, text, to_minari, buffer, "log-v1", env="NoSuchEnv-v0")
    assert not (tmp_path / "minari" / "log-v1").exists()
    said = error_text(ReplayBufferError, from_minari, "test/other-v0")
    text = f"from_minari: test/other-v0: expected a Minari data set there or in {tmp_path / 'minari'}, found none."
    assert said.startswith(f"{text} `minari.download_dataset(name)` downloads")


def change(path: Path, **changes: Any) -> None:
    metadata = json.loads((path / "metadata.json").read_text()) | changes
    text = json.dumps({key: value for key, value in metadata.items() if value is not None})
    (path / "metadata.json").write_text(text)


NAMED = {"id": "Canary-v0", "entry_point": "tests.no_such_canary:Env", "kwargs": {}, "additional_wrappers": []}
CANARY = json.dumps(NAMED)
HUGE = json.dumps({"type": "Box", "dtype": "float32", "shape": [10**9, 9], "low": -1.0, "high": 1.0})


@pytest.mark.parametrize(("changes", "error", "text"), [
    # Minari itself would make the env that the file names, and with that import what it names.
    ({"action_space": None, "env_spec": CANARY}, ReplayBufferError,
     "metadata.json: expected observation_space and action_space as texts, found ["),
    ({"total_episodes": 10**12}, ReplayBufferError, "metadata.json: total_episodes: expected a number of what "),
    ({"total_steps": "9"}, ReplayBufferError, "metadata.json: total_steps: expected a number of what "),
    ({"total_episodes": 5}, ReplayBufferError, "expected a Minari data set, found KeyError: "),
    ({"observation_space": HUGE}, SpaceError, "a Box of shape (1000000000, 9) in the file: all must hold at most "),
    ({"observation_space": "{"}, ReplayBufferError, "expected metadata of Minari, found JSONDecodeError: 'Expecting"),
    ({"data_format": "pickle"}, ReplayBufferError, "expected a Minari data set, found KeyError: "),
    ({"minari_version": "99.0.0"}, ReplayBufferError, "expected a Minari data set, found ValueError: "),
])  # fmt: skip
def test_metadata_that_are_refused(changes: dict[str, Any], error: type[Exception], text: str) -> None:
    path = created(LOG)
    change(path, **changes)
    assert error_text(error, from_minari, path).startswith(f"from_minari: {path}: {text}")


def test_files_that_refer_to_others_or_are_damaged(tmp_path: Path) -> None:
    path = created(LOG)
    main, name = path / "main_data.hdf5", "episode_1/rewards"
    whole = main.read_bytes()
    (tmp_path / "other.hdf5").write_bytes(whole)
    for size, text in (
        (None, f"main_data.hdf5: member '{name}': expected data, found a link$"),
        (10**12, "expected columns of at most .* bytes in a file of .*, found 8,000,000,0"),
        (1, "episode 1: expected steps, and one observation more than these; found 1 and"),
    ):
        main.write_bytes(whole)
        with h5py.File(main, "a") as file:
            if size is None:
                del file[name]
                file[name] = h5py.ExternalLink(str(tmp_path / "other.hdf5"), name)
            else:
                file[name].resize((size,))
        refuses(ReplayBufferError, f"^from_minari: {path}: {text}", from_minari, path)
    main.write_bytes(b"text")
    refuses(ReplayBufferError, "main_data.hdf5: expected an HDF5 file, found OSError", from_minari, path)
    (path / "metadata.json").write_text("[1]")
    refuses(ReplayBufferError, r"metadata.json: expected an object, found \[1\]", from_minari, path)
