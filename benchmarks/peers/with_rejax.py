"""The work with rejax: envs and updates are one program. Runs in its own virtual environment; prints one JSON line."""

import one_core  # noqa: F401, I001  # first: JAX starts its threads when it is imported

from collections.abc import Callable
from typing import Any

import jax
import task
from rejax import DQN, PPO

PACKAGES = ("rejax", "gymnax", "jax", "jaxlib", "flax", "numpy")


def make_algorithm(work: task.Work) -> PPO | DQN:
    """Return the algorithm; its networks are as the work says, actor and critic apart."""
    if work.kind not in ("ppo", "dqn") or not work.repeat or work.at_once or not work.env_id.startswith("CartPole"):
        raise SystemExit(f"rejax is measured with PPO and DQN on CartPole, not with {work.kind} on {work.env_id}")
    if work.kind == "dqn":
        return DQN.create(
            env=work.env_id, num_envs=work.num_envs, buffer_size=task.REPLAY_SIZE, fill_buffer=work.random_steps,
            batch_size=work.batch_size, num_epochs=work.gradient_steps, learning_rate=work.lr, gamma=task.GAMMA,
            eps_start=task.DQN_EPSILON, eps_end=task.DQN_EPSILON, target_update_freq=task.DQN_TARGET_INTERVAL,
            polyak=0.0, max_grad_norm=task.DQN_MAX_GRAD_NORM, ddqn=False, agent_kwargs={"activation": "relu"},
        )  # fmt: skip
    return PPO.create(
        env=work.env_id, num_envs=work.num_envs, num_steps=work.chunk // work.num_envs,
        num_minibatches=work.chunk // work.batch_size, num_epochs=work.repeat, learning_rate=work.lr,
        gamma=task.GAMMA, gae_lambda=task.GAE_LAMBDA, clip_eps=task.CLIP, vf_coef=task.VALUE_COEF, ent_coef=0.0,
        max_grad_norm=task.MAX_GRAD_NORM,
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": list(work.hidden_sizes)},
    )  # fmt: skip


def training(algorithm: PPO | DQN, work: task.Work, seed: int) -> Callable[[int], int]:
    """Return what trains for so many env steps, a chunk in one call: rollouts with their updates, no evaluation."""

    def env_steps(state: Any) -> Any:
        return jax.lax.fori_loop(0, work.chunk // work.num_envs, lambda _, x: algorithm.train_iteration(x), state)

    iteration = jax.jit(algorithm.train_iteration if work.kind == "ppo" else env_steps)
    state = jax.jit(algorithm.init_state)(jax.random.PRNGKey(seed))

    def advance(steps: int) -> int:
        nonlocal state
        for _ in range(task.num_chunks(steps, work)):
            state = iteration(state)
        jax.block_until_ready(state)
        return task.num_chunks(steps, work) * work.chunk

    return advance


def main() -> None:
    args = task.parser(__doc__).parse_args()
    work = task.WORKS[args.work]
    algorithm = make_algorithm(work)
    task.measure(work, training(algorithm, work, args.seed), args, algorithm.env, PACKAGES)


if __name__ == "__main__":
    main()
