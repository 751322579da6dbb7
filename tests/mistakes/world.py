"""What the code of a mistake finds: envs, an algorithm, a buffer, files; and envs of people who come from elsewhere."""

import math  # noqa: F401  # rows name it
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

import rltrainer as rl
from rltrainer.functional import scores  # noqa: F401  # rows name it

SPACE = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
BOX, WIDE = (gym.spaces.Box(-high, high, (1,), np.float32) for high in (1.0, 2.0))
DISCRETE = gym.spaces.Discrete(2)
PARTS = gym.spaces.Dict(position=SPACE, more=gym.spaces.Discrete(3))
TREE = gym.spaces.Dict(a=SPACE, b=gym.spaces.Tuple((DISCRETE, SPACE)))
GOALS = gym.spaces.Dict(observation=SPACE, achieved_goal=BOX, desired_goal=BOX)
STACKS = gym.spaces.Box(0, 255, (3, 4), np.uint8)


class Walk(gym.Env[Any, Any]):
    """Five steps, and a choice of two; a subclass does one thing wrong."""

    observation_space = SPACE
    action_space = DISCRETE
    num_steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.num_steps = 0
        return self.observe(), {}

    def observe(self) -> Any:
        return np.zeros(3, np.float32)

    def step(self, action: Any) -> Any:
        self.num_steps += 1
        return self.observe(), 1.0, False, self.num_steps >= 5, {}


class Count(rl.TensorEnv):
    """Counts its steps in tensors."""

    observation_space, action_space, num_first_uniforms = BOX, DISCRETE, 0

    def first_state(self, uniforms: Any) -> Any:
        return torch.zeros(len(uniforms), 1)

    def transition(self, state: Any, action: Any, uniforms: Any) -> Any:
        return state + 1, state[:, 0], torch.zeros(len(state), dtype=torch.bool)


class Team:
    """A parallel env of PettingZoo's kind."""

    def observation_space(self, agent: str) -> Any:
        return SPACE


def walk(name: str, **others: Any) -> type[Walk]:
    return type(name, (Walk,), others)


Turn = walk("Turn", action_space=BOX)
Flags = walk("Flags", action_space=gym.spaces.MultiBinary(2))
OldReset = walk("OldReset", reset=lambda self, *, seed=None, options=None: self.observe())
OldStep = walk("OldStep", step=lambda self, action: (self.observe(), 1.0, False, {}))
NoSeed = walk("NoSeed", reset=lambda self: (self.observe(), {}))
Float64 = walk("Float64", observe=lambda self: np.zeros(3))
Lists = walk("Lists", observe=lambda self: [0.0, 0.0, 0.0])
Longer = walk("Longer", observe=lambda self: np.zeros(4, np.float32))
NaN = walk("NaN", observe=lambda self: np.full(3, np.nan, np.float32))
NoReward = walk("NoReward", step=lambda self, action: (self.observe(), None, False, False, {}))
ByAgents = walk("ByAgents", step=lambda self, action: (self.observe(), np.zeros(2), False, False, {}))
NoSpace = walk("NoSpace", action_space=None)
Words = walk("Words", observation_space=gym.spaces.Text(5))
Thumbnails = walk("Thumbnails", observation_space=gym.spaces.Box(0, 255, (10, 10, 3), np.uint8))


class ReturnsFalse(rl.TrainerHook):
    def post_steps(self, ctx: rl.TrainerContext) -> Any:
        return False


class SB3Callback(rl.TrainerHook):
    def _on_step(self) -> bool:
        return True


def named(name: Any, **attributes: Any) -> rl.TrainerHook:
    hook: Any = rl.TrainerHook()
    vars(hook).update(name=name, **attributes)
    return hook


def trial(seed: int, lr: float, gamma: float = 0.9) -> float:
    return lr


def walks() -> Any:
    return rl.make_vec(Walk, 2, seed=1)


def replay(cls: Any = rl.ReplayBuffer, **given: Any) -> Any:
    return cls(**{"capacity": 10, "observation_space": SPACE, "action_space": DISCRETE} | given)


def filled(action_space: Any = DISCRETE) -> Any:
    """Return a buffer with a step."""
    obs, no, buffer = np.zeros((1, 3), np.float32), np.zeros(1, bool), replay(action_space=action_space)
    buffer.add(obs, np.zeros((1, *action_space.shape), action_space.dtype), np.ones(1), obs, no, no)
    return buffer


def names() -> dict[str, Any]:
    """Return what code may name, anew."""
    rl.seed(1)
    envs, turns = rl.make_vec(Walk, 2, seed=1), rl.make_vec(Turn, 2, seed=1)
    ppo = rl.PPO(rl.ActorCritic.for_envs(envs))
    arrays = {
        "observations": np.zeros((4, 3), np.float32), "actions": np.zeros((4, 1), np.float32), "rewards": np.zeros(4),
        "terminations": np.array([False, False, False, True]), "truncations": np.zeros(4, bool),
        "observation_space": SPACE, "action_space": Turn.action_space,
    }  # fmt: skip
    buffer = rl.ReplayBuffer(100, SPACE, Walk.action_space, num_envs=2)
    fields: dict[str, Any] = {
        "collection_step_num_env_steps": 20, "epoch_num_steps": 20, "max_epochs": 1, "seed": 1, "verbose": False,
        "show_progress": False, "runtime": rl.RuntimeParams(compile=False),
    }  # fmt: skip

    def trainer(**given: Any) -> rl.OnPolicyTrainer:
        made = {"training_collector": rl.Collector(ppo.policy, envs), **fields, **given}
        return rl.OnPolicyTrainer(ppo, rl.OnPolicyTrainerParams(**made))

    def off_policy() -> rl.OffPolicyTrainerParams:
        return rl.OffPolicyTrainerParams(training_collector=rl.Collector(ppo.policy, envs, replay(num_envs=2)))

    def tested(**given: Any) -> rl.OnPolicyTrainer:
        return trainer(**{"test_collector": rl.Collector(ppo.policy, rl.make_vec(Walk, 2, seed=2)), **given})

    def collect(env: type[Walk]) -> Any:
        return rl.Collector(ppo.policy, rl.make_vec(env, 2, seed=1)).collect(num_steps=20)

    return {**globals(), **locals(), "policy": ppo.policy}


def write_files(folder: Path) -> None:
    """Write what mistakes are made with: an algorithm, a buffer, a checkpoint, a run, and what is none of these."""
    world = names()
    world["ppo"].save(folder / "ppo.safetensors")
    rl.ReplayBuffer.from_arrays(**world["arrays"]).save(folder / "data.safetensors")
    trainer = world["tested"](run_folder=rl.RunFolder(folder / "runs" / "first"))
    trainer.run()
    trainer.save(folder / "checkpoint")
    torch.save({"weights": torch.zeros(3)}, folder / "sb3.zip")
    (folder / "rows.npz").write_text("no arrays")
    (folder / "empty").mkdir()
