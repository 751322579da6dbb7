"""Pictures for the page "It does not learn": short trainings with one mistake each, beside the same without it.

    python -m pictures.symptoms                 trains all runs, a minute on one core, and draws
    python -m pictures.symptoms --runs FOLDER   keeps the runs; those that are there are only drawn

Writes docs/images/symptoms/*.png, and symptoms.json there: the first, last, smallest and largest value of each number
that the page tells of a run. A test compares the page with them.
"""

import argparse
import functools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

import rltrainer as rl
from pictures.figures import save

FOLDER = Path(__file__).parents[1] / "docs" / "images" / "symptoms"
SEED = 3
SEEDS = (4, 5, 6, 7)
"""Further ones, for `COMPARED`."""


class Millimetres(gym.ObservationWrapper):
    """CartPole whose cart is measured in millimetres."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)

    def observation(self, observation: Any) -> Any:
        return observation * np.array([1000, 1000, 1, 1], np.float32)


class TwoShops(gym.Env):
    """A street of 16 places: to stay at its left end pays 0.3 a step, at its right end 1. It never ends."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,))
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(16))
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place = int(np.clip(self.place + int(action) - 1, 0, 15))
        return self._obs(), {0: 0.3, 15: 1.0}.get(self.place, 0.0), False, False, {}

    def _obs(self) -> Any:
        return np.array([self.place / 7.5 - 1], np.float32)


class Terminated(gym.Wrapper):
    """Says of a time limit that the task has ended: the mistake."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated or truncated, False, info


def limit(env: gym.Env, num_steps: int) -> gym.Env:
    return gym.wrappers.TimeLimit(env, num_steps)


def times_1000(env: gym.Env) -> gym.Env:
    return gym.wrappers.TransformReward(env, lambda reward: 1000 * reward)


def fields(folder: Path, policy: rl.Policy, tests: Any, seed: int = SEED, **others: Any) -> dict[str, Any]:
    """Return what all runs have in common."""
    common = {
        "test_collector": rl.Collector(policy, tests), "test_step_num_episodes": 10, "seed": seed,
        "logger": rl.RunFolder(folder).logger("jsonl", training_interval=200), "verbose": False,
        "show_progress": False, "runtime": rl.RuntimeParams(compile=False),
    }  # fmt: skip
    return common | others


def ppo(
    folder: Path,
    env: Any = "CartPole-v1",
    max_epochs: int = 8,
    wrappers: tuple[Any, ...] = (),
    test_wrappers: tuple[Any, ...] | None = None,
    policy: dict[str, Any] | None = None,
    trainer: dict[str, Any] | None = None,
    seed: int = SEED,
    **params: Any,
) -> None:
    """Train PPO; the rest of the arguments are its params."""
    rl.seed(seed)
    envs = rl.make_vec(env, 8, wrappers=wrappers)
    tests = rl.make_vec(env, 10, wrappers=wrappers if test_wrappers is None else test_wrappers)
    algorithm = rl.PPO(rl.ActorCritic.for_envs(envs, **(policy or {})), rl.PPOParams(**({"lr": 1e-3} | params)))
    given = {
        "max_epochs": max_epochs, "epoch_num_steps": 4096, "collection_step_num_env_steps": 1024, "batch_size": 256,
        "update_step_num_repetitions": 10,
    } | (trainer or {})  # fmt: skip
    collector = rl.Collector(algorithm.policy, envs)
    algorithm.run_training(
        rl.OnPolicyTrainerParams(training_collector=collector, **fields(folder, algorithm.policy, tests, seed, **given))
    )


def mean_q(ctx: rl.TrainerContext, batch: Any) -> dict[str, Any]:
    """Return the value of the best action, on average over what was just collected."""
    return {"q": ctx.algorithm.policy.q_values(batch.obs).max(-1).values.mean()}


def dqn(folder: Path, trainer: dict[str, Any] | None = None, **params: Any) -> None:
    """Train DQN on CartPole."""
    rl.seed(SEED)
    envs = rl.make_vec("CartPole-v1", 1)
    algorithm = rl.DQN(rl.QNetwork.for_envs(envs, hidden_sizes=(64, 64)), rl.DQNParams(**params))
    buffer = rl.ReplayBuffer(20_000, envs.single_observation_space, envs.single_action_space)
    given = {
        "max_epochs": 10, "epoch_num_steps": 1000, "collection_step_num_env_steps": 4, "warmup_num_env_steps": 500,
        "update_step_num_gradient_steps_per_sample": 0.5, "hooks": [rl.FunctionHook("pre_steps_log", mean_q)],
    } | (trainer or {})  # fmt: skip
    collector = rl.Collector(algorithm.policy, envs, buffer)
    tests = rl.make_vec("CartPole-v1", 10)
    algorithm.run_training(
        rl.OffPolicyTrainerParams(training_collector=collector, **fields(folder, algorithm.policy, tests, **given))
    )


COMPARED = ("healthy", "lr 100 times as large")
"""The runs that are compared over seeds."""

short, long = functools.partial(limit, num_steps=12), functools.partial(limit, num_steps=200)
street = functools.partial(ppo, env=TwoShops, max_epochs=16, test_wrappers=(long,), entropy_coef=0.01)
RUNS: dict[str, Callable[[Path], None]] = {
    "healthy": ppo,
    "lr 100 times as large": functools.partial(ppo, lr=0.1),
    "rewards times 1000": functools.partial(ppo, wrappers=(times_1000,)),
    "one update per rollout": functools.partial(ppo, trainer={"batch_size": None, "update_step_num_repetitions": 1}),
    "entropy_coef=1": functools.partial(ppo, entropy_coef=1.0),
    "in millimetres": functools.partial(ppo, wrappers=(Millimetres,)),
    "in millimetres, normalised": functools.partial(ppo, wrappers=(Millimetres,), policy={"normalize_obs": True}),
    "truncated": functools.partial(street, wrappers=(short,)),
    "terminated": functools.partial(street, wrappers=(short, Terminated)),
    "DQN": dqn,
    "no target network": functools.partial(dqn, target_update_interval=1),
    "no exploration": functools.partial(dqn, trainer={"warmup_num_env_steps": 0}, epsilon=0.0),
}
"""Each run by its name in the pictures."""


for name in COMPARED:
    RUNS |= {f"{name}, seed {seed}": functools.partial(RUNS[name], seed=seed) for seed in SEEDS}

PICTURES: dict[str, tuple[str, tuple[str, ...], bool]] = {
    "return": ("test/return", COMPARED, False),
    "approx_kl": ("update/approx_kl", COMPARED, True),
    "entropy": ("update/entropy", ("healthy", "lr 100 times as large", "entropy_coef=1"), False),
    "few_updates": ("test/return", ("healthy", "one update per rollout"), False),
    "reward_scale": ("update/value_loss", ("healthy", "rewards times 1000"), True),
    "reward_scale_kl": ("update/approx_kl", ("healthy", "rewards times 1000"), False),
    "units": ("test/return", ("in millimetres, normalised", "in millimetres"), False),
    "time_limit": ("test/return", ("truncated", "terminated"), False),
    "time_limit_variance": ("update/explained_variance", ("truncated", "terminated"), False),
    "q": ("training/q", ("DQN", "no target network"), True),
    "q_return": ("test/return", ("DQN", "no target network"), False),
    "exploration": ("training/return", ("DQN", "no exploration"), False),
}
"""Each picture: a number of the log, the runs that it shows, and whether its scale is logarithmic."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="folder of the runs; one that is removed without it")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folders = {name: (args.runs or Path(temporary)) / name for name in RUNS}
        for name, folder in folders.items():
            if not folder.exists():
                print(name, flush=True)
                RUNS[name](folder)
        FOLDER.mkdir(parents=True, exist_ok=True)
        for picture, (value, names, is_log) in PICTURES.items():
            draw(picture, value, {name: folders[name] for name in names}, is_log)
        seeds = {name: [folders[each] for each in RUNS if each.partition(", ")[0] == name] for name in COMPARED}
        draw("seeds", "test/return", seeds)
        figures = {name: numbers(folder) for name, folder in folders.items()}
        (FOLDER / "symptoms.json").write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n")


def draw(picture: str, value: str, runs: dict[str, Any], is_log: bool = False) -> None:
    figure = rl.plots.learning_curves(runs, value)
    if is_log:
        figure.axes[0].set_yscale("log")
    save(figure, FOLDER / f"{picture}.png")


def numbers(folder: Path) -> dict[str, dict[str, float]]:
    """Return, of each number that a picture shows or the page tells, its first, last, smallest and largest value."""
    run = rl.open_run(folder)
    shown = sorted({value for value, _, _ in PICTURES.values()} | {"update/clip_fraction", "update/loss"})
    found = {}
    for kind, _, name in (value.partition("/") for value in shown):
        values = run.rows(kind).get(name)
        if values is not None and len(values := values[np.isfinite(values)]):
            of_run = {"first": values[0], "last": values[-1], "smallest": values.min(), "largest": values.max()}
            found[f"{kind}/{name}"] = {which: float(f"{number:.3g}") for which, number in of_run.items()}
    return found


if __name__ == "__main__":
    main()
