"""Updates that are recorded with the sampling of their batches: they give the bits of updates without CUDA graphs."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.execution.cuda_graph import CudaRecorder
from tests.resume.runs import build, digest

EAGER = rl.RuntimeParams(compile=False, cuda_graph=False)
GRAPHS = rl.RuntimeParams(compile=False)
SPACES = (gym.spaces.Box(-100.0, 100.0, (1,), np.float32), gym.spaces.Discrete(2))


class Replays(list[int]):
    """The numbers of the graphs that were replayed, in order; those recorded without a generator are negative."""

    num_graphs = 0


@pytest.fixture(autouse=True)
def replays(monkeypatch: pytest.MonkeyPatch) -> Replays:
    """Record after one warm-up, and note the replays."""
    monkeypatch.setattr("rltrainer.execution.cuda_graph.NUM_WARM_UPS", 1)
    found = Replays()

    class Recorder(CudaRecorder):
        def capture(self, function: Any, generators: Any = ()) -> Any:
            replay = super().capture(function, generators)
            found.num_graphs += 1
            number = found.num_graphs if generators else -found.num_graphs

            def replay_and_note() -> Any:
                found.append(number)
                return replay()

            return replay_and_note

    monkeypatch.setattr("rltrainer.execution.execution.CudaRecorder", Recorder)
    return found


def made(name: str, runtime: rl.RuntimeParams, ratio: float | None = None, **params: Any) -> Any:
    """Return a trainer on the device with so many gradient steps per sample."""
    fields = {} if ratio is None else {"update_step_num_gradient_steps_per_sample": ratio}
    return build(name, device="cuda", runtime=runtime, **fields | params)


def end(trainer: Any) -> str:
    """Return a hash of everything after the run."""
    trainer.run()
    trainer.state.runtime = EAGER  # part of the state, and not to be compared
    return digest(trainer)


@pytest.mark.parametrize(("name", "ratio", "expected"), [
    ("offline_iql", None, [1] * 12),
    *(pytest.param(name, ratio, replays, marks=pytest.mark.full) for name, ratio, replays in (
        ("dqn", 0.4, [1, 1, 1, 1, 1]),
        ("dqn_prioritized", 0.35, [1, 2, 1, 2, 1]),  # 3 or 4 steps at once
        ("td3", 0.3, [1, 2, 1, 2, 1]),  # of three steps the actor trains in one or in two
        ("sac_float64", 0.2, [1, 1, 1, 1, 1]),
        ("offline_sac_prioritized", None, [1] * 12),
    )),
])  # fmt: skip
def test_a_run_has_the_bits_of_one_without_graphs(
    name: str, ratio: float | None, expected: list[int], replays: Replays
) -> None:
    without = end(made(name, EAGER, ratio))
    assert not replays
    trainer = made(name, GRAPHS, ratio)
    assert end(trainer) == without
    assert trainer.algorithm.has_cuda_graph
    assert replays == expected  # positive: each holds the sampling of its batches


@pytest.mark.full
@pytest.mark.parametrize("update", [rl.UpdateParams(accumulate=2), rl.UpdateParams(nonfinite="skip")])
def test_groups_of_steps_and_skipped_ones(update: rl.UpdateParams, replays: Replays) -> None:
    assert end(made("td3", GRAPHS, 0.3, update=update)) == end(made("td3", EAGER, 0.3, update=update))
    assert min(replays) > 0


@pytest.mark.full
@pytest.mark.parametrize("name", ["dqn_prioritized_midway", "offline_iql"])
def test_a_run_is_resumed_in_the_middle(name: str, tmp_path: Path) -> None:
    stopped = made(name, GRAPHS)
    stopped.execute_epoch()
    stopped.save(tmp_path / "checkpoint")
    resumed = made(name, GRAPHS)
    resumed.restore(tmp_path / "checkpoint")
    assert end(resumed) == end(made(name, EAGER))


@pytest.mark.full
def test_what_draws_on_the_host_stays_outside_of_the_graph(replays: Replays) -> None:
    for name, options in (("dqn", {"buffer_device": "cpu"}), ("sac_mixed", {})):
        assert end(made(name, GRAPHS, **options)) == end(made(name, EAGER, **options))
    assert max(replays) < 0


@pytest.mark.full
def test_an_algorithm_or_a_hook_that_sees_batches_does_too(replays: Replays) -> None:
    class Own(rl.DQN):
        def sample_noise(self, batch: rl.Transitions) -> Any:
            seen.append(len(batch.reward))

    class Look(rl.TrainerHook):
        def pre_steps_log(self, ctx: rl.TrainerContext, batch: Any) -> None:
            seen.append(batch.reward.shape[0])

    seen: list[int] = []
    trainer = made("dqn", GRAPHS, 0.2, max_epochs=1)
    type(trainer)(Own(trainer.algorithm.policy), trainer.params).run()
    assert seen == [8] * 2
    made("offline_iql", GRAPHS, max_epochs=1, hooks=(Look(),)).run()
    assert seen == [8] * 6
    assert replays
    assert max(replays) < 0


def filled(buffer: rl.ReplayBuffer, first: int, num: int, ends: bool = False) -> rl.ReplayBuffer:
    """Store steps in all envs; observations count up."""
    for k in range(first, first + num):
        obs = np.arange(buffer.num_envs, dtype=np.float32)[:, None] * 1000 + k
        flags = np.full(buffer.num_envs, ends), np.zeros(buffer.num_envs, bool)
        reward = np.full(buffer.num_envs, k, np.float32)
        buffer.add(obs, np.zeros(buffer.num_envs, np.int64), reward, obs + 1, *flags)
    return buffer


def updated(buffers: list[rl.ReplayBuffer], algorithms: list[Any]) -> None:
    """Update by each algorithm from its buffer, and compare."""
    for num_steps in (1, 3, 3, 1):
        one, other = (a.update_from(b, 4, num_steps) for a, b in zip(algorithms, buffers, strict=True))
        assert one.floats() == other.floats()
        assert (one.num_gradient_steps, one.td_error) == (num_steps, None)
    assert torch.equal(buffers[0].generator.get_state(), buffers[1].generator.get_state())


def pair(**options: Any) -> tuple[list[rl.ReplayBuffer], list[Any]]:
    """Return two equal prioritised buffers and algorithms, of which the first records."""
    buffers, algorithms = [], []
    for runtime in (GRAPHS, EAGER):
        rl.seed(1)
        buffers.append(rl.PrioritizedReplayBuffer(24, *SPACES, 2, device="cuda", seed=3, **options))
        policy = rl.QNetwork(*SPACES, hidden_sizes=(4,)).to("cuda")
        algorithms.append(rl.DQN(policy, rl.DQNParams(n_step=3)))
        algorithms[-1].attach(rl.UpdatePlan(runtime=runtime))
    return buffers, algorithms


def test_a_graph_follows_a_buffer_that_fills_wraps_around_and_is_cleared(replays: Replays) -> None:
    buffers, algorithms = pair()
    for first, num in ((0, 2), (2, 4), (6, 10), (16, 15)):
        for buffer in buffers:
            filled(buffer, first, num)
        updated(buffers, algorithms)
    assert replays.num_graphs == 2  # of one step and of three
    for buffer in buffers:
        buffer.clear()
        filled(buffer, 50, 2)
    updated(buffers, algorithms)
    assert replays.num_graphs == 2
    for buffer in buffers:
        filled(buffer, 60, 12, ends=True)  # more final observations than there was memory for
    updated(buffers, algorithms)
    assert replays.num_graphs == 4
    assert min(replays) > 0


def test_a_graph_follows_the_schedule_of_beta_and_another_buffer(replays: Replays) -> None:
    progress = [0.0]
    buffers, algorithms = pair(beta=rl.LinearSchedule(0.2, 1.0))
    for algorithm in algorithms:
        plan = rl.UpdatePlan(lambda: progress[0], runtime=algorithm.plan.runtime)
        algorithm.attach(plan)
    for progress[0] in (0.0, 0.5, 1.0):
        for buffer in buffers:
            filled(buffer, int(progress[0] * 10), 3)
        updated(buffers, algorithms)
    assert replays.num_graphs == 2
    others = [filled(buffer, 7, 9) for buffer in pair()[0]]
    updated(others, algorithms)
    assert replays.num_graphs == 4


def test_envs_that_are_out_of_step_and_stacked_frames(replays: Replays) -> None:
    space = gym.spaces.Box(-100.0, 100.0, (2, 1), np.float32)
    results: list[Any] = []
    for runtime in (GRAPHS, EAGER):
        rl.seed(1)
        buffer = rl.ReplayBuffer(12, space, SPACES[1], 2, device="cuda", seed=3, frame_stack=2)
        algorithm = rl.DQN(rl.QNetwork(space, SPACES[1], hidden_sizes=(4,)).to("cuda"))
        algorithm.attach(rl.UpdatePlan(runtime=runtime))
        for k in range(20):
            obs = torch.full((1, 2, 2, 1), float(k))
            no = torch.zeros(1, 2, dtype=torch.bool)
            valid = torch.tensor([[True, k % 3 > 0]])
            rollout = rl.Rollout(obs, no.long(), no.float(), no, no, valid, obs[0], obs[0, :0], no[0, :0].long(), no[0])
            buffer.add_rollout(rollout)
            results.append(algorithm.update_from(buffer, 4).floats())
    assert results[:20] == results[20:]
    assert replays == [1] * 20


def test_what_cannot_be_recorded_samples_outside_of_its_graph(
    replays: Replays, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = rl.PrioritizedReplayBuffer._draw

    def looking(self: Any, *given: Any) -> Any:
        found = draw(self, *given)
        found[0].sum().item()
        return found

    monkeypatch.setattr(rl.PrioritizedReplayBuffer, "_draw", looking)
    buffers, algorithms = pair()
    for buffer in buffers:
        filled(buffer, 0, 5)
    with pytest.warns(UserWarning, match="recording the update as a CUDA graph failed, it runs without: CUDA"):
        updated(buffers, algorithms)
    assert algorithms[0].has_cuda_graph
    assert replays
    assert max(replays) < 0
