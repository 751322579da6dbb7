"""Every way in which a function runs gives the numbers of the function as written, whatever changes between two calls.

| function | compiled | one loop of the CPU | CUDA graphs of steps | one CUDA graph of all |
|---|---|---|---|---|
| update of a rollout | below | tests/compile | below | below, of a dense rollout |
| update of transitions | below | none: an update has few steps | below | none: the batches are given |
| update from a buffer | as of transitions | none, as above | as of transitions | below |
| acting | none: checking guards takes longer | none: an env steps in between | tests/devices | none |
| rollout of envs of tensors | none: the loop is quicker | tests/unit/collect | none | tests/devices |

All tests here take `second_device`, the stand-in for CUDA, or trace what is compiled and run it operation by operation.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.execution import execution
from rltrainer.execution.execution import Scope
from rltrainer.plan import UpdateCallbacks
from rltrainer.tree import map_tensors
from tests.compile.test_compiled_updates import make, rollout, transitions
from tests.compile.test_same_weights import dense
from tests.contract.test_all_algorithms import assert_same_state
from tests.devices.second_device import second_device
from tests.fakes import flipped

SPACES = (gym.spaces.Box(-1.0, 1.0, (3,), np.float32), gym.spaces.Discrete(3))


class Run:
    """An algorithm whose update is called several times, and what the calls depend on."""

    def __init__(self, name: str, function: str, runtime: rl.RuntimeParams, device: str) -> None:
        self.function, self.device, self.progress, self.batch_size = function, device, 0.0, 20
        rl.seed(5)
        kind, _, plain = name.rpartition(" ")
        made, changes = make(plain), KINDS[kind]
        self.algorithm: Any = type(made)(made.policy.to(device), dataclasses.replace(made.params, **changes))
        self.algorithm.seed(3)
        self.algorithm.attach(rl.UpdatePlan(lambda: self.progress, runtime=runtime))
        self.buffer = rl.ReplayBuffer(50, *SPACES, 5, device=device, seed=3)
        if function == "buffer":
            self.buffer.add_rollout(rollout(self.algorithm, seed=0))

    def update(self, seed: int) -> dict[str, float]:
        algorithm, on_device = self.algorithm, lambda x: x.to(self.device)
        if self.function == "buffer":
            return algorithm.update_from(self.buffer, self.batch_size // 2, 2).floats()  # type: ignore[no-any-return]
        if self.function == "transitions":
            both = rl.Transitions.stack([transitions(algorithm, seed), transitions(algorithm, seed + 1)])
            batch = map_tensors(lambda x: x[:, : self.batch_size // 2], both)
            return algorithm.update(map_tensors(on_device, batch)).floats()  # type: ignore[no-any-return]
        data = rollout(algorithm, seed)
        data = dense(data, seed) if self.function == "dense rollout" else data
        return algorithm.update(map_tensors(on_device, data), self.batch_size, 2).floats()  # type: ignore[no-any-return]


RATE = rl.LinearSchedule(1e-2, 1e-3)
KINDS: dict[str, dict[str, Any]] = {
    "": {"lr": RATE}, "adaptive": {"lr": 2e-3, "desired_kl": 1e-4}, "symmetric": {"lr": RATE, "symmetry": flipped(3)}
}  # fmt: skip


def replace_loss(run: Run) -> None:
    name = "policy_loss" if isinstance(run.algorithm, rl.PPO) else "target"
    method = getattr(run.algorithm, name)
    setattr(run.algorithm, name, lambda *args: method(*args) * 0.5)


def first_layer(run: Run) -> Any:
    return next(m for m in run.algorithm.policy.modules() if isinstance(m, torch.nn.Linear))


CHANGES: dict[str, Callable[[Run], Any]] = {
    "nothing": lambda run: None,
    "progress of schedules": lambda run: setattr(run, "progress", 0.5),
    "the learning rate": lambda run: setattr(run.algorithm.optimizer, "schedule", 1e-4),
    "the limit of the norm": lambda run: setattr(run.algorithm.optimizer, "max_grad_norm", 1e-3),
    "a frozen layer": lambda run: first_layer(run).requires_grad_(False),
    "a replaced method": replace_loss,
    "a hook": lambda run: first_layer(run).register_forward_hook(lambda module, args, output: output * 2),
    "the size of a batch": lambda run: setattr(run, "batch_size", 10),
    "eval mode": lambda run: run.algorithm.policy.eval(),
    "loaded weights": lambda run: run.algorithm.load_state_dict(run.algorithm.state_dict()),
}
FAST = ("progress of schedules", "a replaced method", "a frozen layer")
ROWS = [name if name in FAST else pytest.param(name, marks=pytest.mark.full) for name in CHANGES]
GRAPHS = rl.RuntimeParams(compile=False)
EAGER = rl.RuntimeParams(compile=False, cuda_graph=False)


def require_a_moving_rate(run: Run) -> None:
    if run.algorithm.optimizer.method.adapts:
        assert run.algorithm.optimizer.method.lr != pytest.approx(2e-3, rel=0.1), "else nothing is tested"


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("rltrainer.execution.cuda_graph.NUM_WARM_UPS", 1)
    with second_device():
        yield


@pytest.mark.parametrize("change", ROWS)
@pytest.mark.parametrize(
    ("name", "function"), [
        ("ppo", "rollout"), ("ppo", "dense rollout"), ("dqn", "buffer"), ("dqn", "transitions"),
        *(pytest.param("adaptive ppo", kind, marks=pytest.mark.full) for kind in ("rollout", "dense rollout")),
        pytest.param("symmetric ppo", "dense rollout", marks=pytest.mark.full),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("on_device")
def test_cuda_graphs_have_the_bits_of_the_function_as_written(name: str, function: str, change: str) -> None:
    written, graphs = (Run(name, function, runtime, "cuda") for runtime in (EAGER, GRAPHS))
    for seed in range(4):
        if seed == 2:
            CHANGES[change](written)
            CHANGES[change](graphs)
        assert graphs.update(seed) == written.update(seed)
    assert_same_state(written.algorithm, graphs.algorithm)
    require_a_moving_rate(written)
    assert graphs.algorithm.has_cuda_graph
    whole = graphs.algorithm._execution._whole
    assert (whole is not None and whole[1].is_on) == (function in ("dense rollout", "buffer"))


@pytest.mark.parametrize("change", ROWS)
@pytest.mark.parametrize(("name", "function"), [
    ("ppo", "rollout"), ("dqn", "transitions"), pytest.param("adaptive ppo", "rollout", marks=pytest.mark.full),
    pytest.param("symmetric ppo", "rollout", marks=pytest.mark.full),
])  # fmt: skip
def test_compiled_steps_have_the_numbers_of_the_function_as_written(
    name: str, function: str, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_ = torch.compile
    monkeypatch.setattr(execution.torch, "compile", lambda step, options: compile_(step, backend="eager", options={
        name: value for name, value in options.items() if name == "guard_filter_fn"
    }))  # fmt: skip
    torch._dynamo.reset()
    written, compiled = (
        Run(name, function, rl.RuntimeParams(compile=is_compiled, loop=False), "cpu") for is_compiled in (False, True)
    )
    for seed in range(4):
        if seed == 2:
            CHANGES[change](written)
            CHANGES[change](compiled)
        assert compiled.update(seed) == pytest.approx(written.update(seed), rel=1e-4, abs=1e-5)
    assert compiled.algorithm.is_compiled
    require_a_moving_rate(written)


@pytest.mark.parametrize(("changes", "plan", "scope", "reason"), [
    ({}, {}, Scope.UPDATE, ""),
    ({}, {"update": rl.UpdateParams(max_grad_norm=0.1)}, Scope.UPDATE, ""),
    ({"target_kl": 0.01}, {}, Scope.STEPS, "target_kl may end it"),
    ({}, {"update": rl.UpdateParams(accumulate=2)}, Scope.STEPS, "gradients are accumulated"),
    ({}, {"callbacks": UpdateCallbacks(after=lambda batch, result: None)}, Scope.STEP, "a callback is given its"),
    ({}, {"callbacks": UpdateCallbacks(on_loss=lambda name, loss, step: None)}, Scope.NONE, "a function of yours"),
    ({}, {"all_reduce": lambda gradient: gradient}, Scope.NONE, "a function of yours"),
    ({"optimizer": torch.optim.Adam}, {}, Scope.NONE, "a function of yours"),
])  # fmt: skip
def test_how_much_one_graph_may_hold(changes: Any, plan: Any, scope: Scope, reason: str) -> None:
    algorithm = make("ppo", **changes)
    algorithm.attach(rl.UpdatePlan(runtime=rl.RuntimeParams(compile=True), **plan))
    found, said = algorithm._execution.scope()
    assert found is scope
    assert said.startswith(reason)
    assert algorithm._execution.can_loop == (scope is Scope.UPDATE)
    batches = algorithm.batches
    algorithm.batches = lambda *args: list(batches(*args))[:1]
    assert algorithm._execution.scope()[0] is min(scope, Scope.STEPS)


def test_a_loop_needs_compiled_steps_and_rollouts_of_one_length() -> None:
    algorithm = make("ppo")
    for runtime, varies in ((rl.RuntimeParams(compile=False), False), (rl.RuntimeParams(compile=True), True)):
        algorithm.attach(rl.UpdatePlan(runtime=runtime, varies_in_length=varies))
        assert not algorithm._execution.can_loop
