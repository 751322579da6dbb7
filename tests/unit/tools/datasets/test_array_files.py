"""`.npz` files and HDF5 files in D4RL's layout: columns, spaces, claims of size, links to other files."""

import io
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rltrainer.errors import ParamsError, ReplayBufferError, SpaceError
from rltrainer.tools.datasets import from_hdf5, from_npz
from tests.unit.tools.datasets.logged import AFTER, ROWS, assert_is_the_log, hdf5, npz
from tests.unit.tools.refusals import error_text, refuses

h5py = pytest.importorskip("h5py")
NEW_NAMES = {"terminals": "terminations", "timeouts": "truncations"}


def saved(folder: Path, **changes: Any) -> Path:
    return npz(folder / "log.npz", **changes)


def test_compressed_with_our_names_and_other_forms(tmp_path: Path) -> None:
    columns = {NEW_NAMES.get(name, name): x for name, x in ROWS.items()}
    columns["rewards"] = columns["rewards"].reshape(8, 1).astype(">f8")
    columns["actions"] = columns["actions"].reshape(8, 1).astype(np.int8)
    columns["terminations"] = columns["terminations"].reshape(8, 1).astype(np.float32)
    columns["observations"] = np.asfortranarray(columns["observations"])
    np.savez_compressed(tmp_path / "log.npz", **columns)
    assert_is_the_log(from_npz(tmp_path / "log.npz"))
    assert_is_the_log(from_npz(str(tmp_path / "log.npz"), seed=1, device="cpu"))


def test_spaces_are_believed_or_given(tmp_path: Path) -> None:
    actions = np.linspace(-1, 1, 8).reshape(8, 1)
    assert from_npz(saved(tmp_path, actions=actions)).action_space == gym.spaces.Box(-1, 1, (1,), np.float32)
    wide = from_npz(saved(tmp_path, actions=2 * actions))
    assert wide.action_space == gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    given = from_npz(saved(tmp_path, actions=2 * actions), action_space=gym.spaces.Box(-2, 2, (1,)))
    assert given.action_space == gym.spaces.Box(-2, 2, (1,))
    image = np.zeros((8, 12), np.uint8)
    assert from_npz(saved(tmp_path, observations=image)).observation_space == gym.spaces.Box(0, 255, (12,), np.uint8)
    shape = gym.spaces.Box(0, 255, (2, 2, 3), np.uint8)
    assert from_npz(saved(tmp_path, observations=image), observation_space=shape).sample(2).obs.shape == (2, 2, 2, 3)


def test_ends_of_episodes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # The end of the episode of 12 is unknown: its trajectory ends, as 13 does not follow in the file.
    found = from_npz(saved(tmp_path, next_observations=AFTER, timeouts=None)).describe()
    assert (found.num_episodes, found.num_unfinished) == (1, 2)
    assert len(from_npz(saved(tmp_path, terminals=np.ones(8), timeouts=np.zeros(8)))) == 8
    assert not caplog.records
    found = from_npz(saved(tmp_path, timeouts=ROWS["terminals"])).describe()  # both at once: terminal
    assert (found.num_terminated, found.num_truncated) == (1, 0)
    # Two time limits one after the other: of the second episode nothing is left, and the first keeps its end.
    assert from_npz(saved(tmp_path, timeouts=np.isin(np.arange(8), [4, 5]))).describe().num_truncated == 1


@pytest.mark.parametrize(("changes", "error", "text"), [
    ({"actions": None}, ReplayBufferError, "expected the member 'actions', found ['observations', 'rewards', 'te"),
    ({"timeouts": None}, ReplayBufferError,
     "expected the member 'truncations' or 'timeouts', found ['actions', 'observations', 'rewards', 'terminals']"
     ". Where no episode has a time limit, it is an array of zeros."),
    ({"rewards": np.zeros(7)}, ReplayBufferError, "rewards: expected 8 rows, as observations have, found shape (7,)"),
    ({"rewards": np.float64(3)}, ReplayBufferError, "rewards: expected 8 rows, as observations have, found shape ()"),
    ({"terminals": np.full(8, 2)}, ReplayBufferError, "terminations: expected True or False, or 0 and 1; found 2"),
    ({"timeouts": np.full(8, np.nan)}, ReplayBufferError, "truncations: expected True or False, or 0 and 1; found n"),
    ({"timeouts": np.ones(8), "terminals": np.zeros(8)}, ReplayBufferError, "expected rows that others follow, or "),
    ({"rewards": np.full(8, np.nan)}, ReplayBufferError, "ReplayBuffer.from_arrays: rewards: must be finite; row 0"),
    ({"rewards": np.array(list("abcdefgh"))}, ReplayBufferError, "member 'rewards': expected numbers, found <U1"),
    ({"rewards": np.array([None] * 8)}, ReplayBufferError, "member 'rewards': expected numbers, found object"),
    ({"actions": np.full(8, 2**63 - 1)}, SpaceError, "actions: expected integers below 2**63 - 1, found 922337203685"),
    ({"actions": np.full(8, 2**64 - 1)}, SpaceError, "actions: expected integers below 2**63 - 1, found 184467440737"),
    ({"actions": np.full(8, -1)}, SpaceError, "actions: expected floats or single integers from 0 on, found int64 of"),
    ({"actions": np.zeros((8, 2), int)}, SpaceError,
     "actions: expected floats or single integers from 0 on, found int64 of shape (8, 2). Pass action_space."),
    ({"observations": np.float64(3)}, ReplayBufferError, "observations: expected 0 rows, as observations have, fo"),
    ({"observations": np.zeros((8, 2), int)}, SpaceError,
     "observations: expected floats or single integers from 0 on, found int64 of shape (8, 2). Pass obser"),
    ({"observations": np.zeros((0, 2))}, ReplayBufferError, "actions: expected 0 rows, as observations have, found s"),
])  # fmt: skip
def test_rows_that_are_refused(tmp_path: Path, changes: dict[str, Any], error: type[Exception], text: str) -> None:
    path = saved(tmp_path, **changes)
    assert error_text(error, from_npz, path).startswith(f"from_npz: {path}: {text}")


@pytest.mark.parametrize(("options", "error", "text"), [
    ({"action_space": gym.spaces.Discrete(2)}, SpaceError,
     "ReplayBuffer.from_arrays: actions: must lie in Discrete(2); row 2 is 2"),
    ({"observation_space": gym.spaces.Box(-1, 1, (3,))}, SpaceError,
     "observations: expected float32 of shape (M, 3), got float32 of shape"),
    ({"observation_space": gym.spaces.Dict({"a": gym.spaces.Discrete(2)})}, ReplayBufferError,
     "observations: expected a dict with the keys ['a'], got a ndarray"),
    ({"action_space": "Discrete"}, ParamsError, "dataset.action_space: must be a Space or None; got 'Discrete' (str)"),
    ({"path": 3}, ParamsError, "from_npz.path: must be a path; got 3 (int)"),
])  # fmt: skip
def test_other_spaces_than_given(options: dict[str, Any], error: type[Exception], text: str, tmp_path: Path) -> None:
    assert text in error_text(error, from_npz, **{"path": saved(tmp_path)} | options)


def array_bytes(header: str, data: bytes = b"") -> bytes:
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def zipped(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path / "log.npz", "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)
    return path / "log.npz"


@pytest.mark.parametrize(("header", "text"), [
    ("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 2)}",
     "member 'observations': expected 8,000,000,000,000 bytes for float32 of shape (1000000000000, 2), found 8"),
    ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -2)}", "member 'observations': expected 8 bytes for fl"),
    ("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "member 'observations': expected numbers, found object"),
    ("{'descr': '<f4', 'fortran_order': False, 'shape': __import__('os')}", "expected a .npz file, found ValueError"),
])  # fmt: skip
def test_headers_that_claim_too_much(tmp_path: Path, header: str, text: str) -> None:
    path = zipped(tmp_path, observations=array_bytes(header, b"01234567"))
    assert error_text(ReplayBufferError, from_npz, path).startswith(f"from_npz: {path}: {text}")


def test_members_that_are_bombs_damaged_or_there_twice(tmp_path: Path) -> None:
    path = tmp_path / "log.npz"
    bomb = zipped(tmp_path, observations=b"\0" * 30_000_000).read_bytes()
    at = bomb.index(b"PK\x01\x02") + 24  # its central directory says 3 GB
    path.write_bytes(bomb[:at] + (3_000_000_000).to_bytes(4, "little") + bomb[at + 4 :])
    text = "expected columns of at most .* bytes in a file of .*, found 3,000,000,"
    refuses(ReplayBufferError, text, from_npz, path)
    whole = saved(tmp_path).read_bytes()
    at = whole.index(b"observations") + 200
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    refuses(ReplayBufferError, "expected a .npz file, found BadZipFile: \"Bad CRC-32 for file 'obs", from_npz, path)
    np.save(data := io.BytesIO(), ROWS["rewards"])
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(saved(tmp_path), "a") as file:
        file.writestr("rewards.npy", data.getvalue())
    refuses(ReplayBufferError, "member 'rewards': expected one, found two", from_npz, path)


def test_a_member_takes_its_memory_once(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "log.npz", observations=np.zeros(5_000_000))
    tracemalloc.start()
    refuses(ReplayBufferError, "expected the member 'actions'", from_npz, tmp_path / "log.npz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6


def external(file: Any, folder: Path) -> None:
    (folder / "secret").write_bytes(bytes(64))
    file.create_dataset("rewards", (8,), "f8", external=[(str(folder / "secret"), 0, 64)])


def virtual(file: Any, folder: Path) -> None:
    hdf5(folder / "other.hdf5")
    layout = h5py.VirtualLayout((8,), "f8")
    layout[:] = h5py.VirtualSource(str(folder / "other.hdf5"), "rewards", (8,))
    file.create_virtual_dataset("rewards", layout)


def external_link(file: Any, folder: Path) -> None:
    hdf5(folder / "other.hdf5")
    file["rewards"] = h5py.ExternalLink("other.hdf5", "rewards")


def soft_link(file: Any, folder: Path) -> None:
    file["rewards"] = h5py.SoftLink("/infos/qpos")


def plugin(file: Any, folder: Path) -> None:
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_chunk((8,))
    plan.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, ())  # Zstandard, which HDF5 does not bring
    h5py.h5d.create(file.id, b"rewards", h5py.h5t.NATIVE_DOUBLE, h5py.h5s.create_simple((8,)), plan)


def cycle(file: Any, folder: Path) -> None:
    group = file.create_group("observations/x")
    group["again"] = group


def value(column: Any) -> Any:
    return lambda file, folder: file.__setitem__("rewards", column)


NUMBERS, IN_THIS_FILE = "'rewards': expected numbers, found", "'rewards': expected data in this file, found a reference"


@pytest.mark.parametrize(("write", "text"), [
    (external, IN_THIS_FILE), (virtual, IN_THIS_FILE),
    (external_link, "'rewards': expected data, found a link"), (soft_link, "'rewards': expected data, found a link"),
    (plugin, "'rewards': expected a compression that HDF5 brings, found the filters"),
    (cycle, "'observations/x/again': expected data of its own, found a second name"),
    (value(np.array([b"a"] * 8, object)), f"{NUMBERS} object"),
    (value(h5py.Empty("f4")), f"{NUMBERS} a null set"),
    (value(np.zeros(8, [("x", "f4")])), f"{NUMBERS} [('x', '<f4')]"), (value(np.dtype("f8")), f"{NUMBERS} Datatype"),
])  # fmt: skip
def test_hdf5_that_refers_elsewhere_or_holds_no_numbers(write: Any, text: str, tmp_path: Path) -> None:
    path = hdf5(tmp_path / "log.hdf5", **{"observations" if write is cycle else "rewards": None})
    with h5py.File(path, "a") as file:
        write(file, tmp_path)
    assert error_text(ReplayBufferError, from_hdf5, path).startswith(f"from_hdf5: {path}: member {text}")
