"""Mistakes of users: a type checker must report every line that says so, and no other. Never run."""

import dataclasses

import gymnasium as gym
import numpy as np

import rltrainer as rl
from rltrainer.validation.field_rules import PositiveFloat

envs = rl.make_vec("CartPole-v1", num_envs=2)
policy = rl.ActorCritic.for_envs(envs)
algorithm = rl.PPO(policy)
collector = rl.Collector(policy, envs)
buffer = rl.ReplayBuffer(100, envs.single_observation_space, envs.single_action_space)

dqn = rl.DQN(rl.QNetwork.for_envs(envs))
trainer_params = rl.OnPolicyTrainerParams(training_collector=collector)

# Params: names, values, positional arguments, what is missing, what is frozen.
rl.PPOParams(learning_rate=1)  # mistake
rl.PPOParams(lr="x")  # mistake
rl.PPOParams(3e-4)  # mistake
rl.PPOParams(lr=lambda progress: "x")  # mistake
rl.PPOParams(normalize_advantage="yes")  # mistake
rl.SACParams(ent_coef=0.1)  # mistake
rl.DQNParams(epsilon=None)  # mistake
rl.BCParams(optimizer=3)  # mistake
rl.RuntimeParams(compile="always")  # mistake
rl.RuntimeParams(deterministic="yes")  # mistake
rl.ProfilerParams(active="3")  # mistake
rl.get_logger("tensorbord")  # mistake
rl.RunFolder.new("cartpole").logger("csv", training_intervall=3)  # mistake
rl.UpdateParams(max_grad_norm="1")  # mistake
rl.PrecisionParams(amp="fp8")  # mistake
rl.OnPolicyTrainerParams(batchsize=3)  # mistake
rl.OnPolicyTrainerParams(batch_size=3)  # mistake: no training_collector
rl.OnPolicyTrainerParams(training_collector=collector, batchsize=3)  # mistake
rl.OnPolicyTrainerParams(training_collector=envs)  # mistake
rl.OffPolicyTrainerParams(training_collector=collector, batch_size=None)  # mistake
rl.OfflineTrainerParams()  # mistake: no buffer
rl.OfflineTrainerParams(buffer=[])  # mistake
params = rl.PPOParams()
dataclasses.replace(params, lrr=1)  # mistake
dataclasses.replace(params, lr="x")  # mistake
params.lr = 1  # mistake
print(params.learning_rate)  # mistake
rl.PPOParams.from_json(3)  # mistake
rl.load(3)  # mistake
rl.load("best", class_=[int])  # mistake
rl.load_policy("best", [int])  # mistake
rl.load("best", device=0)  # mistake
policy.predict([1.0], explor=True)  # mistake


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class OwnParams(rl.PPOParams):
    penalty: PositiveFloat = 0.5


OwnParams(penalti=0.1)  # mistake
OwnParams(penalty="x")  # mistake


# Callbacks.
def stop_without_score() -> bool:
    return True


def score_as_text(stats: rl.CollectStats) -> str:
    return str(stats.returns.mean())


def train_with_one(epoch: int) -> None: ...


rl.OnPolicyTrainerParams(training_collector=collector, stop_fn=stop_without_score)  # mistake
rl.OnPolicyTrainerParams(training_collector=collector, stop_fn=lambda score: "yes")  # mistake
rl.OnPolicyTrainerParams(training_collector=collector, compute_score_fn=score_as_text)  # mistake
rl.OnPolicyTrainerParams(training_collector=collector, compute_score_fn=lambda stats: stats.mean)  # mistake
rl.OnPolicyTrainerParams(training_collector=collector, training_fn=train_with_one)  # mistake
rl.OnPolicyTrainerParams(training_collector=collector, save_best_fn="best.safetensors")  # mistake
rl.OnPolicyTrainerParams(training_collector=collector, logger="runs")  # mistake

# Policies: options of for_envs, for_spaces and the constructors are the same.
rl.ActorCritic.for_envs(envs, hiden_sizes=(3,))  # mistake
rl.ActorCritic.for_envs(envs, hidden_sizes=3)  # mistake
rl.ActorCritic.for_envs(envs, (64, 64))  # mistake
rl.ActorCritic.for_envs(envs, dueling=True)  # mistake
rl.ActorCritic.for_envs("CartPole-v1")  # mistake
rl.ActorCritic.for_envs(gym.make("CartPole-v1"))  # mistake
rl.ActorCritic.for_envs()  # mistake
rl.Actor.for_envs(envs, share_encoder=True)  # mistake
rl.Actor.for_envs(envs, critic_net=rl.NetParams())  # mistake
rl.ActorCritic.for_envs(envs, rl.NetParams(hiden_sizes=(3,)))  # mistake
rl.ActorCritic.for_envs(envs, rl.NetParams(norm="bach"))  # mistake
rl.ActorCritic.for_envs(envs, net={"hidden_sizes": (3,)})  # mistake
rl.NetParams((64, 64))  # mistake
rl.NetParams(encoder="cnn")  # mistake
rl.QNetwork.for_envs(envs, duelling=True)  # mistake
rl.QNetwork.for_spaces(envs.single_observation_space, envs.single_action_space, hiden_sizes=(3,))  # mistake
rl.QNetwork.for_spaces(envs)  # mistake
rl.DeterministicActorCritic.for_envs(envs, n_critics=2)  # mistake
rl.SquashedActorCritic.for_envs(envs, hidden_sizes="256")  # mistake
rl.GaussianActorCritic.for_envs(envs, hiden_sizes=(3,))  # mistake
rl.Actor.for_envs(envs, normalize_reward=True)  # mistake
rl.GaussianActorCritic(envs.single_observation_space, envs.single_action_space, hiden_sizes=(3,))  # mistake

# Algorithms, collectors, trainers.
rl.PPO(policy, rl.PPOParams)  # mistake
rl.PPO(policy, rl.A2CParams())  # mistake
rl.PPO(policy, {"lr": 1})  # mistake
rl.PPO(rl.QNetwork.for_envs(envs))  # mistake
rl.PPO(policy, lr=1)  # mistake
rl.TD3BC(rl.DeterministicActorCritic.for_envs(envs), rl.TD3Params())  # mistake
rl.Collector(envs, policy)  # mistake
rl.Collector(policy, envs, bufer=buffer)  # mistake
collector.collect(num_step=3)  # mistake
rl.ReplayBuffer("100", envs.single_observation_space, envs.single_action_space)  # mistake
rl.OnPolicyTrainer(dqn, trainer_params)  # mistake
rl.OnPolicyTrainer(algorithm, rl.PPOParams())  # mistake
algorithm.run_training(rl.PPOParams())  # mistake
print(rl.OnPolicyTrainer(algorithm, trainer_params).run().best)  # mistake
print(algorithm.run_training(trainer_params).best)  # mistake
rl.LinearSchedule("1")  # mistake
rl.Every(10, "env_steps")  # mistake
rl.CSVLogger("log.csv", training_intervall=3)  # mistake
rl.make_vec("CartPole-v1", num_envs="2")  # mistake
rl.make_vec(3, num_envs=2)  # mistake
rl.make_vec("CartPole-v1", num_envs=2, backend="synk")  # mistake
buffer.sample(batchsize=3)  # mistake
buffer.sample_sequences(3, 4, burnin=2)  # mistake
rl.PrioritizedReplayBuffer(9, envs.single_observation_space, envs.single_action_space, betta=0.4)  # mistake
rl.ReplayBuffer.load("data.safetensors", capactiy=9)  # mistake
rl.ReplayBuffer.load("data.safetensors", alpha=0.5)  # mistake
rl.PrioritizedReplayBuffer.load("data.safetensors", alhpa=0.5)  # mistake
rl.HindsightReplayBuffer(9, envs.single_observation_space, envs.single_action_space)  # mistake
rl.MixedBuffer(buffer, buffer, share=0.5)  # mistake
policy.act(observations=3)  # mistake
rl.CosineSchedule(1.0, until="x")  # mistake
rl.OnPolicyTrainer(algorithm, trainer_params).run(reset_colectors=False)  # mistake
np_step: np.int64 = algorithm.gamma  # mistake
rl.OffPolicyTrainerParams(training_collector=collector, **rl.PPO.recommended(envs))  # mistake
rl.PPO.recommended("CartPole-v1")  # mistake
rl.PPO.recommended(envs)["batchsize"]  # mistake
rl.Collector(policy, envs, max_episode_steps="7")  # mistake
rl.CosineSchedule("1")  # mistake
rl.IQLParams(actor_lr="x")  # mistake
