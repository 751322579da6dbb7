"""Contents that are wrong where checksums are right: each is named, and nothing changes.

`tests/resume/test_invalid_checkpoints.py` replaces every value in turn; here are those that are wrong by their meaning.
"""

import copy
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import pytest
import torch

import rltrainer as rl
from rltrainer.checkpoint import read_checkpoint, write_checkpoint
from rltrainer.errors import CheckpointError, ReplayBufferError
from rltrainer.hooks import EarlyStopping, LogScalar, RewardNormalizer
from rltrainer.types import State
from tests.resume.runs import build, digest
from tests.security.loaders import make_buffer

NAN, INF = float("nan"), float("inf")


def change(state: State, path: str, value: Any) -> State:
    """Return a copy in which the value at a path of names is another, or what a function makes of it."""
    state = copy.deepcopy(state)
    place: Any = state
    *way, last = path.split("/")
    for name in way:
        place = place[int(name) if isinstance(place, list) else name]
    place[last] = value(place[last]) if callable(value) else value
    return state


class Built(torch.optim.Adagrad):
    """Needs the moments that it makes when it is built, as Adagrad of torch 2.11 does."""

    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            _ = self.state[parameter]["sum"]
        return super().step(closure)


def first(number: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what puts a number at the first place of a tensor."""

    def put(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[0] = number
        return tensor

    return put


def trained(name: str) -> Any:
    trainer = build(name)
    trainer.reset()
    trainer.execute_epoch()
    return trainer


OF_ALGORITHMS: list[tuple[str, str, Any, str]] = [
    ("sac", "actor_optimizer/num_steps", torch.tensor(-1.0), r"SAC.actor_optimizer.num_steps: is negative"),
    ("sac", "actor_optimizer/square", first(-1.0), r"SAC.actor_optimizer.square: is negative"),
    ("sac", "actor_optimizer/mean", first(NAN), r"SAC.actor_optimizer.mean: holds NaN or infinity"),
    ("sac", "actor_optimizer/lr", -1.0, r"SAC.actor_optimizer.lr: expected a non-negative finite number, found -1.0"),
    ("sac", "policy/obs_normalizer.moments.0.var", first(-1.0), r"moments.0.var: is negative"),
    ("sac", "policy/obs_normalizer.moments.0.count", torch.tensor(INF, dtype=torch.float64), "holds NaN or infinity"),
    ("sac", "policy/action_high", first(7.0), r"action_high: expected \[1.0\], found \[7.0\]"),
    ("sac", "generator", torch.zeros(5056, dtype=torch.uint8), "SAC.generator: not the state of a generator"),
    ("sac", "generator", torch.zeros(7, dtype=torch.uint8), r"SAC.generator: not the state of a generator \(7 bytes\)"),
    ("td3", "num_critic_steps", torch.tensor(-1), r"TD3.num_critic_steps: expected a count, found -1"),
    ("td3", "num_critic_steps", torch.tensor(2**62), r"TD3.num_critic_steps: expected a count, found"),
    ("dqn", "target_critic/num_calls", torch.tensor(-5), r"num_calls: expected a count, found -5"),
    ("c51", "policy/support", lambda x: x.flip(0), r"support: expected atoms in \[-2, 2\], found others, in \[2, -2\]"),
    ("c51", "policy/support", first(3.0), r"support: expected atoms in \[-2, 2\], found others"),
]


@pytest.mark.parametrize(("name", "path", "value", "text"), OF_ALGORITHMS)
def test_algorithms(name: str, path: str, value: Any, text: str) -> None:
    trainer = trained(name)
    state, before = trainer.algorithm.state_dict(), digest(trainer)
    with pytest.raises(CheckpointError, match=text):
        trainer.algorithm.load_state_dict(change(state, path, value))
    assert digest(trainer) == before


@pytest.mark.parametrize(("make", "path", "value", "text"), [
    (torch.optim.AdamW, "state/0/step", torch.tensor(-1.0), "state.0.step: is negative"),
    (torch.optim.AdamW, "state/0/exp_avg_sq", first(-1.0), "state.0.exp_avg_sq: is negative"),
    (torch.optim.RMSprop, "state/0/square_avg", first(-1.0), "state.0.square_avg: is negative"),
    (torch.optim.Adagrad, "state/0/sum", first(-1.0), "state.0.sum: is negative"),
    (Built, "state/0/sum", first(-1.0), "state.0.sum: is negative"),
    (torch.optim.SGD, "groups/0/lr", -1.0, "groups.0.lr: is negative"),
    (torch.optim.SGD, "group_sizes", [torch.zeros(2)], r"group_sizes.0: expected an integer, found tensor"),
    (torch.optim.SGD, "groups/0/momentum", NAN, "groups.0.momentum: expected a value like 0, found nan"),
])  # fmt: skip
def test_optimizers_of_torch(make: Any, path: str, value: Any, text: str) -> None:
    rl.seed(1)
    policy = rl.Actor(gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2), hidden_sizes=(3,))
    algorithm = rl.BC(policy, rl.BCParams(optimizer=lambda parameters: make(parameters, lr=0.1)))
    obs, action, no, ones = torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64), torch.zeros(4).bool(), torch.ones(4)
    algorithm.update(rl.Transitions(obs, action, ones, obs, no, no, ones, action, ones))
    state = algorithm.state_dict()
    with pytest.raises(CheckpointError, match=rf"BC.optimizer(.|: ){text}"):
        algorithm.load_state_dict(change(state, f"optimizer/{path}", value))


# Other damages of buffers are in `tests/unit/data`: test_replay_file.py and test_prioritized.py.
OF_BUFFERS: list[tuple[str, Any, str]] = [
    ("written", first(2), r"rows.0.start: expected|rows: expected those up to"),
    (
        'rows/0/final_obs/["b"][0]',
        first(0),
        r'final_obs\["b"\]\[0\]: must lie in Discrete\(5, start=1\); transition 0 is 0',
    ),
    (
        'rows/0/data/["obs"]["b"][0]',
        first(9),
        r'obs\["b"\]\[0\]: must lie in Discrete\(5, start=1\); transition 0 is 9',
    ),
    ('rows/0/data/["reward"]', first(NAN), "reward: holds NaN or infinity"),
    ('rows/0/data/["obs"]["a"]', first(INF), r'obs\["a"\]: holds NaN or infinity'),
    ('rows/0/final_obs/["a"]', first(NAN), r'final_obs\["a"\]: holds NaN or infinity'),
    ('head/["a"]', first(NAN), r'head\["a"\]: holds NaN or infinity'),
    ("sampler/leaves", first(7.0), "sampler.priorities.largest: must be at least 1, as large as the largest leaf"),
    ("sampler/largest", 1e308, "sampler.priorities.largest: must be at least 1, .* and have a finite"),
    ("sampler/alpha", torch.zeros(2), "sampler.priorities.alpha: expected a number, found tensor"),
]


@pytest.mark.parametrize(("path", "value", "text"), OF_BUFFERS)
def test_buffers(path: str, value: Any, text: str) -> None:
    buffer = make_buffer()
    state, before = change(buffer.state_dict(), path, value), copy.deepcopy(buffer.state_dict())
    with pytest.raises(ReplayBufferError, match=text):
        buffer.load_state_dict(state)
    assert repr(buffer.state_dict()) == repr(before)


OF_RUNS: list[tuple[str, str, Any, str]] = [
    ("ppo", "counters/epoch", 7, "trainer: epochs: expected those up to 7, found"),
    ("ppo", "best/epoch", 9, "trainer: best.epoch: expected one up to 1, found 9"),
    ("ppo", "epochs", lambda x: [*x, *x], r"trainer: epochs: expected those up to 1, found \[1, 1\]"),
    ("ppo", "epochs/0/collect_stats/lengths", first(-1), "lengths: is negative"),
    ("ppo", "epochs/0/collect_stats/returns", lambda x: x[1:], "expected returns and lengths of as many episodes"),
    ("ppo", "epochs/0/collect_stats/returns", lambda x: x.bfloat16(), "expected an array, found"),
    ("ppo", "counters/env_step", 2**80, "env_step: expected an integer"),
    ("ppo", "timing/total", NAN, "timing.total: expected a non-negative finite number, found nan"),
    ("ppo", "runtime/num_threads", -4, "num_threads"),
    ("ppo", "runtime/deterministic", True, "trainer.runtime.deterministic: expected False, as RuntimeParams say, f"),
    ("ppo", "params/OnPolicyTrainerParams.batch_size", torch.zeros(2), r"batch_size was tensor\(\[0., 0.\]\)"),
    ("ppo", "params/OnPolicyTrainerParams.update", [torch.zeros(2)], "update was .* when it was saved"),
]


@pytest.mark.parametrize(("name", "path", "value", "text"), OF_RUNS)
def test_runs(name: str, path: str, value: Any, text: str, tmp_path: Any) -> None:
    trainer = trained(name)
    trainer.save(tmp_path / "whole")
    states = read_checkpoint(tmp_path / "whole")
    write_checkpoint(tmp_path / "wrong", states | {"trainer": change(states["trainer"], path, value)})
    before = digest(trainer)
    with pytest.raises(CheckpointError, match=text) as error:
        trainer.restore(tmp_path / "wrong")
    assert str(error.value).startswith(str(tmp_path / "wrong"))
    assert digest(trainer) == before


def test_a_count_of_steps_that_contradicts_another_makes_no_more_due(tmp_path: Any) -> None:
    """A file that says that none of a million samples' steps were taken would else take all of them now."""
    trainer = trained("dqn")
    trainer.save(tmp_path / "whole")
    states = read_checkpoint(tmp_path / "whole")
    state = change(change(states["trainer"], "num_samples", 2**60), "num_steps_taken", 0)
    write_checkpoint(tmp_path / "wrong", states | {"trainer": state})
    trainer.restore(tmp_path / "wrong")
    before = trainer.gradient_step
    trainer.execute_epoch()
    assert trainer.gradient_step - before < 1000


SUMMARY = {"count": 1, "mean": 0.0, "sum_of_squares": -1.0, "min": 0.0, "max": 0.0}
STOPPING = EarlyStopping().state_dict()
OTHER, WRONG = {"values": {"x": 1.0}, "weight": 1}, {"values": {"value": torch.tensor(3)}}


@pytest.mark.parametrize(("hook", "state", "text"), [
    (RewardNormalizer(), {"moments": torch.tensor([-1.0, 0.0, 0.0]).double()}, "moments: expected a count, a mean"),
    (RewardNormalizer(), {"moments": torch.tensor([1.0, 0.0, -1.0]).double()}, "moments: expected a count, a mean"),
    (LogScalar("reward"), {"summary": SUMMARY, "num_misses": 0}, "sum_of_squares: is negative"),
    (EarlyStopping("loss"), STOPPING | {"gathered": [OTHER]}, "gathered: expected parts of one 'value'"),
    (EarlyStopping("loss"), STOPPING | {"gathered": [WRONG]}, "gathered.0.values.value: expected a scalar tensor"),
])  # fmt: skip
def test_hooks(hook: Any, state: State, text: str) -> None:
    before = copy.deepcopy(hook.state_dict())
    with pytest.raises(CheckpointError, match=text):
        hook.prepare_load(state)
    assert repr(hook.state_dict()) == repr(before)
