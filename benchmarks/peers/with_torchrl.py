"""The work with TorchRL, in the form of its PPO example. Runs in its own virtual environment; prints one JSON line."""

from collections.abc import Callable

import task
import torch
from data import buffer_steps, fill
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import GymEnv, SerialEnv
from torchrl.modules import MLP, OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

PACKAGES = ("torchrl", "tensordict", "torch", "gymnasium", "numpy")


def mlp(work: task.Work, in_features: int, out_features: int) -> MLP:
    return MLP(in_features, out_features, num_cells=list(work.hidden_sizes), activation_class=torch.nn.Tanh)


def training(work: task.Work, envs: SerialEnv, is_compiled: bool) -> Callable[[int], int]:
    """Return what trains PPO for so many env steps; compiled are the parts that TorchRL's example compiles."""
    num_obs, num_actions = envs.observation_spec["observation"].shape[-1], envs.action_spec.shape[-1]
    actor = ProbabilisticActor(
        TensorDictModule(mlp(work, num_obs, num_actions), in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"], spec=envs.action_spec_unbatched, distribution_class=OneHotCategorical,
        return_log_prob=True,
    )  # fmt: skip
    critic = ValueOperator(mlp(work, num_obs, 1), in_keys=["observation"])
    estimate = GAE(gamma=task.GAMMA, lmbda=task.GAE_LAMBDA, value_network=critic, average_gae=False)
    loss_module = ClipPPOLoss(
        actor, critic, clip_epsilon=task.CLIP, entropy_bonus=False, critic_coeff=task.VALUE_COEF,
        normalize_advantage=True, loss_critic_type="l2",
    )  # fmt: skip
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=work.lr)
    collector = Collector(envs, actor, frames_per_batch=work.chunk, total_frames=-1, compile_policy=is_compiled)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(work.chunk), sampler=SamplerWithoutReplacement(), batch_size=work.batch_size
    )

    def update(batch: TensorDict) -> TensorDict:
        optimizer.zero_grad(set_to_none=True)
        losses = loss_module(batch)
        (losses["loss_objective"] + losses["loss_critic"]).backward()
        torch.nn.utils.clip_grad_norm_(loss_module.parameters(), task.MAX_GRAD_NORM)
        optimizer.step()
        return losses.detach()

    if is_compiled:
        update, estimate = torch.compile(update), torch.compile(estimate)
    rollouts = iter(collector)

    def advance(steps: int) -> int:
        for _ in range(steps // work.chunk):
            rollout = next(rollouts)
            with torch.no_grad():
                rollout = estimate(rollout)
            buffer.empty()
            buffer.extend(rollout.reshape(-1))
            for _ in range(work.repeat):
                for batch in buffer:
                    update(batch)
        return steps

    return advance


def buffer_work(work: task.Work, seed: int) -> Callable[[int], int]:
    """Return what adds to, or samples from, a filled replay buffer."""
    buffer = ReplayBuffer(storage=LazyTensorStorage(task.BUFFER_SIZE), batch_size=work.batch_size)
    steps = buffer_steps(seed)

    def add() -> None:
        buffer.extend(TensorDict(next(steps), batch_size=[task.BUFFER_ENVS]))

    fill(work, add)
    return task.repeated(add if work.kind == "add" else buffer.sample)


def main() -> None:
    arguments = task.parser(__doc__)
    arguments.add_argument("--compile", choices=("true", "false"), default="false")
    args = arguments.parse_args()
    work = task.WORKS[args.work]
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    envs = None
    if work.kind in ("add", "sample"):
        advance = buffer_work(work, args.seed)
    elif work.kind == "ppo" and work.repeat:
        envs = SerialEnv(work.num_envs, lambda: GymEnv(work.env_id))
        envs.set_seed(args.seed)
        advance = training(work, envs, args.compile == "true")
    else:
        raise SystemExit(f"no {args.work} with TorchRL here")
    task.measure(work, advance, args, envs, PACKAGES)


if __name__ == "__main__":
    main()
