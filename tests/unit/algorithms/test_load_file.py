"""Files that say what they hold: everything comes back in a new process, and what is not known is named."""

import copy
import dataclasses
import functools
import inspect
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rltrainer as rl
from rltrainer.errors import CheckpointError, ParamsError
from rltrainer.nets.encoder import ConvEncoder
from rltrainer.state import registry
from rltrainer.state.state_file import read_state, write_state
from tests.contract.test_all_algorithms import ALL, BOX, DISCRETE, OBS, assert_same_state, make, update

VECTOR = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)


@pytest.fixture(autouse=True)
def _nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_users", {})


def public(kind: type[Any]) -> list[str]:
    items = {name: getattr(rl, name) for name in rl.__all__}
    return [n for n, item in items.items() if inspect.isclass(item) and issubclass(item, kind) and item is not kind]


def test_all_that_is_built_from_arguments_is_known() -> None:
    for kind in (rl.Algorithm, rl.Policy, rl.AlgorithmParams, rl.NetParams, rl.TrainerParams):
        for name in [kind.__name__, *public(kind)]:
            assert registry.class_named(name) is getattr(rl, name)
    assert registry.class_named("Collector") is None
    assert registry.class_named("CSVLogger") is None


def test_every_algorithm_and_policy_is_tested_here() -> None:
    made = [make(name) for name in ALL]
    abstract = {"OnPolicyAlgorithm", "OffPolicyAlgorithm"}
    assert {type(algorithm).__name__ for algorithm in made} == set(public(rl.Algorithm)) - abstract
    assert {type(algorithm.policy).__name__ for algorithm in made} == set(public(rl.Policy))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ALL)
def test_an_algorithm_goes_on_bit_for_bit(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """One that is made from its file, and one that is there and loads it, with the parameters that it has."""
    one, again = make(name), ALL[name]()
    for each in (one, again):
        each.set_weight_dtype(dtype)
    update(one)
    one.save(tmp_path / "algorithm.safetensors")
    random, parameters = torch.get_rng_state(), list(again.policy.parameters())
    other: Any = rl.load(tmp_path / "algorithm.safetensors")
    assert torch.equal(torch.get_rng_state(), random)
    assert (type(other), other.params, other.policy.weight_dtype) == (type(one), one.params, dtype)
    again.load(tmp_path / "algorithm.safetensors")
    assert all(x is y for x, y in zip(again.policy.parameters(), parameters, strict=True))
    assert_same_state(one, other)
    for seed in (1, 2):
        assert update(one, seed).floats() == update(other, seed).floats() == update(again, seed).floats()
    assert_same_state(one, other)
    assert_same_state(one, again)


@pytest.mark.parametrize("name", ALL)
def test_a_policy_comes_back_from_either_file(name: str, tmp_path: Path) -> None:
    algorithm = make(name)
    update(algorithm)
    algorithm.save(tmp_path / "algorithm")
    algorithm.policy.save(tmp_path / "policy")
    for file in ("algorithm", "policy"):
        policy = rl.load_policy(tmp_path / file)
        assert type(policy) is type(algorithm.policy)
        assert not policy.training
        assert (policy.observation_space, policy.action_space) == (OBS, algorithm.policy.action_space)
        saved = policy.state_dict()
        for key, value in algorithm.policy.state_dict().items():
            assert torch.equal(saved[key], value), key


def test_all_options_of_networks(tmp_path: Path) -> None:
    image = gym.spaces.Dict(cam=gym.spaces.Box(0, 255, (36, 36, 3), np.uint8), far=BOX, near=BOX)
    net = rl.NetParams(hidden_sizes=[5, 4], activation=nn.ELU, norm="layer", keys=("near",))
    critic_net = rl.NetParams(hidden_sizes=(7,), dropout=0.1, encoder=lambda_free_encoder, keys=("cam", "far"))
    more: Any = {"num_critics": 3, "num_outputs": 2, "normalize_obs": True}
    policy = rl.SquashedActorCritic(image, BOX, net, critic_net=critic_net, **more)
    policy.save(tmp_path / "policy")
    again: Any = rl.load_policy(tmp_path / "policy", classes=[lambda_free_encoder])
    assert again.net_params == policy.net_params
    assert again.to_plain() == policy.to_plain()
    assert {k: v.shape for k, v in again.state_dict().items()} == {k: v.shape for k, v in policy.state_dict().items()}


def lambda_free_encoder(space: Any) -> nn.Module | None:
    return ConvEncoder(space, 16) if len(space.shape) == 3 else None


def test_params_with_schedules_and_optimizers_of_ours(tmp_path: Path) -> None:
    params = rl.A2CParams(lr=rl.CosineSchedule(1e-3, 1e-5), optimizer=rl.rms_prop, max_grad_norm=None)
    algorithm = rl.A2C(rl.ActorCritic(VECTOR, DISCRETE, hidden_sizes=(4,)), params)
    algorithm.save(tmp_path / "a2c")
    again = rl.load(tmp_path / "a2c")
    assert again.params == params
    assert again.params.optimizer is rl.rms_prop


def test_defaults_are_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release with other defaults does not change what a file holds."""
    rl.DQN(rl.QNetwork(VECTOR, DISCRETE)).save(tmp_path / "dqn")
    plain = read_state(tmp_path / "dqn", "algorithm", CheckpointError)["construction"]
    assert plain["options"]["params"]["fields"]["lr"] == 1e-3
    assert plain["options"]["policy"]["options"]["dueling"] is False
    monkeypatch.setattr(rl.QNetwork, "default_net", rl.NetParams(hidden_sizes=(3,), activation=nn.Tanh))
    policy: Any = rl.load_policy(tmp_path / "dqn")
    assert policy.net_params == rl.NetParams(hidden_sizes=(128, 128), activation=nn.ReLU)


def test_a_new_process_needs_the_file_only(tmp_path: Path) -> None:
    algorithm = make("sac")
    update(algorithm)
    algorithm.save(tmp_path / "sac.safetensors")
    program = """
        import sys, torch, rltrainer as rl
        algorithm = rl.load(sys.argv[1])
        algorithm.save(sys.argv[2])
        obs = {"flags": torch.zeros(1, 2, dtype=torch.int8), "mode": torch.ones(1, dtype=torch.int64),
               "position": torch.zeros(1, 3)}
        print(rl.load_policy(sys.argv[1]).act(obs).tolist())
    """
    command = [sys.executable, "-c", textwrap.dedent(program), "sac.safetensors", "again.safetensors"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    obs = {"flags": torch.zeros(1, 2, dtype=torch.int8), "mode": torch.ones(1, dtype=torch.int64)}
    action = algorithm.policy.eval().act({**obs, "position": torch.zeros(1, 3)})
    assert done.stdout.strip() == str(action.tolist())
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "sac.safetensors").read_bytes()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_can_be_saved_too(copied: Any, tmp_path: Path) -> None:
    algorithm = copied(make("ppo"))
    algorithm.save(tmp_path / "ppo")
    assert_same_state(algorithm, rl.load(tmp_path / "ppo"))


def test_a_policy_with_a_lambda_is_still_pickled() -> None:
    policy = rl.Actor(VECTOR, DISCRETE, activation=lambda: nn.ELU(0.5), hidden_sizes=(4,))
    again = pickle.loads(pickle.dumps(policy))
    assert again.to_plain() == policy.to_plain()


# Classes of a user's


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class OwnPolicy(rl.QNetwork):
    """Takes its arguments in its own way."""

    def __init__(self, observation_space: Any, action_space: Any, width: int, *, table: dict[str, Any]) -> None:
        net = rl.NetParams(hidden_sizes=(width,), activation=Doubled)
        super().__init__(observation_space, action_space, net)
        self.table = table


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class OwnParams(rl.DQNParams):
    scale: float = 2.0


class OwnDQN(rl.DQN):
    params_class = OwnParams

    def __init__(self, *args: Any, bonus: float = 0.0, **options: Any) -> None:
        super().__init__(*args, **options)
        self.bonus = bonus


def own() -> OwnDQN:
    return OwnDQN(OwnPolicy(VECTOR, DISCRETE, 7, table={"a": (1, 2.5), "b": None}), OwnParams(scale=3.0), bonus=0.5)


def test_classes_of_a_users_are_passed_or_registered(tmp_path: Path) -> None:
    own().save(tmp_path / "own")
    with pytest.raises(CheckpointError) as caught:
        rl.load(tmp_path / "own")
    assert str(caught.value) == (
        f"{tmp_path}/own: Algorithm: the file only names 'OwnDQN'. "
        "Pass what that is: classes=[OwnDQN], or classes={'OwnDQN': ...}"
    )
    again: Any = rl.load(tmp_path / "own", classes=[OwnDQN, OwnParams, OwnPolicy])
    assert (type(again), again.bonus, again.params.scale) == (OwnDQN, 0.5, 3.0)
    assert (again.policy.table, again.policy.net_params.hidden_sizes) == ({"a": (1, 2.5), "b": None}, (7,))
    for cls in (OwnDQN, OwnPolicy):
        assert rl.register(cls) is cls
    with pytest.raises(CheckpointError, match=r"OwnDQN: the file only names 'OwnParams'. Pass what that is: classes"):
        rl.load(tmp_path / "own")
    assert type(rl.load(tmp_path / "own", classes={"OwnParams": OwnParams})) is OwnDQN
    assert type(rl.load_policy(tmp_path / "own")) is OwnPolicy


def saved(path: Path, **options: Any) -> Path:
    rl.BC(rl.Actor(VECTOR, DISCRETE, hidden_sizes=(4,), **options)).save(path / "bc")
    return path / "bc"


@pytest.mark.parametrize(
    ("options", "field", "name"),
    [
        ({"activation": lambda: nn.ELU(0.5)}, "NetParams.activation", "<lambda>"),
        ({"activation": Doubled}, "NetParams.activation", "Doubled"),
        ({"net": rl.NetParams(activation=Doubled)}, "NetParams.activation", "Doubled"),
        ({"net": rl.NetParams(encoder=lambda_free_encoder)}, "NetParams.encoder", "lambda_free_encoder"),
    ],
)
def test_what_a_file_can_only_name_is_asked_for(options: Any, field: str, name: str, tmp_path: Path) -> None:
    path = saved(tmp_path, **options)
    with pytest.raises(CheckpointError) as caught:
        rl.load(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: {field}: the file only names '")
    as_list = "" if name == "<lambda>" else f"classes=[{name}] if it is a class or a function, or "
    place = field.replace("NetParams", "policy.net")
    assert text.endswith(f"{name}'. Pass what that is: {as_list}classes={{'{place}': ...}}")
    long_name = text.split("'")[1]
    thing = options.get("activation") or options["net"].activation or options["net"].encoder
    assert isinstance(rl.load(path, classes={long_name: thing}), rl.BC)


def wide(space: Any, width: int = 5) -> nn.Module:
    return nn.Linear(3, width)


def of_width(width: int) -> Any:
    def encoder(space: Any) -> nn.Module:
        return nn.Linear(3, width)

    return encoder


ENCODER, CRITIC_ENCODER, OPTIMIZER = "policy.net.encoder", "policy.critic_net.encoder", "params.optimizer"


@pytest.mark.parametrize(
    "objects",
    [
        {ENCODER: functools.partial(wide, width=6), OPTIMIZER: functools.partial(torch.optim.AdamW, weight_decay=0.1)},
        {ENCODER: lambda space: wide(space), OPTIMIZER: lambda parameters: torch.optim.SGD(parameters, 0.1)},
        {ENCODER: of_width(5), CRITIC_ENCODER: of_width(6)},
        {CRITIC_ENCODER: functools.partial(wide, width=6)},
    ],
)
def test_objects_of_one_name_load_as_the_errors_ask(objects: dict[str, Any], tmp_path: Path) -> None:
    net, critic_net = (rl.NetParams(encoder=objects.get(key)) for key in (ENCODER, CRITIC_ENCODER))
    policy = rl.ActorCritic(VECTOR, DISCRETE, net, critic_net=critic_net)
    one = rl.PPO(policy, rl.PPOParams(optimizer=objects.get(OPTIMIZER)))
    one.save(tmp_path / "ppo")
    policy.save(tmp_path / "policy")
    passed: dict[str, Any] = {}
    while passed != objects:
        with pytest.raises(CheckpointError, match="classes={'") as caught:
            rl.load(tmp_path / "ppo", classes=passed)
        place = str(caught.value).split("classes={'")[1].split("'")[0]
        passed[place] = objects[place]
    assert_same_state(one, rl.load(tmp_path / "ppo", classes=passed))
    for file in ("ppo", "policy"):
        rl.load_policy(tmp_path / file, classes=passed)


def test_a_list_with_two_of_one_name_is_asked_about(tmp_path: Path) -> None:
    one = of_width(5)
    path = saved(tmp_path, net=rl.NetParams(encoder=one))
    with pytest.raises(
        CheckpointError, match=r"is: classes=\[encoder\] if .*, or classes={'policy.net.encoder': ...}$"
    ):
        rl.load(path, classes=[one, of_width(6)])
    rl.load(path, classes=[one, one])


class Laden(rl.Actor):
    """Takes data."""

    def __init__(self, observation_space: Any, action_space: Any, data: Any) -> None:
        super().__init__(observation_space, action_space, hidden_sizes=(4,))


def test_more_arguments_than_are_read_are_told_at_once(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="^Laden: its arguments hold 100.. values, and files of rltrainer are read up"):
        Laden(VECTOR, DISCRETE, [1.0] * 10_000).save(tmp_path / "laden")
    with pytest.raises(CheckpointError, match="expected at most 10000 values to build from, found 100"):
        rl.load_policy(tmp_path / "laden", classes=[Laden])
    data, long = np.ones(10_000), type("Laden" * 30, (Laden,), {})
    rl.BC(long(VECTOR, DISCRETE, data)).save(tmp_path / "laden")
    rl.load(tmp_path / "laden", classes={"policy": long, "policy.data": data})


def test_a_class_of_the_users_is_not_taken_for_ours(tmp_path: Path) -> None:
    other = type("ReLU", (nn.Module,), {"forward": lambda self, x: x})
    path = saved(tmp_path, activation=other)
    with pytest.raises(CheckpointError, match="NetParams.activation: the file only names 'ReLU'"):
        rl.load(path)
    policy: Any = rl.load_policy(path, classes=[other])
    assert isinstance(policy.actor[1].activations[0], other)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class DQNParams(rl.DQNParams):
    """Has the name of another one's."""

    scale: float = 2.0


class DQN(rl.DQN):
    """Has the name of another one's."""

    params_class = DQNParams


def test_classes_may_have_the_names_of_ours(tmp_path: Path) -> None:
    DQN(rl.QNetwork(VECTOR, DISCRETE)).save(tmp_path / "theirs")
    with pytest.raises(CheckpointError, match="Algorithm: the file only names 'DQN'. Pass what that is: classes="):
        rl.load(tmp_path / "theirs")
    again: Any = rl.load(tmp_path / "theirs", classes=[DQN, DQNParams])
    assert (type(again), type(again.params), again.params.scale) == (DQN, DQNParams, 2.0)
    rl.DQN(rl.QNetwork(VECTOR, DISCRETE)).save(tmp_path / "ours")
    assert type(rl.load(tmp_path / "ours", classes=[DQN, DQNParams])) is rl.DQN


def test_what_cannot_be_registered() -> None:
    rl.register(Doubled)
    rl.register(type("Doubled", (nn.Module,), {"__module__": Doubled.__module__}))  # the cell ran again
    with pytest.raises(ParamsError, match="^register: 'Doubled' is the name of <class '.*'>. Rename one of the two.$"):
        rl.register(type("Doubled", (nn.Module,), {"__module__": "elsewhere"}))


@pytest.mark.parametrize("name", ["best.safetensors", "algorithm.safetensors"])
def test_the_folder_of_a_run_and_a_checkpoint(name: str, tmp_path: Path) -> None:
    policy = rl.Actor(VECTOR, DISCRETE)
    rl.BC(policy).save(tmp_path / name)
    obs = np.ones(VECTOR.shape, np.float32)
    assert rl.load_policy(tmp_path).predict(obs) == policy.predict(obs)
    for ours, theirs in zip(policy.parameters(), rl.load(tmp_path).policy.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_a_file_of_a_newer_release(tmp_path: Path) -> None:
    path = saved(tmp_path)
    state = read_state(path, "algorithm", CheckpointError)
    changed = copy.deepcopy(state)
    changed["construction"]["built"] = {"known": "BrandNew"}
    write_state(path, "algorithm", changed)
    with pytest.raises(CheckpointError, match="Algorithm: this release of rltrainer knows no 'BrandNew'. Was it wr"):
        rl.load(path)
    changed = copy.deepcopy(state)
    changed["construction"]["options"]["policy"]["options"]["activation"] = {"known": "BrandNewLU"}
    write_state(path, "algorithm", changed)
    with pytest.raises(CheckpointError, match="Actor.activation: this release of rltrainer knows no 'BrandNewLU'"):
        rl.load(path)


def test_a_device(tmp_path: Path) -> None:
    for device in ("cpu", torch.device("cpu"), "auto"):  # of small networks
        assert rl.load(saved(tmp_path), device=device).device.type == "cpu"
        assert rl.load_policy(saved(tmp_path), device=device).device.type == "cpu"


@pytest.mark.gpu
def test_a_cuda_device(tmp_path: Path) -> None:
    algorithm = make("sac")
    update(algorithm)
    algorithm.save(tmp_path / "sac")
    again = rl.load(tmp_path / "sac", device="cuda")
    assert again.device.type == "cuda"
    assert all(p.is_cuda for p in again.policy.parameters())
    assert rl.load_policy(tmp_path / "sac", device="cuda").device.type == "cuda"
