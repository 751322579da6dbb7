"""Programs as users write them: a strict type checker has nothing to say. Never run."""

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

import rltrainer as rl
from rltrainer.functional.losses import weighted_mean
from rltrainer.validation.field_rules import NonNegativeFloat, PositiveFloat, Scheduled

rl.seed(1)
envs = rl.make_vec("CartPole-v1", num_envs=2, seed=1)
test_envs = rl.make_vec(lambda: gym.make("CartPole-v1"), num_envs=2, backend="sync")
policy: rl.ActorCritic = rl.ActorCritic.for_envs(
    envs, hidden_sizes=(64, 64), activation=nn.Tanh, normalize_obs=True, share_encoder=False
)
algorithm = rl.PPO(policy, rl.PPOParams(lr=rl.LinearSchedule(3e-4), clip=lambda progress: 0.2 - 0.1 * progress))
default = rl.PPO(rl.ActorCritic.for_envs(envs))


def compute_score(stats: rl.CollectStats) -> float:
    return float(stats.returns.min())


def save_best(best: rl.PPO) -> None:
    best.save("best.safetensors")


params = rl.OnPolicyTrainerParams(
    training_collector=rl.Collector(policy, envs), test_collector=rl.Collector(policy, test_envs), max_epochs=2,
    batch_size=None, training_fn=lambda epoch, env_step: None, stop_fn=lambda score: score >= 475,
    compute_score_fn=compute_score, save_best_fn=save_best, precision=rl.PrecisionParams(amp="bf16"),
    save_checkpoint_fn=lambda epoch, env_step, gradient_step: f"{epoch}",
    logger=rl.MultiLogger(rl.CSVLogger("log.csv"), rl.TensorBoardLogger("runs", update_interval=10)),
    runtime=rl.RuntimeParams(compile=False, num_threads=1, profiler=rl.ProfilerParams(folder="profile", active=1)),
)  # fmt: skip
params = dataclasses.replace(params, max_epochs=3)
params = dataclasses.replace(params, logger=rl.get_logger("csv", "runs", training_interval=10))
folder = rl.RunFolder.new(rl.generate_exp_name("ppo", "CartPole-v1"))
params = dataclasses.replace(params, logger=folder.logger("tensorboard"), save_best_fn=folder.save_best)
result: rl.InfoStats = rl.OnPolicyTrainer(algorithm, params).run()
score: float | None = result.best_score
again = algorithm.run_training(params)
best: float | None = again.best_score
assert again.epochs[0].test_stats is not None
mean: float = again.epochs[0].test_stats.returns.mean()
loaded: rl.Algorithm = rl.load("best.safetensors", classes=[dict], device=torch.device("cpu"))
left_out: list[str] = loaded.load("best.safetensors", strict=False).missing_keys
deployed: rl.Policy = rl.load_policy("best.safetensors", classes={"Own": dict}, device="cpu")
print(deployed.predict(np.zeros(4), explore=True), deployed(torch.zeros(1, 4)))
deployed.save("policy.safetensors")


@rl.register
class Doubled(nn.Module):
    """An activation of the user's."""


rl.Actor.for_envs(envs, activation=Doubled)
same: rl.PPOParams = rl.PPOParams.from_json(algorithm.params.to_json(), optimizer=None)
print(copy.deepcopy(algorithm.params), same)

q_network = rl.QNetwork.for_spaces(envs.single_observation_space, envs.single_action_space, dueling=True)
dqn = rl.DQN(
    q_network, rl.DQNParams(epsilon=0.1, optimizer=lambda parameters: torch.optim.AdamW(parameters, weight_decay=0.01))
)
buffer = rl.ReplayBuffer(100, envs.single_observation_space, envs.single_action_space, num_envs=2)
off_policy = rl.OffPolicyTrainerParams(
    training_collector=rl.Collector(q_network, envs, buffer), warmup_num_env_steps=10
)
rl.OffPolicyTrainer(dqn, off_policy).run()
print(rl.OfflineTrainer(dqn, rl.OfflineTrainerParams(buffer=buffer)).run().best_epoch)
batch: rl.Transitions = buffer.sample(32, n_step=2, num_batches=4)
sequences: rl.Sequences = buffer.sample_sequences(32, 8, burn_in=4)
spaces = (envs.single_observation_space, envs.single_action_space)
prioritized = rl.PrioritizedReplayBuffer(100, *spaces, num_envs=2, alpha=0.5, beta=rl.LinearSchedule(0.4, 1.0))
mixed: rl.ReplayBuffer = rl.MixedBuffer(prioritized, buffer, offline_share=0.5)
rl.HindsightReplayBuffer(100, *spaces, compute_reward=lambda achieved, desired, info: achieved == desired)
action = policy.act(torch.zeros(2, 4), explore=True)

pendulum = rl.make_vec("Pendulum-v1", 1)
rl.SAC(rl.SquashedActorCritic.for_envs(pendulum, hidden_sizes=[256, 256], num_critics=2, activation=nn.ReLU))
rl.TD3BC(rl.DeterministicActorCritic.for_envs(pendulum), rl.TD3BCParams(alpha=2.5))
rl.IQL(rl.GaussianActorCritic.for_envs(pendulum, activation=lambda: nn.ELU(0.5)), rl.IQLParams(beta=1))
rl.BC(rl.Actor.for_envs(pendulum, hidden_sizes=()))
rl.ActorCritic.for_envs(
    envs, rl.NetParams(hidden_sizes=[64], activation=nn.LayerNorm, norm="layer", keys=["position"]), log_std_init=-1
)
rl.QNetwork.for_envs(envs, net=rl.NetParams(encoder=lambda space: nn.Flatten() if space.shape else None), num_outputs=5)


class SmallPolicy(rl.ActorCritic):
    """A policy of the user's, with options of its own."""

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], *, width: int = 8) -> None:
        super().__init__(observation_space, action_space, hidden_sizes=(width,))


small: SmallPolicy = SmallPolicy.for_envs(envs, width=3)


def build(policy_class: type[rl.ActorCritic]) -> rl.ActorCritic:
    return policy_class.for_envs(envs)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class OwnParams(rl.OffPolicyParams):
    """Params of the user's."""

    noise: NonNegativeFloat = 0.1
    penalty: PositiveFloat | Scheduled = 0.5


class Own(rl.OffPolicyAlgorithm):
    """An algorithm of the user's."""

    policy_class = rl.DeterministicActorCritic
    params_class = OwnParams
    policy: rl.DeterministicActorCritic
    params: OwnParams

    def __init__(self, policy: rl.DeterministicActorCritic, params: OwnParams | None = None) -> None:
        super().__init__(policy, params)
        self.policy.exploration = rl.GaussianNoise(self.params.noise)
        self.optimizer = self.make_optimizer(self.params, critic=policy.critic)

    def gradient_step(self, batch: rl.Transitions, noise: None) -> rl.UpdateResult:
        loss = weighted_mean(self.policy.critic(batch.obs, batch.action)[0], batch.weight)
        self.optimizer.step(loss)
        return rl.UpdateResult({"loss": loss.detach()})


Own(rl.DeterministicActorCritic.for_envs(pendulum), OwnParams(penalty=rl.LinearSchedule(1.0, 0.1)))
sizes: Sequence[int] = np.array([64, 64]).tolist()
rl.ActorCritic.for_envs(envs, hidden_sizes=sizes)
rl.OnPolicyTrainerParams(training_collector=rl.Collector(policy, envs), **rl.PPO.recommended(envs), max_epochs=3)
rl.OnPolicyTrainerParams(
    training_collector=rl.Collector(policy, envs), **(rl.PPO.recommended(envs) | {"batch_size": 32})
)
rl.IQLParams(actor_lr=rl.CosineSchedule(3e-4), critic_lr=1e-3)
rl.FQL(rl.FlowActorCritic.for_envs(pendulum, chunk_length=2), rl.FQLParams(chunk_length=2))
rl.ReBRAC(rl.DeterministicActorCritic.for_envs(pendulum), rl.ReBRACParams(critic_bc_coef=0.1))
rl.CalQL(rl.SquashedActorCritic.for_envs(pendulum), rl.CalQLParams(conservative_coef=1.0))
rl.FQE(rl.SquashedActorCritic.for_envs(pendulum), rl.FQEParams(tau=0.01), rl.NetParams(hidden_sizes=(64,)))
rl.train("Pendulum-v1", "redq", data="logged.safetensors", offline_share=0.5)
rl.A2CParams(optimizer=rl.rms_prop)
