"""Files that say what they hold are data: nothing else is built, called or imported, no memory is taken on trust."""

import copy
import functools
import operator
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import rltrainer as rl
from rltrainer.errors import CheckpointError
from rltrainer.nets.encoder import FlatEncoder
from rltrainer.state.state_file import PackedState, read_state, write_state
from tests.contract.test_all_algorithms import ALL, make

VECTOR = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
DISCRETE = gym.spaces.Discrete(3)


def written(path: Path, algorithm: Any = None) -> Any:
    """Write a file, and return its state."""
    (algorithm or rl.BC(rl.Actor(VECTOR, DISCRETE, hidden_sizes=(4,)))).save(path)
    return read_state(path, "algorithm", CheckpointError)


def is_invalid(path: Path, state: Any, text: str = "file: ", **options: Any) -> None:
    write_state(path, "algorithm", state)
    with pytest.raises(CheckpointError, match=text):
        rl.load(path, **options)


def loads_or_refuses(path: Path) -> None:
    """Load a file whole, or raise an error that names it, but no other."""
    for load in (rl.load, rl.load_policy):
        problem = ""
        try:
            load(path)
        except CheckpointError as error:
            problem = str(error)
        assert str(path) in problem or not problem


def memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def places(plain: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all numbers, texts, flags and None in plain data."""
    items = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    for key, item in items:
        if isinstance(item, dict | list):
            yield from places(item, (*path, key))
        else:
            yield (*path, key)


def changed(state: Any, path: tuple[Any, ...], value: Any) -> Any:
    state = {**state, "construction": copy.deepcopy(state["construction"])}
    functools.reduce(operator.getitem, path[:-1], state["construction"])[path[-1]] = value
    return state


def of_parts() -> rl.SAC:
    """Return an algorithm whose networks have an object of their own for each member and leaf."""
    space = gym.spaces.Dict(image=gym.spaces.Box(0, 255, (36, 36, 3), np.uint8), bits=gym.spaces.MultiBinary(3))
    net = rl.NetParams(hidden_sizes=(4, 4), norm="layer", dropout=0.1, encoder=FlatEncoder)
    action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    return rl.SAC(rl.SquashedActorCritic(space, action_space, net, num_critics=2))


ONE_EACH = {type(make(name)): name for name in ALL}.values()


@pytest.mark.parametrize("name", [*ONE_EACH, "of_parts"])
def test_no_number_takes_memory_that_the_file_does_not_hold(name: str, tmp_path: Path) -> None:
    """Each integer in turn is said to be huge: a size, a shape, a number of choices, an interval."""
    path = tmp_path / "file"
    state = written(path, of_parts() if name == "of_parts" else make(name))
    before, num_refused = memory(), 0
    for place in places(state["construction"]):
        if type(functools.reduce(operator.getitem, place, state["construction"])) is not int:
            continue
        for huge in (10**6, 10**13):
            write_state(path, "algorithm", changed(state, place, huge))
            try:
                rl.load(path)
            except CheckpointError:
                num_refused += 1
    assert num_refused > 7
    assert memory() - before < 100e6


@pytest.mark.parametrize("value", [None, True, -1, 0.5, "x", [], [3], {}, {"dict": 3}, {"tensor": "x"}, {"built": {}}])
def test_whatever_stands_in_a_place_is_refused_or_harmless(value: Any, tmp_path: Path) -> None:
    path = tmp_path / "file"
    state = written(path)
    of_rnd = written(tmp_path / "rnd", make("rnd_box"))
    net = ("options", "params", "fields", "net")
    for place in (net, (*net, "fields"), (*net, "fields", "hidden_sizes"), (*net[:-1], "num_outputs")):
        write_state(tmp_path / "rnd", "algorithm", changed(of_rnd, place, value))
        loads_or_refuses(tmp_path / "rnd")
    for place in [*places(state["construction"]), ("built",), ("args",), ("options",), ("options", "policy")]:
        write_state(path, "algorithm", changed(state, place, value))
        loads_or_refuses(path)


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    state = written(path)
    deep: Any = 3
    for _ in range(60):
        deep = [deep]
    is_invalid(path, changed(state, ACTIVATION, deep))
    with open(path, "wb") as file:
        PackedState({}, {"rltrainer": "algorithm", "version": "4", "state": '{"dict": ' * 10**5}).write(file)
    with pytest.raises(CheckpointError, match="damaged or truncated"):
        rl.load(path)


class Canary:
    """Says that it was made or called."""

    touched = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        type(self).touched += 1


def canary(*args: Any) -> nn.Module:
    Canary.touched += 1
    return nn.ReLU()


BUILT = {"built": {"known": "BC"}, "args": [], "options": {}}
POLICY = ("options", "policy")
ACTIVATION = (*POLICY, "options", "activation")


@pytest.mark.parametrize(
    "name",
    ["CSVLogger", "TensorBoardLogger", "Collector", "ReplayBuffer", "make_vec", "seed", "load", "os.system", "eval"],
)
@pytest.mark.parametrize("kind", ["known", "live"])
def test_only_what_is_meant_for_files_is_built_or_called(kind: str, name: str, tmp_path: Path) -> None:
    """No public name but those of policies, algorithms and params, and no function but activations and the like."""
    path, log = tmp_path / "file", tmp_path / "log"
    state = written(path)
    call = {"built": {kind: name}, "args": [str(log)], "options": {}}
    is_invalid(path, {**state, "construction": call}, "knows no|only names")
    for place, value in ((POLICY, call), (ACTIVATION, call), (ACTIVATION, {kind: name})):
        is_invalid(path, changed(state, place, value), "knows no|only names")
    is_invalid(path, changed(state, ("options", "params"), {"params": name, "fields": {}}), "only names")
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_users_class_is_made_only_if_it_is_a_policy_or_an_algorithm(tmp_path: Path) -> None:
    path = tmp_path / "file"
    state = written(path)
    call = {"built": {"live": "Canary"}, "args": [], "options": {}}
    text = "Canary'> is no class of policies or algorithms"
    is_invalid(path, {**state, "construction": call}, text, classes=[Canary])
    is_invalid(path, changed(state, ("options", "params"), call), text, classes=[Canary])
    # What is passed or registered is used where the file names it, and only by that name.
    written(path)
    rl.load(path, classes=[canary])
    is_invalid(path, changed(state, ACTIVATION, {"known": "canary"}), "knows no 'canary'")
    assert Canary.touched == 0


def test_a_policy_in_the_place_of_an_algorithm(tmp_path: Path) -> None:
    path = tmp_path / "file"
    state = written(path)
    options = state["construction"]["options"]
    for other, text in (
        (options["policy"], "holds a Actor, no Algorithm"),
        (BUILT, "what it says cannot be built"),
        (3, "holds a int, no Algorithm|holds a int, no Policy"),
        ({**BUILT, "built": {"known": "PPO"}, "options": options}, "PPO.policy: must be of class ActorCritic"),
    ):
        is_invalid(path, {**state, "construction": other}, text)


@pytest.mark.parametrize("key", ["policy", "optimizer", "generator", "construction", "algorithm"])
def test_a_state_without_a_part_is_refused(key: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    state = written(path)
    for value in (None, 3, {}, torch.zeros(2)):
        is_invalid(path, {**state, key: value})
    del state[key]
    is_invalid(path, state)
