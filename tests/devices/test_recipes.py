"""Trainings by recipes on the second device: what lies there, what "auto" takes, and resumes on another device."""

import logging
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.data.ring import Ring
from rltrainer.tools.recipes import recipe_of, run_recipe
from tests.fakes import CountingEnv

EAGER = rl.RuntimeParams(compile=False, cuda_graph=False)
SHORT: dict[str, Any] = {
    "num_env_steps": 128, "max_epochs": 2, "test_step_num_episodes": 1, "show_progress": False, "runtime": EAGER,
    "hidden_sizes": (8,), "collection_step_num_env_steps": 32, "seed": 3, "batch_size": 16,
}  # fmt: skip
ON_POLICY: dict[str, Any] = SHORT | {"update_step_num_repetitions": 1}
# Without exploration, as DQN draws more random numbers on a GPU, where it cannot look at which of them are due.
OFF_POLICY: dict[str, Any] = SHORT | {"warmup_num_env_steps": 0, "capacity": 128, "epsilon": 0.0}
Capture, Log = pytest.CaptureFixture[str], pytest.LogCaptureFixture


@pytest.fixture(autouse=True)
def _draws_as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let buffers on the CPU draw the transitions of those on the device, which cannot use the host's numbers."""
    monkeypatch.setattr(Ring, "_counts_on_device", True)


def train(algorithm: str, folder: Path, env: Any = "CartPole-v1", **fields: Any) -> rl.Training:
    return rl.train(env, algorithm, folder=folder, **(ON_POLICY if algorithm == "ppo" else OFF_POLICY) | fields)


def places(algorithm: rl.Algorithm) -> set[str]:
    return {str(parameter.device) for parameter in algorithm.policy.parameters()}


def assert_same_weights(one: rl.Algorithm, other: rl.Algorithm) -> None:
    for a, b in zip(one.policy.parameters(), other.policy.parameters(), strict=True):
        torch.testing.assert_close(a.cpu(), b.cpu(), rtol=1e-3, atol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_a_training_gives_the_numbers_of_the_cpu(algorithm: str, tmp_path: Path, capsys: Capture) -> None:
    there = train(algorithm, tmp_path, device="cuda")
    buffer = "; replay buffer on cuda:0" * (algorithm == "dqn")
    assert capsys.readouterr().out.splitlines()[1] == f"networks on cuda:0{buffer}"
    assert places(there.algorithm) == {"cuda:0"}
    devices = {"networks": "cuda:0"} | ({"buffer": "cuda:0"} if buffer else {})
    assert rl.open_run(there.folder.path).devices == devices
    assert_same_weights(there.algorithm, train(algorithm, tmp_path, device="cpu", verbose=False).algorithm)


@pytest.mark.full
def test_data_beside_an_env_lie_where_the_buffer_does(tmp_path: Path) -> None:
    both: dict[str, Any] = {"data": rl.ReplayBuffer.load(logged(tmp_path)), "offline_share": 0.5}
    recipe = train("dqn", tmp_path, device="cuda", verbose=False, **both).recipe
    buffer = recipe.make_trainer(verbose=False).params.training_collector.buffer
    assert [str(each.device) for each in (buffer.online, buffer.offline, both["data"])] == ["cuda:0", "cuda:0", "cpu"]
    sequences = buffer.sample_sequences(8, 2)
    assert {str(leaf.device) for leaf in (sequences.obs, sequences.weight)} == {"cuda:0"}


def test_a_buffer_that_takes_more_than_half_stays_on_the_host(
    tmp_path: Path, capsys: Capture, caplog: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of CartPole a transition takes 16 + 8 + 4 + 2 + 4 bytes, and a buffer of 128 one row more: 4,386 bytes."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (8771, 8771))
    with caplog.at_level(logging.INFO, "rltrainer"):
        result = train("dqn", tmp_path, device="cuda")
    assert capsys.readouterr().out.splitlines()[1] == "networks on cuda:0; replay buffer on cpu"
    words = "replay buffer: 4.39e-06 GB on cpu; 8.77e-06 GB are free on cuda:0, of which it may take half"
    assert words in caplog.messages
    assert places(result.algorithm) == {"cuda:0"}
    # A resumed run keeps it there, whatever is free by then.
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (2**34, 2**34))
    recipe = recipe_of(result.folder)
    trainer: Any = recipe.make_trainer(run_folder=result.folder)
    assert (str(trainer.algorithm.device), str(trainer.params.buffer.device)) == ("cuda:0", "cpu")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (8772, 8772))
    anew: Any = recipe.make_trainer()
    assert str(anew.params.buffer.device) == "cuda:0"


@pytest.mark.parametrize(("earlier", "place"), [
    ({}, "cuda:0"), ({"networks": "cuda:0", "buffer": "cpu"}, "cpu"), ({"networks": "cpu", "buffer": "cpu"}, "cuda:0"),
])  # fmt: skip
def test_a_buffer_follows_networks_to_another_device(earlier: dict[str, str], place: str) -> None:
    recipe = rl.recipes.get("dqn/CartPole-v1").with_fields(device="cuda", capacity=128)
    assert str(recipe._parts(earlier)[1]["training_collector"].buffer.device) == place


def interrupted(algorithm: str, folder: Path, device: str, verbose: bool = False, **fields: Any) -> rl.RunFolder:
    """Return the folder of a training that ended in its second epoch."""

    def interrupt(epoch: int, env_step: int) -> None:
        if env_step == 64:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        train(algorithm, folder, device=device, training_fn=interrupt, verbose=verbose, **fields)
    return rl.RunFolder(folder / f"{algorithm}_CartPole-v1")


@pytest.mark.parametrize(("first", "second"), [("cuda", "cpu"), pytest.param("cpu", "cuda", marks=pytest.mark.full)])
@pytest.mark.parametrize("algorithm", ["ppo", pytest.param("dqn", marks=pytest.mark.full)])
def test_a_run_resumes_on_another_device(algorithm: str, first: str, second: str, tmp_path: Path) -> None:
    folder = interrupted(algorithm, tmp_path, first, runtime=rl.RuntimeParams(compile=False))
    resumed = run_recipe(recipe_of(folder).with_fields(device=second, verbose=False), folder)
    assert resumed.info.env_step == 128
    assert {torch.device(place).type for place in places(resumed.algorithm)} == {second}
    assert resumed.algorithm.has_cuda_graph is (second == "cuda")


@pytest.mark.full
def test_a_run_resumes_by_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    main = pytest.importorskip("rltrainer.tools.cli").main
    monkeypatch.chdir(tmp_path)
    folder = interrupted("dqn", tmp_path, "cuda", verbose=True)
    assert main(["resume", str(folder.path), "--device", "cpu"]) == 0
    assert "\nnetworks on cpu; replay buffer on cpu\n" in capsys.readouterr().out
    assert main(["evaluate", str(folder.path), "--device", "cuda", "--num-episodes", "1"]) == 0
    assert rl.open_run(folder.path).is_finished


def test_auto_keeps_the_device_of_a_run_that_is_resumed(tmp_path: Path) -> None:
    folder = interrupted("ppo", tmp_path, "auto")  # on the CPU, as the networks are small
    assert rl.open_run(folder.path).devices == {"networks": "cpu"}
    (params,) = tmp_path.rglob("params.json")
    params.write_text(params.read_text().replace('"networks": "cpu"', '"networks": "cuda:0"'))
    assert str(recipe_of(folder).make_trainer(run_folder=folder).algorithm.device) == "cuda:0"


class Seeing(CountingEnv):
    """Shows an image of one brightness."""

    def __init__(self) -> None:
        super().__init__(truncates=True)
        self.observation_space = gym.spaces.Box(0, 255, (1, 36, 36), np.uint8)

    def reset(self, **options: Any) -> Any:
        obs, info = super().reset(**options)
        return np.full((1, 36, 36), int(obs.sum()) % 256, np.uint8), info

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return np.full((1, 36, 36), int(obs.sum()) % 256, np.uint8), *rest


@pytest.mark.parametrize(("env", "fields", "place"), [
    ("CartPole-v1", {}, "cpu"), ("CartPole-v1", {"hidden_sizes": (256, 256)}, "cuda:0"), (Seeing, {}, "cuda:0"),
    ("CartPole-v1", {"backend": "tensor"}, "cuda:0"),
])  # fmt: skip
def test_auto(env: Any, fields: dict[str, Any], place: str) -> None:
    recipe = rl.recipes.for_env(env, "ppo").with_fields(**SHORT | fields)
    trainer: Any = recipe.make_trainer()
    assert str(trainer.algorithm.device) == place
    collector = trainer.params.training_collector
    assert str(collector.generator.device) == place
    if fields.get("backend") == "tensor":
        assert str(collector.envs.device) == place


def logged(folder: Path) -> str:
    envs = rl.make_vec("CartPole-v1", num_envs=2, seed=1)
    buffer = rl.ReplayBuffer(60, envs.single_observation_space, envs.single_action_space, num_envs=2, seed=1)
    rl.Collector(rl.QNetwork.for_envs(envs), envs, buffer).collect(num_steps=60, random=True)
    buffer.save(folder / "log.safetensors")
    return str(folder / "log.safetensors")


def test_offline_data_lies_on_the_device(tmp_path: Path) -> None:
    found, data = {}, logged(tmp_path)
    for device in ("cpu", "cuda"):
        fields: dict[str, Any] = {"params": rl.DiscreteCQLParams(), "policy": {"hidden_sizes": (8,)}, "seed": 2}
        recipe = rl.OfflineRecipe(
            algorithm="discrete_cql", data=data, device=device, num_gradient_steps=6, max_epochs=1,
            trainer={"batch_size": 8, "runtime": EAGER, "verbose": False, "show_progress": False}, **fields,
        )  # fmt: skip
        trainer: Any = recipe.make_trainer()
        assert trainer.params.buffer.device.type == device
        trainer.run()
        found[device] = trainer.algorithm
    assert_same_weights(found["cuda"], found["cpu"])


@pytest.mark.parametrize("cls", [rl.ReplayBuffer, rl.PrioritizedReplayBuffer])
def test_a_buffer_is_copied_to_the_device(cls: type[rl.ReplayBuffer], tmp_path: Path) -> None:
    here = cls.load(logged(tmp_path))
    there = here.to("cuda")
    assert (str(there.device), type(there), len(there), there.sampler) == ("cuda:0", rl.ReplayBuffer, len(here), None)
    back = there.to("cpu")
    one, other = there.sample(16, n_step=2), back.sample(16, n_step=2)  # the generator is copied, too
    assert (one.obs.device.type, other.obs.device.type) == ("cuda", "cpu")
    for name in ("index", "obs", "action", "reward", "next_obs", "discount"):
        torch.testing.assert_close(getattr(one, name).cpu(), getattr(other, name))


def test_a_saved_algorithm_is_loaded_by_auto(tmp_path: Path) -> None:
    for name, sizes, place in (("small", (8,), "cpu"), ("large", (256, 256), "cuda:0")):
        space = gym.spaces.Box(-1.0, 1.0, (4,))
        policy = rl.ActorCritic(space, gym.spaces.Discrete(2), hidden_sizes=sizes)
        rl.PPO(policy, rl.PPOParams()).save(tmp_path / name)
        assert places(rl.load(tmp_path / name, device="auto")) == {place}
        assert str(rl.load_policy(tmp_path / name, device="auto").device) == place
