"""Two ranks with half of each batch train as one algorithm with all of it does, and are equal bit for bit."""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import rltrainer as rl
from rltrainer.errors import NonFiniteError
from rltrainer.functional.losses import standardize
from rltrainer.plan import UpdateCallbacks
from rltrainer.ranks.ranks import Ranks
from rltrainer.tree import map_tree
from rltrainer.updates.transforms import Reduce
from tests import batches
from tests.contract import test_masks as masks
from tests.contract.test_all_algorithms import (
    ALL,
    BOX,
    DISCRETE,
    OBS,
    OFF_POLICY,
    WITHOUT_RANKS,
    flat_state,
    rollout,
    transitions,
)
from tests.fakes import run_in_threads

NUM_STEPS, NUM_ENVS, SIZE = 8, 4, 16
DOUBLE = rl.PrecisionParams(weights="float64")
OF_RANK = ("generator", "reward_normalizer._extra_state", "bonus_scaler._extra_state", "gathered")
"""Ends of the names of a rank's own states: of its random stream, the returns of its envs, and half a group's sum."""


def half(data: Any, rank: int) -> Any:
    """Return half of some transitions, or half of the envs of a rollout."""
    if isinstance(data, rl.Transitions):
        return rl.Transitions.combine(lambda x: x.narrow(data.reward.ndim - 1, SIZE // 2 * rank, SIZE // 2), [data])
    num = NUM_ENVS // 2
    envs = slice(num * rank, num * (rank + 1))
    index, is_own = data.final_index, data.final_index % NUM_ENVS // num == rank
    own = {"final_index": (index // NUM_ENVS * num + index % num)[is_own]}
    own["final_obs"] = map_tree(lambda x: x[is_own], data.final_obs)
    own |= {name: map_tree(lambda x: x[envs], getattr(data, name)) for name in ("last_obs", "starts")}
    by_time = {field.name for field in dataclasses.fields(data)} - own.keys()
    return type(data)(**own, **{name: map_tree(lambda x: x[:, envs], getattr(data, name)) for name in by_time})


def given(algorithm: Any, seed: int, num_valid: int = 11) -> Any:
    """Return transitions with weights, or a rollout of which the second half has so many valid steps."""
    if isinstance(algorithm, rl.OffPolicyAlgorithm):
        weight = torch.rand(SIZE, generator=batches.generator(seed)) + 0.1
        return transitions(algorithm, SIZE, seed=seed, weight=weight)
    data = rollout(algorithm, NUM_STEPS, NUM_ENVS, seed=seed)
    data.valid[4, 1] = False  # the step after the episode's end
    data.valid[:, 2:] = (torch.arange(2 * NUM_STEPS) < num_valid).view(2, NUM_STEPS).T
    return data


def joined(*minibatches: Any) -> Any:
    """Return the minibatch of which these are the ranks' parts; of whole envs, time comes first."""
    sequences = hasattr(minibatches[0], "state")

    def join(name: str, *parts: Tensor) -> Tensor:
        if not sequences or name == "state":
            return torch.cat(parts)
        return torch.cat([x.unflatten(0, (NUM_STEPS, -1)) for x in parts], 1).flatten(0, 1)

    names = [field.name for field in dataclasses.fields(minibatches[0])]
    fields = {name: map_tree(partial(join, name), *(getattr(each, name) for each in minibatches)) for name in names}
    return type(minibatches[0])(**fields)


def noise_of_half(algorithm: Any, rank: int) -> Callable[[Any], Any]:
    """Return a `sample_noise` that samples for the batch of both ranks, and returns one's part."""

    def sample_noise(batch: rl.Transitions) -> Any:
        noise = type(algorithm).sample_noise(algorithm, rl.Transitions.combine(lambda x: torch.cat([x, x]), [batch]))
        for field in () if noise is None else dataclasses.fields(noise):
            x = getattr(noise, field.name)
            if isinstance(x, Tensor) and SIZE in x.shape:
                setattr(noise, field.name, x.narrow(x.shape.index(SIZE), SIZE // 2 * rank, SIZE // 2))
        return noise

    return sample_noise


@dataclasses.dataclass
class Trained:
    """What some updates left: after each of them the state and the metrics, and the minibatches on the way."""

    states: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    metrics: list[dict[str, float]] = dataclasses.field(default_factory=list)
    minibatches: list[list[Any]] = dataclasses.field(default_factory=list)
    td_error: Tensor | None = None
    num_steps: int = 0


def train(algorithm: Any, data: list[Any], batch_size: int | None, minibatches: list[list[Any]] | None) -> Trained:
    """Update on each of the data; on minibatches of before, if they are given."""
    trained, split = Trained(), getattr(algorithm, "batches", None)

    def noted(samples: Any, size: int | None, repeat: int) -> Iterator[Any]:
        assert split is not None, "of an on-policy algorithm"
        trained.minibatches.append(list(split(samples, size, repeat)))
        yield from trained.minibatches[-1] if minibatches is None else minibatches[len(trained.minibatches) - 1]

    for each in data:
        if isinstance(algorithm, rl.OnPolicyAlgorithm):
            algorithm.batches = noted  # type: ignore[method-assign]
            result = algorithm.update(each, batch_size, repeat=2)
        else:
            result = algorithm.update(each)
        trained.num_steps += result.num_gradient_steps
        trained.metrics.append(result.floats())
        state = flat_state(algorithm.state_dict()) | algorithm.logged_values()
        trained.states.append({name: x.clone() if isinstance(x, Tensor) else x for name, x in state.items()})
    trained.td_error = result.td_error
    return trained


def made(make: Callable[[], Any], **plan: Any) -> Any:
    rl.seed(7)
    algorithm = make()
    algorithm.seed(3)
    algorithm.attach(rl.UpdatePlan(**plan))
    return algorithm


def of_two(
    make: Callable[[], Any], data: list[Any], batch_size: int | None = None, of_rank: Any = lambda *_: None, **plan: Any
) -> tuple[Trained, Trained]:
    """Return what two ranks are trained to be, which must be equal; `of_rank(algorithm, rank)` changes one before."""
    pair = [made(make, **plan) for _ in range(2)]

    def on_rank(ranks: Ranks) -> Trained:
        algorithm = pair[ranks.rank]
        if isinstance(algorithm, rl.OffPolicyAlgorithm):
            algorithm.sample_noise = noise_of_half(algorithm, ranks.rank)  # type: ignore[method-assign]
        of_rank(algorithm, ranks.rank)
        algorithm.attach(rl.UpdatePlan(ranks=ranks, **plan))
        return train(algorithm, [half(each, ranks.rank) for each in data], batch_size, None)

    first, second = run_in_threads([on_rank, on_rank])
    texts = [[sorted(map(str, metrics.items())) for metrics in each.metrics] for each in (first, second)]
    assert texts[0] == texts[1]  # as texts, NaN is equal to itself
    for one, other in zip(first.states, second.states, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            if not name.endswith(OF_RANK):
                assert torch.equal(value, other[name]) if isinstance(value, Tensor) else value == other[name], name
    return first, second


def difference(
    make: Callable[[], Any], batch_size: int | None = None, num_updates: int = 3, given: Any = given, **plan: Any
) -> tuple[float, int]:
    """Return the largest difference between two ranks and one algorithm, and their gradient steps."""
    alone = made(make, **plan)
    data = [given(alone, seed) for seed in range(num_updates)]
    first, second = of_two(make, data, batch_size, **plan)
    minibatches = None
    if batch_size is not None:
        pairs = zip(first.minibatches, second.minibatches, strict=True)
        minibatches = [[joined(*parts) for parts in zip(*pair, strict=True)] for pair in pairs]
    expected = train(alone, data, batch_size, minibatches)
    assert first.num_steps == expected.num_steps
    found = [0.0]
    for one, other in zip([*first.metrics, *first.states], [*expected.metrics, *expected.states], strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            if not name.endswith(OF_RANK) and isinstance(value, float | Tensor):
                x, y = (torch.as_tensor(each, dtype=torch.float64) for each in (value, other[name]))
                found += ((x - y).abs() / y.abs().clamp(min=1.0)).flatten().tolist()
    if expected.td_error is not None:
        assert first.td_error is not None
        assert second.td_error is not None
        error = torch.cat([first.td_error, second.td_error], -1) - expected.td_error
        found += error.abs().flatten().tolist()
    return max(found), first.num_steps


def size_for(name: str) -> int | None:
    """Return a size of a rank's minibatches: of several, with padding."""
    return None if name in OFF_POLICY else NUM_STEPS if name.startswith("recurrent") else 5


@pytest.mark.parametrize("name", [name for name in ALL if name not in WITHOUT_RANKS])
def test_two_ranks_train_as_one(name: str) -> None:
    found, num_steps = difference(ALL[name], size_for(name), precision=DOUBLE)
    assert num_steps == (3 if name in OFF_POLICY else 12 if name.startswith("recurrent") else 18)
    assert found < 1e-12
    found, num_steps = difference(ALL[name], None, 2)
    assert found < 1e-6 * num_steps


def policy(policy_class: Any, space: Any = DISCRETE, obs: Any = OBS, **options: Any) -> Any:
    return policy_class.for_spaces(obs, space, hidden_sizes=(16,), normalize_obs=True, **options)


def ppo(space: Any = DISCRETE, obs: Any = OBS, **params: Any) -> Callable[[], Any]:
    return lambda: rl.PPO(policy(rl.ActorCritic, space, obs, normalize_reward=True), rl.PPOParams(**params))


def of_masks(algorithm: Any, seed: int) -> Any:
    """Return data whose observations forbid an action."""
    g = batches.generator(seed)
    is_on_policy = isinstance(algorithm, rl.OnPolicyAlgorithm)
    shape = (NUM_STEPS, NUM_ENVS) if is_on_policy else (SIZE,)
    obs, action = masks.obs_batch(*shape, generator=g), 1 + 2 * torch.randint(2, shape, generator=g)
    reward = torch.rand(shape, generator=g)
    if not is_on_policy:
        more = {"next_obs": masks.obs_batch(*shape, generator=g), "discount": torch.full(shape, 0.9)}
        return batches.transitions(obs, action, reward, **more)
    valid = torch.rand(shape, generator=g) < 0.7
    return batches.rollout(obs, action, reward, last_obs=masks.obs_batch(NUM_ENVS, generator=g), valid=valid)


def several(algorithm: Any, seed: int) -> Any:
    """Return transitions of three gradient steps."""
    return rl.Transitions.stack([given(algorithm, 3 * seed + k) for k in range(3)])


def mirrored(obs: Any) -> Any:
    return obs | {"position": -obs["position"], "mode": 2 - obs["mode"]}


CLIPPED, SHARED_OUT = rl.UpdateParams(max_grad_norm=0.01), {"max_grad_norm": 0.5, "balance_grad_norms": True}


def with_larger_returns(batch: Any) -> Any:
    return dataclasses.replace(batch, return_=2 * batch.return_)


def with_other_advantages(batch: Any) -> Any:
    return dataclasses.replace(batch, advantage=batch.advantage * batch.return_)


def with_other_weights(batch: Any) -> Any:
    return dataclasses.replace(batch, weight=batch.weight * (0.01 + 0.1 * batch.return_.sigmoid()))


VARIANTS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "of normalised rewards": (ppo(), {"batch_size": 5}),
    "a limit of the norm": (ppo(), {"batch_size": 5, "update": CLIPPED}),
    "a limit off policy": (ALL["sac"], {"update": CLIPPED}),
    "another norm": (ppo(), {"update": rl.UpdateParams(max_grad_norm=0.01, grad_norm_type=1.0)}),
    "a limit of each number": (ALL["dqn"], {"update": rl.UpdateParams(max_grad_value=1e-3)}),
    "shares of a norm": (ppo(entropy_coef=0.01), {"batch_size": 5, "update": rl.UpdateParams(**SHARED_OUT)}),
    # Of six steps the last two are the rest.
    "groups": (ppo(), {"batch_size": 5, "update": rl.UpdateParams(accumulate=4)}),
    "groups of shares": (ppo(), {"batch_size": 5, "update": rl.UpdateParams(accumulate=4, **SHARED_OUT)}),
    "groups off policy": (ALL["sac"], {"update": rl.UpdateParams(accumulate=2)}),
    "groups of a delayed actor": (ALL["td3"], {"update": rl.UpdateParams(accumulate=2), "num_updates": 5}),
    "plain gradient descent": (ppo(optimizer=rl.rms_prop), {"batch_size": 5}),
    "a rate that adapts": (ppo(desired_kl=1e-4, lr=2e-3), {"batch_size": 5}),
    "a symmetry": (
        ppo(BOX, symmetry=rl.Symmetry(obs=mirrored, action=torch.neg, loss_coef=0.5)), {"batch_size": 5},
    ),
    "a clipped value": (ppo(BOX, value_clip=0.1), {"batch_size": 5}),
    "masks": (ppo(obs=masks.OBS), {"given": of_masks, "batch_size": 5}),
    "masks off policy": (lambda: rl.DQN(policy(rl.QNetwork, obs=masks.OBS)), {"given": of_masks}),
    "masks of a trust region": (lambda: rl.TRPO(policy(rl.ActorCritic, obs=masks.OBS)), {"given": of_masks}),
    "several batches": (ALL["sac"], {"given": several}),
    "several batches of groups": (ALL["redq"], {"given": several, "update": rl.UpdateParams(accumulate=2)}),
    "no standardised advantages": (ppo(normalize_advantage=False), {"batch_size": 5}),
    "standardised advantages of A2C": (
        lambda: rl.A2C(policy(rl.ActorCritic), rl.A2CParams(normalize_advantage=True)), {"batch_size": 5},
    ),
    "raw returns": (
        lambda: rl.REINFORCE(policy(rl.Actor), rl.REINFORCEParams(standardize_return=False)), {"batch_size": 5},
    ),
    "rollouts of any length": (ppo(), {"batch_size": 5, "varies_in_length": True}),
    "a callback": (ppo(), {"batch_size": 5, "callbacks": UpdateCallbacks(before=with_larger_returns)}),
    "other advantages": (ppo(), {"batch_size": 5, "callbacks": UpdateCallbacks(before=with_other_advantages)}),
    "other weights": (ppo(), {"batch_size": 5, "callbacks": UpdateCallbacks(before=with_other_weights)}),
    "other weights of a trust region": (ALL["trpo"], {"callbacks": UpdateCallbacks(before=with_other_weights)}),
}  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_two_ranks_train_as_one_with(name: str) -> None:
    make, options = VARIANTS[name]
    assert difference(make, precision=DOUBLE, **options)[0] < 1e-12


def test_a_bound_of_the_policys_change_ends_an_update_on_all_ranks() -> None:
    found, num_steps = difference(ppo(target_kl=1e-3, lr=1e-2), 5, precision=DOUBLE)
    assert found < 1e-12
    assert 3 < num_steps < 18


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
@pytest.mark.parametrize("name", ["ppo", "sac", "recurrent_ppo"])
def test_two_ranks_train_as_one_in_half_precision(name: str, amp: Any) -> None:
    precision = rl.PrecisionParams(amp=amp, initial_loss_scale=2.0**10)
    assert difference(ALL[name], size_for(name), precision=precision)[0] < 0.01


def test_a_loss_scale_falls_on_all_ranks() -> None:
    precision = rl.PrecisionParams(amp="fp16", initial_loss_scale=2.0**40)
    alone = made(ALL["sac"])
    first, _ = of_two(ALL["sac"], [given(alone, seed) for seed in range(4)], precision=precision)
    scales = [state["critic_loss_scale"] for state in first.states]
    assert scales == [2.0**39, 2.0**38, 2.0**37, 2.0**36]
    assert first.states[-1]["skipped_steps"] == 8  # of critics and actor


def test_advantages_that_each_rank_standardises_by_itself_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_itself(algorithm: Any, batch: Any, of_all: Tensor) -> Any:
        return dataclasses.replace(batch, advantage=standardize(batch.advantage, batch.weight))

    monkeypatch.setattr(rl.A2C, "in_all", by_itself)
    assert difference(ppo(), 5, precision=DOUBLE)[0] > 1e-4


@pytest.mark.parametrize("name", ["ppo", "trpo", "recurrent_ppo"])
def test_ranks_that_count_alike_though_they_have_less_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reduce, "share", property(lambda _: None, lambda *_: None), raising=False)
    assert difference(ALL[name], None, precision=DOUBLE)[0] > 1e-4


def test_a_step_that_failed_leaves_no_share_to_the_next_plan() -> None:
    def on_rank(ranks: Ranks) -> Any:
        algorithm = pair[ranks.rank]
        algorithm.attach(rl.UpdatePlan(ranks=ranks, callbacks=UpdateCallbacks(on_loss=failing)))
        with pytest.raises(ZeroDivisionError):
            algorithm.update(half(given(algorithm, 0), ranks.rank), 5, repeat=1)
        assert algorithm.reduce.share is not None
        algorithm.attach(rl.UpdatePlan())
        return algorithm.reduce.share

    pair = [made(ppo()) for _ in range(2)]
    assert run_in_threads([on_rank, on_rank]) == [None, None]


def failing(name: str, loss: Tensor, step: Any) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("size", [None, 5])
@pytest.mark.parametrize("num_valid", [0, 1])
@pytest.mark.parametrize("name", ["ppo", "trpo", "reinforce", "impala", "recurrent_ppo"])
def test_a_rank_with_hardly_a_step(name: str, num_valid: int, size: int | None) -> None:
    size = size and size_for(name)
    found, _ = difference(ALL[name], size, given=partial(given, num_valid=num_valid), precision=DOUBLE)
    assert found < 1e-12


def test_no_rank_has_a_step() -> None:
    data = given(made(ALL["a2c"]), 0)
    data.valid[:] = False
    first, _ = of_two(ALL["a2c"], [data], 5)
    assert first.num_steps == 0


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_metrics_in_another_order(name: str) -> None:
    def turn(algorithm: Any, rank: int) -> None:
        step = type(algorithm).gradient_step

        def turned(*args: Any) -> Any:
            result = step(algorithm, *args)
            return dataclasses.replace(result, metrics=dict(reversed(result.metrics.items())))

        if rank == 1:
            algorithm.gradient_step = turned

    data = [given(made(ALL[name]), 0)]
    plain, turned = (of_two(ALL[name], data, size_for(name), of_rank=f)[0] for f in (lambda *_: None, turn))
    assert plain.metrics == turned.metrics


@pytest.mark.parametrize("name", ["dqn", "sac", "ppo", "recurrent_ppo"])
def test_a_gradient_of_one_rank_that_is_not_finite_is_left_out_on_all(name: str) -> None:
    data = given(made(ALL[name]), 0, num_valid=2 * NUM_STEPS)
    data.reward[..., -1] = torch.nan
    first, _ = of_two(ALL[name], [data], update=rl.UpdateParams(nonfinite="skip"))
    assert first.states[-1]["skipped_steps"] == (1 if name in OFF_POLICY else 2)


def test_all_ranks_raise_for_the_gradient_of_one() -> None:
    pair, data = [made(ALL["dqn"]) for _ in range(2)], given(made(ALL["dqn"]), 0)
    data.reward[-1] = torch.nan

    def on_rank(ranks: Ranks) -> str:
        pair[ranks.rank].attach(rl.UpdatePlan(ranks=ranks))
        with pytest.raises(NonFiniteError) as raised:
            pair[ranks.rank].update(half(data, ranks.rank))
        return str(raised.value)

    texts = run_in_threads([on_rank, on_rank])
    assert texts[0] == texts[1]
