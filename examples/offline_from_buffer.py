"""Collect data with a half-trained agent and save it; then, in a second process, train from the file alone.

python examples/offline_from_buffer.py            both steps, the second in a process of its own
python examples/offline_from_buffer.py collect    only the first
python examples/offline_from_buffer.py train      only the second
"""

import argparse
import subprocess
import sys
from pathlib import Path

import torch

import rltrainer as rl


def collect(path: Path, short: bool) -> None:
    """Half-train SAC on Pendulum and save what it then does, exploring."""
    envs = rl.make_vec("Pendulum-v1", num_envs=4)
    policy = rl.SquashedActorCritic.for_envs(envs, hidden_sizes=(64, 64))
    spaces = (envs.single_observation_space, envs.single_action_space)
    params = rl.OffPolicyTrainerParams(
        training_collector=rl.Collector(policy, envs, rl.ReplayBuffer(20_000, *spaces, num_envs=4)),
        max_epochs=1,
        epoch_num_steps=600 if short else 5000,
        collection_step_num_env_steps=4,
        update_step_num_gradient_steps_per_sample=0.5,
        warmup_num_env_steps=400,
        batch_size=128,
        seed=1,
    )
    rl.OffPolicyTrainer(rl.SAC(policy, rl.SACParams(lr=1e-3)), params).run()
    buffer = rl.ReplayBuffer(2000 if short else 10_000, *spaces, num_envs=4)
    stats = rl.Collector(policy, envs, buffer).collect(num_steps=buffer.capacity)
    buffer.save(path)
    print(f"{len(buffer):,} transitions in {path}; behaviour policy's mean return {stats.returns.mean():.1f}")


def train(path: Path, short: bool) -> None:
    """Train TD3+BC from the file; the env is only there to test."""
    buffer = rl.ReplayBuffer.load(path)
    policy = rl.DeterministicActorCritic.for_spaces(buffer.observation_space, buffer.action_space, normalize_obs=True)
    params = rl.OfflineTrainerParams(
        buffer=buffer,
        test_collector=rl.Collector(policy, rl.make_vec("Pendulum-v1", num_envs=10)),
        test_step_num_episodes=10,
        max_epochs=1 if short else 5,
        epoch_num_steps=100 if short else 1000,
        **rl.TD3BC.recommended(),
        seed=1,
    )
    result = rl.OfflineTrainer(rl.TD3BC(policy), params).run()
    print(f"best score {result.best_score:.1f} after {result.gradient_step:,} gradient steps")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", nargs="?", choices=("collect", "train"))
    parser.add_argument("--path", type=Path, default=Path("runs/pendulum_buffer.safetensors"))
    parser.add_argument("--short", action="store_true", help="a few seconds only, to see that it runs")
    args = parser.parse_args()

    torch.set_num_threads(1)
    rl.seed(1)
    if args.step == "train":
        train(args.path, args.short)
        return
    collect(args.path, args.short)
    if args.step is None:
        options = ["--path", str(args.path), *(["--short"] if args.short else [])]
        subprocess.run([sys.executable, __file__, "train", *options], check=True)


if __name__ == "__main__":
    main()
