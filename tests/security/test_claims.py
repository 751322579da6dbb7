"""Short files that claim a lot: refused before there is memory for it, measured as what a process takes."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.errors import CheckpointError, ReplayBufferError, RLTrainerError
from rltrainer.state.state_file import read_state, write_state
from tests.security.claims_of_files import CASES, columns, read_as_named

MEASURE = """
import json, resource, sys, time
import rltrainer as rl
from rltrainer.errors import RLTrainerError
LOADERS = {
    "buffer": lambda path: len(rl.PrioritizedReplayBuffer.load(path).sample(4).reward),
    "policy": rl.load_policy,
    "params": lambda path: rl.PPOParams.from_json(open(path).read()),
    "any": lambda path: read_any(path),
}
def read_any(path):
    from tests.security.claims_of_files import read_as_named
    return read_as_named(path)
kind, *paths = sys.argv[1:]
LOADERS[kind](paths.pop(0))
for path in paths:
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome = "loaded"
    try:
        LOADERS[kind](path)
    except RLTrainerError as error:
        outcome = str(error)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps([outcome, grown, time.perf_counter() - began]))
"""
MAX_MIB, MAX_SECONDS = 100, 20


def outcomes(kind: str, sound: Path, paths: list[Path]) -> list[str]:
    """Return what a loader says of files, in a process of its own, which takes no more than it may for each."""
    command = [sys.executable, "-c", MEASURE, kind, str(sound), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = []
    for path, line in zip(paths, done.stdout.splitlines(), strict=True):
        outcome, kib, seconds = json.loads(line)
        assert kib < MAX_MIB * 1024, (path, kib, outcome)
        assert seconds < MAX_SECONDS, (path, outcome)
        assert len(outcome) < 1000
        found.append(outcome)
    return found


def saved_buffer(path: Path) -> Any:
    buffer = rl.PrioritizedReplayBuffer(20, gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2), num_envs=2)
    obs, no = np.zeros((2, 3), np.float32), np.zeros(2, np.bool_)
    for _ in range(4):
        buffer.add(obs, np.zeros(2, int), np.zeros(2), obs, no, no)
    buffer.save(path)
    return read_state(path, "replay_buffer", ReplayBufferError)


def box(*shape: int) -> Any:
    return {"space": "Box", "low": -1.0, "high": 1.0, "shape": list(shape), "dtype": "float64"}


BUFFER_CLAIMS: list[tuple[dict[str, Any], str]] = [
    ({"capacity": 2 * 10**7}, "loaded"),  # reserved, not taken
    ({"capacity": 10**15}, "needs"),
    ({"capacity": 10**30}, "buffer.capacity: expected an integer"),
    ({"num_envs": 10**8, "capacity": 10**8}, "written: expected 100000000 values, found 2"),
    ({"observation_space": box(2**25)}, "all must hold at most 1048576 numbers"),
    ({"observation_space": box(0, 2**62)}, "all must hold at most 1048576 numbers"),
    ({"observation_space": box(*[1] * 1000)}, "its shape must be at most 32 integers"),
    ({"observation_space": {"space": "Tuple", "parts": [box(10**6)] * 80}}, "all must hold at most 1048576"),
    ({"observation_space": {"space": "MultiBinary", "n": 10**12}}, "needs"),
    ({"action_space": {"space": "Discrete", "n": 10**15, "start": 0}}, "loaded"),
    ({"extra": {"x": {"shape": [10**9], "dtype": "float32"}}}, "all must hold at most"),
    ({"extra": {"x": {"shape": [0, 2**62], "dtype": "float32"}}}, "buffer.extra.x.shape.1: expected an integer"),
    ({"written": torch.tensor([2**61, 2**61])}, "rows: expected those up to"),
    ({"stop": torch.tensor([2**61, 2**61])}, "rows.0.start, stop: no ranges"),
    ({"stop": torch.tensor([2**50, 1])}, 'rows.0.data["obs"]: expected torch.float32 (1125899906842625, 3)'),
]


def test_buffers_of_a_few_kilobytes(tmp_path: Path) -> None:
    state = saved_buffer(tmp_path / "sound")
    paths = [tmp_path / str(i) for i in range(len(BUFFER_CLAIMS))]
    for path, (claim, _) in zip(paths, BUFFER_CLAIMS, strict=True):
        claim = {"rows": [state["rows"][0] | claim]} if "stop" in claim else claim
        write_state(path, "replay_buffer", state | claim)
        assert path.stat().st_size < 20_000
    for outcome, (_, text) in zip(outcomes("buffer", tmp_path / "sound", paths), BUFFER_CLAIMS, strict=True):
        assert text in outcome


def saved_policy(path: Path) -> Any:
    rl.Actor(gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2), hidden_sizes=(4,)).save(path)
    return read_state(path, "policy", CheckpointError)


def with_options(state: Any, **options: Any) -> Any:
    """Return a state that says that other options were given."""
    construction = state["construction"]
    return state | {"construction": construction | {"options": construction["options"] | options}}


POLICY_CLAIMS: list[tuple[dict[str, Any], str]] = [
    ({"observation_space": box(2**25)}, "all must hold at most 1048576 numbers"),
    ({"observation_space": {"space": "Dict", "parts": {str(i): box(10**6) for i in range(60)}}}, "all must hold at"),
    ({"action_space": {"space": "Discrete", "n": 10**12, "start": 0}}, "at most 16777216 choices in all"),
    ({"action_space": {"space": "MultiDiscrete", "nvec": [10**9] * 40, "start": [0] * 40}}, "at most 16777216 choices"),
    ({"hidden_sizes": [10**6, 10**6]}, "its policy takes"),
    ({"net": None, "hidden_sizes": [1] * 5000}, "its policy takes"),
    ({"net": None, "hidden_sizes": [1] * 20_000}, "expected at most 10000 values to build from, found 200"),
    ({"activation": [[]] * 20_000}, "expected at most 10000 values to build from, found 200"),
]


def test_policies_of_a_few_kilobytes(tmp_path: Path) -> None:
    state = saved_policy(tmp_path / "sound")
    texts = [text for _, text in POLICY_CLAIMS]
    paths = [tmp_path / str(i) for i in range(len(POLICY_CLAIMS))]
    for path, (claim, _) in zip(paths, POLICY_CLAIMS, strict=True):
        write_state(path, "policy", with_options(state, **claim))
        assert path.stat().st_size < 200_000
    for length in (2**20, 10**8, 2**40, 2**63, 2**64 - 1):  # of a header
        paths.append(tmp_path / f"length {length}")
        paths[-1].write_bytes(length.to_bytes(8, "little") + b"{}" * 3000)
        texts.append("file, damaged or truncated")
    # The most that JSON can be made to take: a megabyte of empty lists.
    paths.append(tmp_path / "lists")
    write_state(paths[-1], "policy", state | {"construction": json.loads("[" + "[]," * 300_000 + "[]]")})
    texts.append("expected at most 10000 values to build from, found 300002")
    for outcome, text in zip(outcomes("policy", tmp_path / "sound", paths), texts, strict=True):
        assert text in outcome


PARAMS_CLAIMS: list[tuple[str, str]] = [
    ('{"gamma": {"space": "Box", "low": 0, "high": 1, "shape": [60000000], "dtype": "float64"}}', "all must hold"),
    ('{"gamma": ' + "[" * 10**6 + "}", "nested deeper than 100"),
    ('{"gamma": ' + "9" * 10**6 + "}", "Exceeds the limit"),
    ('{"gamma": "' + "x" * 10**6 + '"}', "PPOParams.gamma: must be"),
    ('{"' + "x" * 10**6 + '": 1}', "unknown field"),
]


def test_params_as_json(tmp_path: Path) -> None:
    (tmp_path / "sound").write_text(rl.PPOParams().to_json())
    paths = [tmp_path / str(i) for i in range(len(PARAMS_CLAIMS))]
    for path, (fields, _) in zip(paths, PARAMS_CLAIMS, strict=True):
        path.write_text('{"params": "PPOParams", "fields": ' + fields + "}")
    for outcome, (_, text) in zip(outcomes("params", tmp_path / "sound", paths), PARAMS_CLAIMS, strict=True):
        assert text in outcome


@pytest.mark.parametrize(("make", "text"), CASES)
def test_files_of_all_kinds(make: Callable[[Path], Path], text: str, tmp_path: Path) -> None:
    path = make(tmp_path)
    with pytest.raises(RLTrainerError, match=re.escape(text)):
        read_as_named(path)


@pytest.mark.full
def test_memory_for_files_of_all_kinds(tmp_path: Path) -> None:
    np.savez(tmp_path / "sound.npz", **columns(4, 2))
    paths = [make(tmp_path) for make, _ in CASES]
    for outcome, (_, text) in zip(outcomes("any", tmp_path / "sound.npz", paths), CASES, strict=True):
        assert text in outcome
