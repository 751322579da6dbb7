"""The work with rejax: envs and updates are one program. Runs in its own virtual environment; prints one JSON line."""

import one_core  # noqa: F401, I001  # first: JAX starts its threads when it is imported

from collections.abc import Callable

import jax
import task
from rejax import PPO

PACKAGES = ("rejax", "gymnax", "jax", "jaxlib", "flax", "numpy")


def make_algorithm(work: task.Work) -> PPO:
    """Return the algorithm; its networks are as the work says, actor and critic apart."""
    if work.kind != "ppo" or not work.repeat or not work.env_id.startswith("CartPole"):
        raise SystemExit(f"rejax is measured with PPO on CartPole, not with {work.kind} on {work.env_id}")
    return PPO.create(
        env=work.env_id, num_envs=work.num_envs, num_steps=work.chunk // work.num_envs,
        num_minibatches=work.chunk // work.batch_size, num_epochs=work.repeat, learning_rate=work.lr,
        gamma=task.GAMMA, gae_lambda=task.GAE_LAMBDA, clip_eps=task.CLIP, vf_coef=task.VALUE_COEF, ent_coef=0.0,
        max_grad_norm=task.MAX_GRAD_NORM,
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": list(work.hidden_sizes)},
    )  # fmt: skip


def training(algorithm: PPO, work: task.Work, seed: int) -> Callable[[int], int]:
    """Return what trains for so many env steps: rollouts with their updates, and no evaluation."""
    iteration = jax.jit(algorithm.train_iteration)
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
