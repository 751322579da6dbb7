"""Compiled gradient steps: one graph, the numbers of eager ones, and what happens where compiling fails."""

import copy
import dataclasses
import pickle
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters

import rltrainer as rl
from rltrainer.execution.compiler import with_code_of_its_own
from tests import batches
from tests.compile.traced import _traced_only as _traced_only
from tests.compile.traced import as_traced
from tests.fakes import PAPERS_RND, RNDOfPPO, built, policy_options
from tests.resume.runs import assert_resumes, build

OBS = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
DISCRETE = gym.spaces.Discrete(3)
COMPILED = rl.UpdatePlan(runtime=rl.RuntimeParams(compile=True))

MAKERS: dict[str, Any] = {
    "ppo": (rl.PPO, rl.ActorCritic, DISCRETE, rl.PPOParams(clip=rl.LinearSchedule(0.2), lr=rl.LinearSchedule(1e-3))),
    "a2c": (rl.A2C, rl.ActorCritic, BOX, rl.A2CParams()),
    "impala": (rl.IMPALA, rl.ActorCritic, DISCRETE, rl.IMPALAParams(entropy_coef=rl.LinearSchedule(0.01))),
    "recurrent_ppo": (rl.RecurrentPPO, rl.RecurrentActorCritic, DISCRETE, rl.PPOParams()),
    "trpo": (rl.TRPO, rl.ActorCritic, BOX, rl.TRPOParams()),
    "reinforce": (rl.REINFORCE, rl.Actor, DISCRETE, rl.REINFORCEParams()),
    "pqn": (rl.PQN, rl.QNetwork, DISCRETE, rl.PQNParams(lr=1e-3)),
    "distillation": (rl.Distillation, rl.RecurrentActorCritic, BOX, rl.DistillationParams()),
    "recurrent_pqn": (rl.RecurrentPQN, rl.RecurrentQNetwork, DISCRETE, rl.PQNParams(lr=1e-3)),
    "rnd": (RNDOfPPO, rl.ActorCritic, DISCRETE, rl.RNDParams(weight=rl.LinearSchedule(1.0), normalize_bonus=True)),
    "rnd_paper": (RNDOfPPO, rl.ActorCritic, BOX, PAPERS_RND),
    "dqn": (rl.DQN, rl.QNetwork, DISCRETE, rl.DQNParams(target_update_interval=7)),
    "double_dqn": (rl.DoubleDQN, rl.QNetwork, DISCRETE, rl.DQNParams(tau=0.01, target_update_interval=1)),
    "c51": (rl.C51, rl.CategoricalQNetwork, DISCRETE, rl.C51Params(target_update_interval=7)),
    "qr_dqn": (rl.QRDQN, rl.QuantileQNetwork, DISCRETE, rl.QRDQNParams(target_update_interval=7)),
    "td3": (rl.TD3, rl.DeterministicActorCritic, BOX, rl.TD3Params()),
    "sac": (rl.SAC, rl.SquashedActorCritic, BOX, rl.SACParams()),
    "ddpg": (rl.DDPG, rl.DeterministicActorCritic, BOX, rl.DDPGParams()),
    "discrete_sac": (rl.DiscreteSAC, rl.DiscreteActorCritic, DISCRETE, rl.DiscreteSACParams()),
    "tqc": (rl.TQC, rl.SquashedActorCritic, BOX, rl.TQCParams()),
    "redq": (rl.REDQ, rl.SquashedActorCritic, BOX, rl.REDQParams(actor_update_interval=3)),
    "crossq": (rl.CrossQ, rl.SquashedActorCritic, BOX, rl.CrossQParams(weight_decay=0.01)),
    "flashsac": (rl.FlashSAC, rl.CategoricalActorCritic, BOX, rl.FlashSACParams()),
    "xqc": (rl.XQC, rl.CategoricalActorCritic, BOX, rl.XQCParams(lr=1e-3, critic_lr=1e-3)),
    "simbav2": (rl.SimbaV2, rl.CategoricalActorCritic, BOX, rl.SimbaV2Params()),
    "cql": (rl.CQL, rl.SquashedActorCritic, BOX, rl.CQLParams(num_sampled_actions=2)),
    "cal_ql": (rl.CalQL, rl.SquashedActorCritic, BOX, rl.CalQLParams(num_sampled_actions=2)),
    "fqe": (rl.FQE, rl.GaussianActorCritic, BOX, rl.FQEParams(tau=0.005)),
    "td3_bc": (rl.TD3BC, rl.DeterministicActorCritic, BOX, rl.TD3BCParams()),
    "rebrac": (rl.ReBRAC, rl.DeterministicActorCritic, BOX, rl.ReBRACParams()),
    "fql": (rl.FQL, rl.FlowActorCritic, BOX, rl.FQLParams(chunk_length=2, num_flow_steps=2)),
    "discrete_cql": (rl.DiscreteCQL, rl.QNetwork, DISCRETE, rl.DiscreteCQLParams(target_update_interval=7)),
    "iql": (rl.IQL, rl.GaussianActorCritic, BOX, rl.IQLParams()),
    "bc": (rl.BC, rl.Actor, DISCRETE, rl.BCParams()),
}
DELAYED_ACTORS = ("td3", "td3_bc", "redq", "crossq", "flashsac", "xqc", "rebrac")
"""Algorithms with two graphs: steps of the critics alone, and of the actor too."""


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    if not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("needs a C++ compiler")
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def make(name: str, hidden_sizes: tuple[int, ...] = (16, 16), **changes: Any) -> Any:
    algorithm, policy, action_space, params = MAKERS[name]
    rl.seed(5)
    params = type(params)(**(vars(params) | changes))
    options = policy_options(algorithm, params)
    made = built(algorithm, policy.for_spaces(OBS, action_space, hidden_sizes=hidden_sizes, **options), params)
    made.seed(3)
    return made


def actions(space: Any, *shape: int, generator: torch.Generator) -> torch.Tensor:
    if isinstance(space, gym.spaces.Discrete):
        return torch.randint(0, 3, shape, generator=generator)
    return torch.rand((*shape, 2), generator=generator) * 2 - 1


def transitions(algorithm: Any, seed: int) -> rl.Transitions:
    g = torch.Generator().manual_seed(seed)
    terminated = torch.rand(16, generator=g) < 0.3
    obs, action = torch.randn(16, 3, generator=g), actions(algorithm.policy.action_space, 16, generator=g)
    reward, next_obs = torch.randn(16, generator=g), torch.randn(16, 3, generator=g)
    given = {"next_obs": next_obs, "terminated": terminated, "discount": 0.9 * (~terminated).float()}
    return batches.transitions(obs, reward=reward, **given, **batches.of_data(algorithm, action))


def rollout(algorithm: Any, seed: int, num_rows: int = 8) -> rl.Rollout:
    g = torch.Generator().manual_seed(seed)
    known = algorithm.policy.columns
    obs = torch.randn(num_rows, 5, 3, generator=g)
    action = actions(algorithm.policy.action_space, num_rows, 5, generator=g)
    return batches.rollout(
        obs, action, torch.randn(num_rows, 5, generator=g), valid=torch.rand(num_rows, 5, generator=g) < 0.8,
        last_obs=torch.randn(5, 3, generator=g),
        extra={name: torch.rand(num_rows, 5, *known[name][0], generator=g) for name in algorithm.columns},
    )  # fmt: skip


def update(algorithm: Any, seed: int) -> rl.UpdateResult:
    """Take four gradient steps, off policy one."""
    if isinstance(algorithm, rl.OnPolicyAlgorithm):
        size = 24 if algorithm.trains_recurrent else 20  # whole envs
        return algorithm.update(rollout(algorithm, seed), batch_size=size, repeat=2)
    return algorithm.update(transitions(algorithm, seed))


def parameters(algorithm: Any) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in batches.trained(algorithm).named_parameters()}


def assert_same_training(eager: Any, compiled: Any, num_updates: int, **tolerance: float) -> None:
    """Update an algorithm that runs uncompiled and one that runs compiled, and compare all that their policies hold."""
    for i in range(num_updates):
        update(eager, seed=i)
        update(compiled, seed=i)
    assert compiled.is_compiled
    for key, value in eager.policy.state_dict().items():
        torch.testing.assert_close(compiled.policy.state_dict()[key], value, **tolerance)


@pytest.mark.parametrize(("name", "net", "in_cpp"), [
    ("sac", {"activation": torch.nn.PReLU}, False),
    ("a2c", {"activation": torch.nn.BatchNorm1d}, False),
    # The same units are dropped, which is the compiler's own arithmetic. A second layer of it takes half a minute.
    ("bc", {"norm": "layer", "dropout": 0.2}, True),
    pytest.param("sac", {"activation": torch.nn.PReLU}, True, marks=pytest.mark.slow),
    pytest.param("a2c", {"activation": torch.nn.BatchNorm1d}, True, marks=pytest.mark.slow),
])  # fmt: skip
def test_layers_with_weights_statistics_or_masks_compile(
    name: str, net: dict[str, Any], in_cpp: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_cpp:
        monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", as_traced)
    algorithm, policy, action_space, params = MAKERS[name]
    made = []
    for _ in range(2):
        rl.seed(5)
        net_params = rl.NetParams(hidden_sizes=(16,), **net)
        options = policy_options(algorithm, params)
        made.append(algorithm(policy.for_spaces(OBS, action_space, net_params, **options), params))
        made[-1].seed(3)
    made[1].attach(COMPILED)
    assert_same_training(*made, num_updates=3, rtol=1e-3, atol=1e-4)
    assert not counters["graph_break"]


def test_the_compiler_recommends_no_tf32() -> None:
    """On a GPU it does so once in a process, up to PyTorch 2.13; later ones log it."""
    text = "TensorFloat32 tensor cores for float32 matrix multiplication available but not enabled. Consider setting"
    with pytest.raises(UserWarning, match="^TensorFloat32 tensor cores"):
        warnings.warn(text, stacklevel=1)
    rl.BC(rl.Actor.for_spaces(OBS, DISCRETE, hidden_sizes=(8,)), rl.BCParams()).attach(COMPILED)
    warnings.warn(text, stacklevel=1)


@pytest.mark.filterwarnings("ignore:PrecisionParams.amp")
def test_the_ratio_is_one_before_the_first_compiled_step_in_bf16() -> None:
    class Measures(rl.PPO):
        def gradient_step(self, batch: rl.OnPolicyBatch) -> rl.UpdateResult:
            log_prob = self.policy.distribution(batch.obs).log_prob(batch.action).detach()
            result = super().gradient_step(batch)
            result.metrics["log_ratio"] = (log_prob - batch.log_prob).abs().amax()
            return result

    rl.seed(5)
    algorithm = Measures(rl.ActorCritic.for_spaces(OBS, BOX, hidden_sizes=(64, 64)))
    with torch.no_grad():  # as after a long training: a mean that differs, and little spread
        algorithm.policy.actor[2].linear.weight.mul_(100.0)
        algorithm.policy.actor[2].log_std.fill_(-3.0)
    algorithm.attach(dataclasses.replace(COMPILED, precision=rl.PrecisionParams(amp="bf16")))
    data = rollout(algorithm, seed=0)
    sample = algorithm.policy.select_action(data.obs.flatten(0, 1), explore=True).action
    data.action = sample.unflatten(0, data.reward.shape)
    assert algorithm.update(data, batch_size=None, repeat=1).floats()["log_ratio"] < 0.05
    assert algorithm.is_compiled


def test_a_bad_gradient_is_left_out_of_a_compiled_step_and_named() -> None:
    compiled = make("bc")
    compiled.attach(COMPILED)
    update(compiled, seed=0)
    before = parameters(compiled)
    batch = transitions(compiled, seed=1)
    batch.weight[3] = float("inf")
    with pytest.raises(rl.errors.NonFiniteError, match=r"BC: the gradient of actor\S+weight is not finite"):
        compiled.update(batch)
    assert all(torch.equal(before[key], value) for key, value in parameters(compiled).items())
    update(compiled, seed=2)
    assert not all(torch.equal(before[key], value) for key, value in parameters(compiled).items())


@pytest.mark.usefixtures("_traced_only")
def test_an_optimizer_of_the_users_cuts_the_graph_and_follows_its_schedule() -> None:
    eager, compiled = (make("bc", optimizer=torch.optim.Adam, lr=rl.LinearSchedule(1e-2, 0.0)) for _ in range(2))
    progress = [0.0]
    eager.attach(rl.UpdatePlan(lambda: progress[0]))
    compiled.attach(rl.UpdatePlan(lambda: progress[0], runtime=rl.RuntimeParams(compile=True)))
    for i in range(6):
        progress[0] = i / 6
        update(eager, seed=i)
        update(compiled, seed=i)
    assert compiled.is_compiled
    for key, value in parameters(eager).items():
        torch.testing.assert_close(parameters(compiled)[key], value)


@pytest.mark.parametrize("name", ["sac", "ppo"])
def test_large_products_are_in_the_graph_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rltrainer.nets.linear.MIN_PRODUCT", 0)  # what is large may be small in a test
    eager, compiled = make(name), make(name)
    compiled.attach(COMPILED)
    assert_same_training(eager, compiled, num_updates=3, rtol=1e-3, atol=1e-5)
    assert not counters["graph_break"]


def test_compiled_steps_on_images_are_the_eager_ones() -> None:
    shape = (36, 40, 2)

    def image_algorithm() -> Any:
        rl.seed(5)
        space = gym.spaces.Box(0, 255, shape, np.uint8)
        # A large epsilon: Adam's first steps would else be the signs of roundings where a gradient is nearly 0.
        return rl.BC(rl.Actor.for_spaces(space, DISCRETE, hidden_sizes=(8,)), rl.BCParams(adam_eps=1e-3))

    eager, compiled = image_algorithm(), image_algorithm()
    compiled.attach(COMPILED)
    for i in range(3):
        data = transitions(eager, seed=i)
        images = torch.randint(0, 256, (16, *shape), generator=torch.Generator().manual_seed(i), dtype=torch.uint8)
        data.obs = data.next_obs = images
        for algorithm in (eager, compiled):
            algorithm.update(data)
    assert compiled.is_compiled
    assert not counters["graph_break"]
    for key, value in parameters(eager).items():
        torch.testing.assert_close(parameters(compiled)[key], value, rtol=1e-3, atol=1e-5)


def test_a_parameter_of_another_layout_is_seen_by_the_next_run() -> None:
    eager, compiled = make("bc"), make("bc")
    compiled.attach(COMPILED)
    assert_same_training(eager, compiled, num_updates=1)
    weight = next(compiled.policy.parameters())
    weight.data = weight.data.t().contiguous().t()  # the graph itself does not look at strides
    compiled.attach(COMPILED)
    assert_same_training(eager, compiled, num_updates=2)


def test_a_compilation_that_fails_goes_on_uncompiled_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    eager, compiled = make("bc"), make("bc")
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", _no_compiler)
    compiled.attach(COMPILED)
    update(eager, seed=0)
    with pytest.warns(UserWarning, match="compiling the gradient step failed, it runs uncompiled: "):
        update(compiled, seed=0)
    assert not compiled.is_compiled
    assert all(torch.equal(value, parameters(compiled)[key]) for key, value in parameters(eager).items())


def _no_compiler(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("No working C++ compiler found")


def test_many_algorithms_in_one_process_are_all_compiled() -> None:
    # The compiler keeps eight graphs per function.
    policy = rl.Actor(OBS, DISCRETE, hidden_sizes=())
    for i in range(10):
        one = rl.BC(policy, rl.BCParams(max_grad_norm=1.0 + i))
        one.attach(rl.UpdatePlan(runtime=rl.RuntimeParams(compile=True)))
        one._execution._compiled = torch.compile(with_code_of_its_own(one._step), backend="eager")
        update(one, seed=i)
    assert counters["stats"]["unique_graphs"] == 10


@pytest.mark.usefixtures("_traced_only")
def test_a_second_algorithm_of_a_process_is_compiled_for_its_own_sizes() -> None:
    for num_rows in (8, 6):
        algorithm = make("ppo")
        algorithm.attach(COMPILED)
        for num_valid in (num_rows * 5, num_rows * 5 - 7):  # then out of fewer cells, and padded
            data = rollout(algorithm, seed=0, num_rows=num_rows)
            data.valid.view(-1).copy_(torch.arange(num_rows * 5) < num_valid)
            algorithm.update(data, batch_size=10, repeat=1)
    assert counters["stats"]["unique_graphs"] == 2


class Counting(rl.PPO):
    """Counts its steps in Python, which a compiled loop would do once."""

    num_steps = 0

    def gradient_step(self, batch: Any) -> rl.UpdateResult:
        """Count, and take a step."""
        self.num_steps += 1
        return super().gradient_step(batch)


def _count(module: Any, args: Any, output: torch.Tensor) -> None:
    _COUNTED["calls"] += 1


_COUNTED = {"calls": 0}


@pytest.mark.usefixtures("_traced_only")
@pytest.mark.parametrize("of", ["algorithm", "hook"])
def test_what_counts_in_python_takes_its_steps_one_by_one(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = make("ppo")
    algorithm = Counting(algorithm.policy, algorithm.params) if of == "algorithm" else algorithm
    if of == "hook":
        algorithm.policy.critic.register_forward_hook(_count)
    algorithm.attach(COMPILED)
    assert algorithm._execution.can_loop
    before = _COUNTED["calls"]
    result = update(algorithm, seed=0)
    assert result.num_gradient_steps == 4
    if of == "algorithm":
        assert algorithm.num_steps == 4
    else:
        assert _COUNTED["calls"] == before + 1 + 4  # once to value the rollout


def test_a_compiled_run_is_resumed_bit_for_bit(tmp_path: Path) -> None:
    def compiled() -> Any:
        trainer = build("ppo")
        params = dataclasses.replace(trainer.params, runtime=rl.RuntimeParams(compile=True))
        return type(trainer)(trainer.algorithm, params)

    assert assert_resumes(compiled, tmp_path).algorithm.is_compiled


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda algorithm: pickle.loads(pickle.dumps(algorithm))])
def test_a_copy_of_a_compiled_algorithm_is_not_attached_and_goes_on_equally(duplicate: Any) -> None:
    algorithm = make("dqn")
    algorithm.attach(COMPILED)
    algorithm.update(transitions(algorithm, 1))
    made = duplicate(algorithm)
    assert not made.is_compiled
    made.attach(COMPILED)
    for each in (algorithm, made):
        each.update(transitions(each, 2))
    assert torch.equal(*(torch.cat([p.flatten() for p in each.policy.parameters()]) for each in (algorithm, made)))
