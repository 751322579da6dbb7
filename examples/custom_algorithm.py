"""A new algorithm is its loss: expected SARSA with a softmax policy, in 25 lines; saving and resuming come with it."""

import argparse
import dataclasses
from typing import Any

import torch

import rltrainer as rl
from rltrainer.validation.field_rules import PositiveFloat


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ExpectedSARSAParams(rl.DQNParams):
    """DQN's hyperparameters and one more."""

    temperature: PositiveFloat = 0.1
    """Of the softmax whose expected value the target is."""


class ExpectedSARSA(rl.DQN):
    """DQN whose target is the value of a softmax policy (Sutton & Barto 2018, eq. 6.9), not of the greedy one."""

    params_class = ExpectedSARSAParams
    params: ExpectedSARSAParams

    def next_value(self, batch: rl.Transitions) -> torch.Tensor:
        """Return sum_a pi(a) Q_target(next_obs, a) [B]."""
        q = self.target_critic(batch.next_obs)
        probability: Any = torch.softmax(q / self.params.temperature, dim=1)
        return (probability * q).sum(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="a few seconds only, to see that it runs")
    max_epochs = 1 if parser.parse_args().short else 10
    torch.set_num_threads(1)
    rl.seed(1)
    envs = rl.make_vec("CartPole-v1", num_envs=1)
    algorithm = ExpectedSARSA(rl.QNetwork.for_envs(envs), ExpectedSARSAParams(temperature=0.5))
    buffer = rl.ReplayBuffer(10_000, envs.single_observation_space, envs.single_action_space)
    params = rl.OffPolicyTrainerParams(
        training_collector=rl.Collector(algorithm.policy, envs, buffer),
        max_epochs=max_epochs, epoch_num_steps=1000, collection_step_num_env_steps=4,
        update_step_num_gradient_steps_per_sample=0.5, warmup_num_env_steps=500, seed=1,
    )  # fmt: skip
    result = rl.OffPolicyTrainer(algorithm, params).run()
    print(f"loss {result.epochs[-1].update.metrics['loss']:.4f} after {result.gradient_step:,} gradient steps")


if __name__ == "__main__":
    main()
