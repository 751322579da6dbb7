"""RND (Burda et al. 2018, Exploration by Random Network Distillation): a bonus for observations that are new."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from rltrainer.algorithms.algorithm import Algorithm, AlgorithmParams
from rltrainer.algorithms.minibatches import OnPolicyBatch
from rltrainer.algorithms.on_policy_algorithm import OnPolicyAlgorithm
from rltrainer.algorithms.policy_gradient.ppo import PPO
from rltrainer.errors import ParamsError
from rltrainer.functional.losses import weighted_mean
from rltrainer.functional.returns import gae
from rltrainer.nets import NetParams
from rltrainer.nets.encoder import Encoder
from rltrainer.nets.heads import ValueHead
from rltrainer.nets.linear import Chain
from rltrainer.nets.normalizer import ObsNormalizer, RewardScaler
from rltrainer.plan import UpdatePlan
from rltrainer.schedules import ScheduledValue
from rltrainer.tree import Tree, map_tree
from rltrainer.types import Rollout, UpdateResult
from rltrainer.validation.field_rules import Flag, NonNegativeFloat, PositiveFloat, PositiveInt, Scheduled, UnitFloat

LIMIT = 5.0
"""Largest deviation of a standardised observation (section 2.4)."""
OF_THE_ALGORITHM = (
    "_measure", "before_batches", "check_batch_size", "check_num_steps", "columns_if_stale", "columns_read",
    "continues", "gamma", "generator", "in_all", "occasional_metrics", "standardizes", "trains_recurrent",
    "waits_in_update",
)  # fmt: skip
"""Names of what is the wrapped algorithm's."""
OF_THE_PLAN = ("_execution", "accumulation", "num_ranks", "plan", "reduce")
"""Names of what both have from a plan."""


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class RNDParams(AlgorithmParams):
    """Hyperparameters of RND: of the bonus, and of the network that predicts.

    The defaults are the form for robots, from rsl_rl: the bonus is added to the reward. The form of the paper is
    `RNDParams(separate_value=True, weight=0.5, share=0.25, lr=1e-4)` around `PPO(policy, PPOParams(gamma=0.999))`.
    """

    gamma: UnitFloat = 0.99
    """Discount factor of bonuses per env step, for their own value, and for the sums by which they are scaled."""
    lr: PositiveFloat | Scheduled = 1e-3
    """Learning rate of the predicting network, and of the value of bonuses."""
    weight: NonNegativeFloat | Scheduled = 0.1
    """Factor of the bonus, or of its advantages; or a schedule of it over progress."""
    net: NetParams = NetParams()  # noqa: RUF009  # frozen
    """Parts of the random network and of the network that predicts it, by default two hidden layers of 64 with ELU.
    `keys` chooses the parts of an observation that may be new."""
    num_outputs: PositiveInt = 64
    """Numbers that the random network returns."""
    normalize_obs: Flag = True
    """Standardise the observations that both networks see by running statistics, clipped to [-5, 5]."""
    normalize_bonus: Flag = False
    """Divide bonuses by the standard deviation of their discounted sums. With `separate_value` they always are."""
    separate_value: Flag = False
    """The form of the paper, for PPO: bonuses have a value network, which sees no end of an episode, and advantages are
    added, not rewards: A + weight * A of the bonus. A bonus is half the squared error."""
    share: UnitFloat = 1.0
    """Share of the env steps that the predicting network learns from; each update draws others. The paper has 0.25."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.net.dropout or self.net.norm == "batch_renorm":
            self.raise_invalid("net", "must have no dropout and no batch renormalisation, as its error is the bonus")


class RND(OnPolicyAlgorithm):
    """Train an on-policy algorithm on rewards and a bonus: the error of a network that predicts a random network.

        rl.RND(rl.PPO(policy, rl.PPOParams()), rl.RNDParams(weight=0.1))

    Where few observations have led the error is large, and practice makes it small. Everything else is the wrapped
    algorithm's; a gradient step trains it and then the predicting network, on one minibatch. Reports have the rewards
    of the env alone.

    Two things differ from the sources. The predicting network learns from the successors, for which the bonus was paid:
    rsl_rl takes the observations before the steps, so the last one of an episode would stay new. Statistics
    change at the end of an update, as all of them do here. In the paper, the predicting network has two more layers,
    and the second value is a head of the policy's network.
    """

    params_class = RNDParams
    params: RNDParams
    trains_recurrent = True  # if the wrapped algorithm does

    def __init__(self, algorithm: OnPolicyAlgorithm, params: RNDParams | None = None) -> None:
        if not isinstance(algorithm, OnPolicyAlgorithm) or isinstance(algorithm, RND):
            rule, hint = "must be another on-policy algorithm", "Write rl.RND(rl.PPO(policy, rl.PPOParams()))."
            raise ParamsError.about("RND", "algorithm", rule, algorithm, hint)
        super().__init__(algorithm.policy, params)
        self.algorithm, params, policy = algorithm, self.params, self.policy
        if params.separate_value and not isinstance(algorithm, PPO):
            raise ParamsError.about("RND", "algorithm", "must be PPO with separate_value=True", algorithm)
        vars(self).update({name: getattr(algorithm, name) for name in OF_THE_ALGORITHM})
        self._hand_on_plan()
        net = params.net.with_defaults(NetParams(hidden_sizes=(64, 64), activation=nn.ELU))
        self.predictor, self.target = self._made(net, params.num_outputs), self._made(net, params.num_outputs)
        self.target.requires_grad_(False)
        self._structure = self.predictor[0].structure
        space = policy.observation_space
        self.obs_normalizer = self._placed(ObsNormalizer(space, LIMIT)) if params.normalize_obs else None
        is_scaled = params.normalize_bonus or params.separate_value
        self.bonus_scaler = self._placed(RewardScaler()) if is_scaled else None
        self.critic = self._made(dataclasses.replace(net, keys=None), 1) if params.separate_value else None
        trained = {"predictor": self.predictor} | ({} if self.critic is None else {"critic": self.critic})
        self.bonus_optimizer = self.make_optimizer(params, **trained)
        self.weight = ScheduledValue(params.weight, self.device)

    def all_algorithms(self) -> list[Algorithm]:
        """Return itself and the wrapped algorithm."""
        return [self, self.algorithm]

    def attach(self, plan: UpdatePlan) -> None:
        """Apply a trainer's plan to both."""
        super().attach(plan)
        self._hand_on_plan()

    def process(self, rollout: Rollout) -> OnPolicyBatch:
        """Let the algorithm process rewards and bonuses, or add the advantages of bonuses to its own."""
        bonus, successor = self.bonuses(rollout)
        bonus = bonus if self.bonus_scaler is None else self.bonus_scaler(bonus)
        samples = self.algorithm.process(self.rewarded(rollout, bonus))
        samples.extra = {**samples.extra, "bonus": bonus, "successor": successor}
        if self.critic is not None:
            value = self.critic(self.policy.normalize(rollout.all_obs())).squeeze(-1)
            advantage, samples.extra["bonus_return"] = self.of_bonuses(rollout, bonus, value)
            samples.advantage = samples.advantage + self.weight.value * advantage
        return samples

    def of_bonuses(self, rollout: Rollout, bonus: Tensor, of_all_obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return advantages and returns of bonuses [T, N] without ends, given values as of `Rollout.by_step`."""
        # What is new stays so in the next episode (section 2.3): after an end the next row follows, its first step.
        value, successor = rollout.by_step(of_all_obs)
        never, ends = torch.zeros_like(rollout.terminated), torch.zeros_like(rollout.terminated)
        ends[:-1] = ~rollout.valid[1:]
        next_value = torch.where(ends, successor, torch.cat([value[1:], successor[-1:]]))
        lambda_ = self.algorithm.params.gae_lambda  # type: ignore[attr-defined]  # PPO's
        return gae(bonus, value, next_value, never, ends, self.params.gamma, lambda_)

    def batches(self, samples: OnPolicyBatch, batch_size: int | None, repeat: int) -> Iterator[OnPolicyBatch]:
        """Return the algorithm's minibatches, with the steps that the predicting network learns from."""
        if self.params.share < 1:
            chance = torch.rand(samples.weight.shape, generator=self.generator, device=self.device)
            samples.extra["is_predicted"] = chance < self.params.share
        return self.algorithm.batches(samples, batch_size, repeat)

    def gradient_step(self, batch: OnPolicyBatch) -> UpdateResult:
        """Take the algorithm's step, and one on the mean squared error of the predicting network (algorithm 1)."""
        result, extra, weight = self.algorithm.gradient_step(batch), batch.extra, batch.weight
        error = self.error(extra["successor"]).square().mean(-1)
        if self.params.share < 1:
            error = error * extra["is_predicted"] / self.params.share
        losses = {"predictor_loss": weighted_mean(error, weight)}
        if self.critic is not None:
            errors = extra["bonus_return"] - self.critic(batch.obs).squeeze(-1)
            losses["bonus_value_loss"] = weighted_mean(errors.square(), weight)
        self.bonus_optimizer.step(torch.stack(list(losses.values())).sum())
        result.metrics |= {name: loss.detach() for name, loss in losses.items()}
        result.metrics["bonus"] = weighted_mean(extra["bonus"], weight)
        return result

    def error(self, seen: Tree) -> Tensor:
        """Return what the predicting network lacks to the random one [M, K], given observations as in `bonuses`."""
        error: Tensor = self.target(seen) - self.predictor(seen)
        return error

    def bonuses(self, rollout: Rollout) -> tuple[Tensor, Tree]:
        """Return the bonus of each step [T, N], not scaled, and what the networks see of its successor [T, N, ...]."""
        shape, obs = rollout.reward.shape, map_tree(lambda x: x.flatten(0, 1), rollout.next_obs)
        obs = obs if self.obs_normalizer is None else self.obs_normalizer(obs)
        seen = map_tree(lambda _, x: x, self._structure, obs)
        error = self.error(seen)
        bonus = error.square().sum(-1) / 2 if self.params.separate_value else torch.linalg.vector_norm(error, dim=-1)
        return bonus.view(shape), map_tree(lambda x: x.unflatten(0, shape), seen)

    def rewarded(self, rollout: Rollout, bonus: Tensor) -> Rollout:
        """Return the rollout that the algorithm learns from, given bonuses [T, N]."""
        if self.params.separate_value:
            return rollout
        return dataclasses.replace(rollout, reward=rollout.reward + self.weight.value * bonus)

    @torch.no_grad()
    def observe(self, rollout: Rollout) -> None:
        """Merge a rollout into the statistics of both."""
        ranks = self.plan.ranks
        if self.obs_normalizer is not None:
            self.obs_normalizer.update(rollout.valid_cells(rollout.obs), ranks)
        if self.bonus_scaler is not None or self.policy.reward_normalizer is not None:
            bonus, _ = self.bonuses(rollout)
            if self.bonus_scaler is not None:
                never, none = torch.zeros_like(rollout.terminated), rollout.final_index[:0]
                endless: dict[str, Any] = {"terminated": never, "truncated": never, "final_index": none}
                self.bonus_scaler.update(
                    dataclasses.replace(rollout, reward=bonus, **endless), self.params.gamma, ranks
                )
                bonus = self.bonus_scaler(bonus)
            rollout = self.rewarded(rollout, bonus)
        self.algorithm.observe(rollout)

    def _made(self, net: NetParams, num_outputs: int) -> Chain:
        """Return a network from observations [M, ...] to [M, num_outputs]."""
        encoder = Encoder(self.policy.observation_space, net)
        layers = net.hidden_layers(encoder.out_features)
        return self._placed(Chain(encoder, layers, ValueHead(layers.out_features, num_outputs)))

    def _hand_on_plan(self) -> None:
        vars(self.algorithm).update({name: getattr(self, name) for name in OF_THE_PLAN})
