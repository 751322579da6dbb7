"""The work with skrl. Runs in its own virtual environment; prints one JSON line.

skrl's PPO normalises advantages once per rollout, the others per minibatch.
"""

import dataclasses
from typing import Any

import gymnasium as gym
import task
import torch
from skrl.agents.torch import Agent
from skrl.agents.torch.ppo import PPO
from skrl.agents.torch.sac import SAC
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, GaussianMixin, Model
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed

PACKAGES = ("skrl", "torch", "gymnasium", "numpy")
NO_FILES = {"write_interval": 0, "checkpoint_interval": 0}


def mlp(in_features: int, out_features: int, sizes: tuple[int, ...], activation: Any) -> torch.nn.Sequential:
    layers: list[torch.nn.Module] = []
    for size in sizes:
        layers += [torch.nn.Linear(in_features, size), activation()]
        in_features = size
    return torch.nn.Sequential(*layers, torch.nn.Linear(in_features, out_features))


class CategoricalActor(CategoricalMixin, Model):
    """Logits of the actions."""

    def __init__(self, sizes: tuple[int, ...], **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        CategoricalMixin.__init__(self)
        self.net = mlp(self.num_observations, self.num_actions, sizes, torch.nn.Tanh)

    def compute(self, inputs: dict[str, Any], role: str) -> tuple[torch.Tensor, dict[str, Any]]:
        return self.net(inputs["observations"]), {}


class Value(DeterministicMixin, Model):
    """The value of an observation."""

    def __init__(self, sizes: tuple[int, ...], **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)
        self.net = mlp(self.num_observations, 1, sizes, torch.nn.Tanh)

    def compute(self, inputs: dict[str, Any], role: str) -> tuple[torch.Tensor, dict[str, Any]]:
        return self.net(inputs["observations"]), {}


class GaussianActor(GaussianMixin, Model):
    """Mean in (-1, 1) and standard deviation: skrl's SAC does not squash the sample."""

    def __init__(self, sizes: tuple[int, ...], **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        GaussianMixin.__init__(self, clip_actions=True)
        self.net = mlp(self.num_observations, 2 * self.num_actions, sizes, torch.nn.ReLU)

    def compute(self, inputs: dict[str, Any], role: str) -> tuple[torch.Tensor, dict[str, Any]]:
        mean, log_std = self.net(inputs["observations"]).chunk(2, -1)
        return torch.tanh(mean), {"log_std": log_std}


class Critic(DeterministicMixin, Model):
    """The value of an observation and an action."""

    def __init__(self, sizes: tuple[int, ...], **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)
        self.net = mlp(self.num_observations + self.num_actions, 1, sizes, torch.nn.ReLU)

    def compute(self, inputs: dict[str, Any], role: str) -> tuple[torch.Tensor, dict[str, Any]]:
        return self.net(torch.cat([inputs["observations"], inputs["taken_actions"]], -1)), {}


def make_agent(work: task.Work, envs: Any) -> Agent:
    """Return the agent; its networks are as the work says, actor and critic apart."""
    spaces = {"observation_space": envs.observation_space, "action_space": envs.action_space, "device": "cpu"}
    shared = {"discount_factor": task.GAMMA, "learning_rate": work.lr, "experiment": NO_FILES}
    if work.kind == "ppo":
        rows = work.chunk // work.num_envs
        return PPO(
            models={
                "policy": CategoricalActor(work.hidden_sizes, **spaces), "value": Value(work.hidden_sizes, **spaces)
            },
            memory=RandomMemory(memory_size=rows, num_envs=work.num_envs, device="cpu"),
            cfg={
                "rollouts": rows, "learning_epochs": work.repeat, "mini_batches": work.chunk // work.batch_size,
                "gae_lambda": task.GAE_LAMBDA, "grad_norm_clip": task.MAX_GRAD_NORM, "ratio_clip": task.CLIP,
                "value_clip": 0.0, "value_loss_scale": task.VALUE_COEF, "entropy_loss_scale": 0.0, **shared,
            },
            **spaces,
        )  # fmt: skip
    if work.kind == "sac":
        critics = ("critic_1", "critic_2", "target_critic_1", "target_critic_2")
        return SAC(
            models={
                "policy": GaussianActor(work.hidden_sizes, **spaces),
                **{name: Critic(work.hidden_sizes, **spaces) for name in critics},
            },
            memory=RandomMemory(memory_size=task.REPLAY_SIZE, num_envs=work.num_envs, device="cpu", replacement=True),
            cfg={
                "batch_size": work.batch_size, "polyak": task.TAU, "initial_entropy_value": 1.0,
                "random_timesteps": work.random_steps, "learning_starts": work.random_steps, **shared,
            },
            **spaces,
        )  # fmt: skip
    raise SystemExit(f"no {work.kind} with skrl here")


def main() -> None:
    args = task.parser(__doc__).parse_args()
    work = task.WORKS[args.work]
    torch.set_num_threads(1)
    set_seed(args.seed)
    raw = gym.make_vec(work.env_id, work.num_envs, "sync") if work.num_envs > 1 else gym.make(work.env_id)
    envs = wrap_env(raw, wrapper="gymnasium", verbose=False)
    agent = make_agent(work, envs)
    cfg = {"timesteps": 1, "headless": True, "disable_progressbar": True, "close_environment_at_exit": False}
    trainer = SequentialTrainer(env=envs, agents=agent, cfg=cfg)

    def advance(steps: int) -> int:
        trainer.cfg.timesteps = steps // work.num_envs  # the trainer counts from 0 at each call
        trainer.train()
        return steps

    if work.random_steps:
        advance(work.random_steps)
        agent.cfg.random_timesteps = agent.cfg.learning_starts = 0
    task.measure(dataclasses.replace(work, random_steps=0), advance, args, raw, PACKAGES)


if __name__ == "__main__":
    main()
