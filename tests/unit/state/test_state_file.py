"""State files: what comes back, and what damage says."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from rltrainer.errors import CheckpointError
from rltrainer.state import state_file
from rltrainer.state.state_file import read_state, write_state


def read(path: Path, kind: str = "tiny") -> dict[str, Any]:
    return read_state(path, kind, CheckpointError)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "state.safetensors"
    write_state(path, "tiny", {"w": torch.arange(4.0), "step": 3})
    return path


def test_round_trip_keeps_values_types_and_order(tmp_path: Path) -> None:
    plain = {
        "none": None, "flag": True, "int": -(2**70), "float": 0.1 + 0.2, "inf": float("-inf"),
        "text": 'ü "quoted"\n', "list": [1, [2.5, {"deep": None}]], "empty": {}, "no items": [],
        "tensor": "not a tensor", "dict": {"dict": {"tensor": "x"}},
    }  # fmt: skip
    write_state(tmp_path / "f", "tiny", plain)
    again = read(tmp_path / "f")
    assert list(again.items()) == list(plain.items())
    assert [type(again[name]) for name in ("flag", "int")] == [bool, int]


def test_round_trip_of_tensors_keeps_bits_dtype_and_shape(tmp_path: Path) -> None:
    state = {
        "special": torch.tensor([[0.1, float("nan")], [float("inf"), -0.0]], dtype=torch.float64),
        "scalar": torch.tensor(7), "empty": torch.zeros(0, 3), "strided": torch.arange(6.0).reshape(2, 3).T,
        "numpys": torch.from_numpy(np.zeros(0)), "numpy's rows": torch.from_numpy(np.zeros((0, 3), np.float32)),
        **{str(dtype): torch.arange(3).to(dtype) for dtype in state_file.DTYPES},
    }  # fmt: skip
    write_state(tmp_path / "f", "tiny", {**state, "nested": [{"generator": torch.get_rng_state()}]})
    again = read(tmp_path / "f")
    for name, before in state.items():
        assert (again[name].dtype, again[name].shape) == (before.dtype, before.shape)
        if before.numel():  # NumPy's without numbers have no strides that a view as bytes allows
            assert torch.equal(*(x.reshape(-1).view(torch.uint8) for x in (again[name], before)))
    assert torch.equal(again["nested"][0]["generator"], torch.get_rng_state())


def test_tied_weights_and_parameters_are_written_by_value(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    write_state(tmp_path / "f", "tiny", {"a": weight, "b": weight})
    again = read(tmp_path / "f")
    assert torch.equal(again["a"], torch.ones(2))
    assert torch.equal(again["b"], torch.ones(2))
    assert not again["a"].requires_grad


def test_names_with_dots_do_not_collide(tmp_path: Path) -> None:
    state = {"net": {"0.weight": torch.zeros(1)}, "net.0": {"weight": torch.ones(1)}, "net.0.weight": torch.ones(1) * 2}
    write_state(tmp_path / "f", "tiny", state)
    again = read(tmp_path / "f")
    assert [again["net"]["0.weight"].item(), again["net.0"]["weight"].item(), again["net.0.weight"].item()] == [0, 1, 2]


@pytest.mark.parametrize(("state", "text"), [
    ({"a": {"b": object}}, "tiny.a.b: a state holds tensors and plain values; got <class 'object'> (type)"),
    ({"a": [1, np.int64(3)]}, "tiny.a.1: a state holds tensors and plain values; got np.int64(3) (int64)"),
    ({"a": {3: 4}}, "tiny.a: keys of a state must be strings; got 3 (int)"),
])  # fmt: skip
def test_what_is_not_plain_is_named_and_nothing_is_written(path: Path, state: dict[str, Any], text: str) -> None:
    before = path.read_bytes()
    with pytest.raises(TypeError) as caught:
        write_state(path, "tiny", state)
    assert str(caught.value) == text
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("function", ["write", "fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_crash_while_writing_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, function: str, error: BaseException
) -> None:
    def crash(*args: Any) -> None:
        if function == "write":
            args[1].write(b"half")
        raise error

    before = path.read_bytes()
    monkeypatch.setattr(state_file.PackedState if function == "write" else os, function, crash)
    with pytest.raises(type(error)):
        write_state(path, "tiny", {"step": 4})
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_loaded_tensors_are_copies_unless_they_are_asked_to_stay_in_the_file(path: Path) -> None:
    copied = read(path)["w"]
    data = path.read_bytes()
    path.write_bytes(data[:-16] + b"\xff" * 16)
    assert copied.tolist() == [0, 1, 2, 3]
    os.truncate(path, 0)
    assert copied.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("tensor", [torch.zeros(2, dtype=torch.complex64), torch.eye(2).to_sparse()])
def test_tensors_that_no_file_holds_are_named(tensor: torch.Tensor, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"^tiny.x: a state file holds no tensor of torch"):
        write_state(tmp_path / "f", "tiny", {"x": tensor})


MEASURE = """
import resource, sys, torch
from rltrainer.state.state_file import write_state
w = torch.zeros(1 << 27, dtype=torch.uint8).add_(1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
write_state(sys.argv[1], "tiny", {"w": w[: 1 << 26], "shared": w, "again": w.view(1 << 13, 1 << 14)})
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_writing_takes_no_second_copy_of_the_tensors(tmp_path: Path) -> None:
    output = subprocess.run([sys.executable, "-c", MEASURE, str(tmp_path / "f")], capture_output=True, check=True)
    assert int(output.stdout) < 1 << 15  # KiB; a copy of one of them would be four times as much


def test_what_could_not_be_read_back_is_not_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep: Any = 3
    for _ in range(100):
        deep = [deep]
    with pytest.raises(TypeError, match="^tiny: the state is nested deeper than 100$"):
        write_state(path, "tiny", {"a": deep})
    monkeypatch.setattr(state_file, "MAX_HEADER_SIZE", 1000)
    with pytest.raises(OSError, match=r"the plain values take \d+ bytes, more than the 1000 that can be read"):
        write_state(path, "tiny", {"text": "x" * 1000})
    assert read(path)["step"] == 3


def test_a_link_stays_and_the_file_it_names_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "storage").mkdir()
    (tmp_path / "best").symlink_to("storage/best")
    for step in (1, 2):
        write_state(tmp_path / "best", "tiny", {"step": step})
        assert (tmp_path / "best").is_symlink()
        assert read(tmp_path / "storage" / "best")["step"] == step


@pytest.mark.parametrize(
    ("make", "text"), [(os.mkfifo, "is a pipe, no regular file"), (os.mkdir, "is a folder, no file")]
)
def test_what_is_no_file_is_neither_replaced_nor_read(make: Any, text: str, tmp_path: Path) -> None:
    make(tmp_path / "f")
    with pytest.raises(OSError, match="f is no regular file"):
        write_state(tmp_path / "f", "tiny", {})
    with pytest.raises(CheckpointError, match=f"f: {text}$"):
        read(tmp_path / "f")


def test_every_truncation_is_an_error(path: Path) -> None:
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(CheckpointError, match=r"state.safetensors: not a readable tiny file, damaged or truncated"):
            read(path)


def test_every_flipped_bit_is_an_error(path: Path) -> None:
    """In the length of the header, the header (the version among it), the numbers, and the checksum itself."""
    data = path.read_bytes()
    for position in range(8 * len(data)):
        flipped = bytes([data[position // 8] ^ (1 << position % 8)])
        path.write_bytes(data[: position // 8] + flipped + data[position // 8 + 1 :])
        with pytest.raises(CheckpointError) as error:
            read(path)
        assert str(error.value).startswith(f"{path}: ")


def test_the_checksum_is_a_tensor_that_safetensors_reads(path: Path) -> None:
    data, tensors = path.read_bytes(), load_file(path)
    assert tensors.keys() == {"tiny.w", "sha256"}
    assert bytes(tensors["sha256"].tolist()) == hashlib.sha256(data[:-32]).digest() == data[-32:]


def test_the_digest_of_the_whole_file_is_returned(tmp_path: Path) -> None:
    state = {"big": torch.arange(1 << 23), "empty": torch.zeros(0), "strided": torch.ones(3, 4).T}
    assert write_state(tmp_path / "f", "tiny", state) == hashlib.sha256((tmp_path / "f").read_bytes()).hexdigest()
    assert torch.equal(read(tmp_path / "f")["big"], state["big"])


def rewritten(path: Path, tensors: dict[str, torch.Tensor], plain: Any) -> None:
    """Write a file with a checksum that is right, whatever it says."""
    with open(path, "wb") as file:
        text = plain if isinstance(plain, str) else json.dumps(plain)
        metadata = {"rltrainer": "tiny", "version": "4", "state": text}
        state_file.PackedState(tensors, metadata).write(file)


@pytest.mark.parametrize(("tensors", "plain", "text"), [
    ({"x": torch.tensor([2], dtype=torch.uint8).view(torch.bool)}, {"dict": {"x": {"tensor": "x"}}}, "flags other"),
    ({"x": torch.zeros(2)}, {"dict": {}}, "nothing names its tensor 'x'"),
    ({"x": torch.zeros(2)}, {"dict": {"a": {"tensor": "x"}, "b": {"tensor": "x"}}}, "tensor 'x' is missing"),
    ({}, {"dict": {"a": {"tensor": "sha256"}}}, "tensor 'sha256' is missing"),
    ({}, '{"dict": {"a": 1, "a": 2}}', "names 'a' twice"),
    ({}, "[" * 10**5, r"is nested deeper than 100\)$"),
    *(
        ({"tiny.w": torch.zeros(1)}, plain, "state.safetensors: not a readable tiny file")
        for plain in (
            3, [], {"dict": []}, {"dict": {"w": {"tensor": "elsewhere"}}}, {"dict": {"w": {"tensor": ["tiny.w"]}}},
            {"dict": {"w": {"code": "print(1)"}}}, None,
        )
    ),
])  # fmt: skip
def test_contents_that_contradict_each_other(path: Path, tensors: Any, plain: Any, text: str) -> None:
    rewritten(path, tensors, plain)
    with pytest.raises(CheckpointError, match=text):
        read(path)


def test_a_file_of_another_kind(path: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r": expected a file of kind 'algorithm', found 'tiny'$"):
        read(path, "algorithm")
    save_file({"w": torch.zeros(1)}, str(tmp_path / "foreign"))
    with pytest.raises(CheckpointError, match=r": expected a file of kind 'tiny', found 'no rltrainer file'$"):
        read(tmp_path / "foreign")


@pytest.mark.parametrize(("version", "text"), [
    (7, r"written in format 7, this release reads format 4\. Upgrade it\.$"),
    (1, r"written in format 1 by a version before 0\.1\.0, this release reads format 4\. Load it"),
    (3, r"written in format 3 by a version before 0\.1\.0, this release reads format 4\. Load it"),
    *((unreadable, "not a readable tiny file") for unreadable in ("", "one", "1.5")),
    (4, "SHA-256 differs"),  # it has no checksum
])  # fmt: skip
def test_a_file_of_another_version(path: Path, version: object, text: str) -> None:
    save_file({}, str(path), {"rltrainer": "tiny", "version": str(version), "state": '{"dict": {}}'})
    with pytest.raises(CheckpointError, match=f": {text}" if version != 4 else text):
        read(path)


def test_the_error_class_is_the_callers(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="nowhere: there is no such file$"):
        read_state(tmp_path / "nowhere", "tiny", LookupError)
