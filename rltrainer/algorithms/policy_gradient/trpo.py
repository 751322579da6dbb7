"""TRPO (Schulman et al. 2015, Trust Region Policy Optimization)."""

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from rltrainer.algorithms.minibatches import OnPolicyBatch
from rltrainer.algorithms.policy_gradient.a2c import A2C, A2CParams
from rltrainer.algorithms.recommended import OnPolicyFields, VectorEnv, look_at
from rltrainer.errors import ParamsError
from rltrainer.functional.losses import weighted_mean
from rltrainer.functional.trust_region import fisher_product, flat, line_search, split_like, trust_region_step
from rltrainer.nets import ActorCritic
from rltrainer.nets.distributions import Distribution
from rltrainer.tree import Tree
from rltrainer.types import UpdateResult
from rltrainer.updates.gradient_faults import UnusedParameters
from rltrainer.validation.field_rules import Flag, NonNegativeFloat, PositiveFloat, PositiveInt, Scheduled, UnitFloat


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class TRPOParams(A2CParams):
    """Hyperparameters of TRPO; `lr` is the critic's. `value_coef` and `entropy_coef` must be left out."""

    lr: PositiveFloat | Scheduled = 1e-3
    gae_lambda: UnitFloat = 0.95
    normalize_advantage: Flag = True
    max_grad_norm: PositiveFloat | None = None
    target_kl: PositiveFloat = 0.01
    """Bound of KL(old || new), the mean over the rollout, for one step of the policy."""
    damping: NonNegativeFloat = 0.1
    """Added to the diagonal of the Fisher matrix."""
    num_cg_steps: PositiveInt = 15
    """Steps of conjugate gradients."""
    num_line_search_steps: PositiveInt = 10
    """Lengths of the policy's step to try at most, the first as long as the bound allows."""
    line_search_shrink: UnitFloat = 0.8
    """Each length is this share of the one before."""

    def __post_init__(self) -> None:
        super().__post_init__()
        why = "TRPO trains the critic apart, and has no entropy bonus."
        self._must_be_left_out("value_coef", "entropy_coef", why=why)


class TRPO(A2C):
    """Take a natural-gradient step of the policy on each rollout, within a bound of KL(old || new); a critic beside it.

    The policy takes one step on the whole rollout, uncompiled; batch size and repetitions are the critic's. As in all
    implementations and unlike the paper, a critic estimates the advantages and the Fisher matrix is damped. Actor and
    critic share no encoder, else a `ParamsError` is raised.
    """

    params_class = TRPOParams
    params: TRPOParams
    occasional_metrics = ("policy_loss", "kl", "step_scale")  # if the policy's step is not skipped
    waits_in_update = True

    def __init__(self, policy: ActorCritic, params: TRPOParams | None = None) -> None:
        super().__init__(policy, params)
        if set(policy.actor.parameters()) & set(policy.critic.parameters()):
            rule = "actor and critic must not share an encoder, as the critic's steps would move the policy"
            raise ParamsError(f"TRPO.policy: {rule}. Build it with share_encoder=False.")
        self.optimizer = self.make_optimizer(self.params, critic=policy.critic)
        names = {p: f"policy.actor.{name}" for name, p in policy.actor.named_parameters()}
        self._unused = UnusedParameters({"actor": policy.actor}, list(names), names)

    @classmethod
    def recommended(cls, envs: VectorEnv) -> OnPolicyFields:
        """Return fields of `OnPolicyTrainerParams` that train well: `**rl.TRPO.recommended(envs)`."""
        # 2048 env steps, at least 32 of each env; the critic makes 10 repetitions in minibatches of 128
        # (Stable-Baselines3's contrib).
        num_envs, _ = look_at(envs, cls)
        num_steps = max(2048, 32 * num_envs)
        return {"collection_step_num_env_steps": num_steps, "batch_size": 128, "update_step_num_repetitions": 10}

    def check_batch_size(self, batch_size: int | None, num_rows: int | None, num_envs: int = 1) -> None:
        """Raise a `ParamsError` if advantages are standardised and a rollout has one step; minibatches are free."""
        super().check_batch_size(None, num_rows, num_envs)

    def before_batches(self, samples: OnPolicyBatch) -> dict[str, Tensor]:
        """Take the policy's step on the whole rollout, and return its metrics []."""
        self.check_batch_size(None, self._num_in_all(samples.weight.count_nonzero()))
        # In eval mode: two masks of dropout differ by more than the bound allows, and no step would be taken.
        return {**super().before_batches(samples), **self.improve_policy(samples.flatten())}

    def gradient_step(self, batch: OnPolicyBatch) -> UpdateResult:
        """Take one gradient step of the critic."""
        loss = weighted_mean(self.value_loss(self.policy.value(batch.obs), batch), batch.weight)
        self.optimizer.step(loss)
        return UpdateResult({"value_loss": loss.detach()})

    @torch.enable_grad()
    def improve_policy(self, batch: OnPolicyBatch) -> dict[str, Tensor]:
        """Take one step along the natural gradient of E[pi(a|s) / pi_old(a|s) A] (eq. 14, appendix C)."""
        # The step is as long as the bound allows, and is shortened until the bound holds and the objective grows; if
        # that fails, the policy stays. Callbacks get the negative objective as the loss "actor".
        old, share = self.policy.distribution(batch.obs), batch.weight / self.reduce.mean(batch.weight.sum())
        old_log_prob, advantage = old.log_prob(batch.action).detach(), batch.advantage
        if self.params.normalize_advantage:
            advantage = self.plan.ranks.standardized(advantage, batch.weight)

        def loss_of(policy: Distribution) -> Tensor:
            return -((policy.log_prob(batch.action) - old_log_prob).exp() * advantage) @ share

        metrics = {"entropy": self.reduce.mean(old.entropy().detach() @ share)}

        def step(loss: Tensor) -> None:
            metrics.update(self._natural_step(batch.obs, old, share, loss, loss_of))

        loss = loss_of(old)
        is_left_out = self.plan.skips_steps and not torch.isfinite(loss)
        found = loss if is_left_out else self.plan.callbacks.notify("actor", loss, step)
        if found is not None:
            step(found)
        return metrics

    def _natural_step(
        self, obs: Tree, old: Distribution, share: Tensor, loss: Tensor, loss_of: Callable[[Distribution], Tensor]
    ) -> dict[str, Tensor]:
        """Move the policy; numbers that decide are means over the whole minibatch, also where this is a part of it."""
        params = self.params
        parameters: list[Tensor] = [p for p in self.policy.actor.parameters() if p.requires_grad]
        found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        self._unused.note([p for p, x in zip(parameters, found, strict=True) if x is None])
        self._unused.report(type(self).__name__)
        parameters = [p for p, x in zip(parameters, found, strict=True) if x is not None]
        local_fisher = fisher_product(
            old.parameters, parameters, lambda v: [share.unsqueeze(-1) * x for x in old.fisher(v)]
        )

        # F v = J^T (F of the distribution) J v, so that F itself is never made.
        def fisher(v: Tensor) -> Tensor:
            return self.reduce.mean(local_fisher(v)) + params.damping * v

        gradient = self.reduce.mean(flat([x for x in found if x is not None]))
        step = trust_region_step(fisher, -gradient, params.target_kl, params.num_cg_steps)
        if not torch.isfinite(step).all():
            if self.plan.skips_steps:
                self.optimizer.skip()
                return {}
            raise self.non_finite_error(f"the gradient of policy.actor is not finite (loss = {float(loss.detach()):g})")
        before, parts = [p.detach().clone() for p in parameters], split_like(step, parameters)

        @torch.no_grad()
        def loss_and_kl(scale: float) -> Tensor:
            torch._foreach_copy_(parameters, torch._foreach_add(before, parts, alpha=scale))
            new = self.policy.distribution(obs)
            return self.reduce.mean(torch.stack([loss_of(new), old.kl(new) @ share]))

        old_loss = self.reduce.mean(loss_of(old).detach().unsqueeze(0))

        def is_good(scale: float) -> bool:
            new_loss, kl = loss_and_kl(scale)
            return bool((new_loss < old_loss) & (kl <= params.target_kl))

        scale = line_search(is_good, params.num_line_search_steps, params.line_search_shrink)
        new_loss, kl = loss_and_kl(scale)
        return {"policy_loss": new_loss, "kl": kl, "step_scale": kl.new_tensor(scale)}
