"""On a CUDA device: the numbers of eager steps in compiled ones and in CUDA graphs, and nothing that waits."""

import contextlib
import copy
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.tree import map_tensors
from tests.compile.test_compiled_updates import MAKERS, OBS, rollout, transitions
from tests.contract.test_all_algorithms import assert_same_state
from tests.fakes import built, policy_options
from tests.resume.runs import assert_resumes, build
from tests.unit.execution.test_cuda_graph import tensors_in

ON_A_GPU = [
    pytest.mark.gpu, pytest.mark.timeout(600),
    # PyTorch says this once in a process; as an error it would end whichever test comes first.
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature"),
]  # fmt: skip
pytestmark = ON_A_GPU

DEVICE = "cuda"
MODES = {
    "eager": rl.RuntimeParams(compile=False, cuda_graph=False),
    "compiled": rl.RuntimeParams(compile=True, cuda_graph=False),
    "eager, graph": rl.RuntimeParams(compile=False, cuda_graph=True),
    "compiled, graph": rl.RuntimeParams(compile=True),
}
OFF_POLICY = [name for name, (cls, *_) in MAKERS.items() if not issubclass(cls, rl.OnPolicyAlgorithm)]


def make(name: str, mode: str, **changes: Any) -> Any:
    algorithm_class, policy_class, action_space, params = MAKERS[name]
    rl.seed(5)
    options = policy_options(algorithm_class, params)
    policy = policy_class.for_spaces(OBS, action_space, hidden_sizes=(16, 16), **options).to(DEVICE)
    algorithm = built(algorithm_class, policy, dataclasses.replace(params, **changes))
    algorithm.seed(3)
    algorithm.attach(rl.UpdatePlan(runtime=MODES[mode]))
    return algorithm


def to_device(value: Any) -> Any:
    return map_tensors(lambda x: x.to(DEVICE), value)


def update(algorithm: Any, seed: int) -> rl.UpdateResult:
    if isinstance(algorithm, rl.OnPolicyAlgorithm):
        size = 24 if algorithm.trains_recurrent else 20  # whole envs
        return algorithm.update(to_device(rollout(algorithm, seed)), batch_size=size, repeat=2)
    return algorithm.update(to_device(transitions(algorithm, seed)))


@contextlib.contextmanager
def without_waiting() -> Iterator[None]:
    """Make every call that waits for the device an error."""
    try:
        torch.cuda.set_sync_debug_mode("error")  # in here: it warns once it has set the mode
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("mode", list(MODES)[1:])
@pytest.mark.parametrize("name", MAKERS)
def test_updates_are_the_eager_ones(name: str, mode: str) -> None:
    eager, other = make(name, "eager"), make(name, mode)
    assert other.has_cuda_graph is ("graph" in mode)
    for seed in range(10):
        one, two = update(eager, seed), update(other, seed)
        assert two.floats() == pytest.approx(one.floats(), rel=1e-3, abs=1e-4)
    assert other.has_cuda_graph is ("graph" in mode)  # it did not fall back
    assert other.is_compiled is mode.startswith("compiled")
    parameters = dict(other.policy.named_parameters())
    for key, value in eager.policy.named_parameters():
        torch.testing.assert_close(parameters[key], value, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("base", ["eager", "compiled"])
@pytest.mark.parametrize("name", ["sac", "td3", "ppo"])
def test_a_graph_is_nearer_still_to_the_steps_that_it_holds(name: str, base: str) -> None:
    plain, graphed = make(name, base), make(name, f"{base}, graph")
    for seed in range(10):
        update(plain, seed)
        update(graphed, seed)
    parameters = dict(graphed.policy.named_parameters())
    for key, value in plain.policy.named_parameters():
        torch.testing.assert_close(parameters[key], value, rtol=1e-5, atol=1e-6)


def filled_buffer(algorithm: Any, device: str, num_envs: int = 4, kind: Any = rl.ReplayBuffer) -> rl.ReplayBuffer:
    buffer: rl.ReplayBuffer = kind(200, OBS, algorithm.policy.action_space, num_envs=num_envs, device=device, seed=1)
    for step in range(60):  # wraps around
        data = transitions(algorithm, seed=step)[:num_envs]
        no = torch.zeros(num_envs, dtype=torch.bool)
        action = data.action[:, 0] if data.action.dim() == 3 else data.action  # the first one of a chunk
        buffer.add(data.obs, action, data.reward, data.next_obs, data.terminated, no)
        buffer.end_trajectory()
    return buffer


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_replay_buffer_samples_where_it_lives(n_step: int) -> None:
    algorithm = make("sac", "eager")
    here, there = filled_buffer(algorithm, "cpu"), filled_buffer(algorithm, DEVICE)
    sample = there.sample(16, n_step=n_step)
    assert {leaf.device.type for leaf in tensors_in(sample)} == {DEVICE}
    same = here._ring.transitions(sample.index.cpu(), n_step, 0.99)
    for one, other in zip(tensors_in(same), tensors_in(sample), strict=True):
        torch.testing.assert_close(other.cpu(), one)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", OFF_POLICY)
def test_an_off_policy_update_waits_for_nothing(name: str, mode: str) -> None:
    algorithm = make(name, mode)
    buffer, on_host = filled_buffer(algorithm, DEVICE), filled_buffer(algorithm, "cpu")
    for _ in range(4):  # compiled, and recorded
        algorithm.update(algorithm.sample(buffer, 16))
        algorithm.update_from(buffer, 16)
    buffer.sample(16, n_step=3)
    with without_waiting():
        for _ in range(4):
            algorithm.update_from(buffer, 16)
            algorithm.update(algorithm.sample(buffer, 16))
            buffer.sample(16, n_step=3)
            algorithm.update(algorithm.sample(on_host, 16))


DRAWS = [*((name, rl.ReplayBuffer) for name in OFF_POLICY), *((k, rl.PrioritizedReplayBuffer) for k in ("dqn", "td3"))]


@pytest.mark.parametrize(("name", "kind"), DRAWS)
def test_a_graph_that_holds_the_sampling_draws_the_same(name: str, kind: Any) -> None:
    plain, graphed = make(name, "eager"), make(name, "eager, graph")
    one, other = (filled_buffer(algorithm, DEVICE, kind=kind) for algorithm in (plain, graphed))
    for num_steps in (1, 3, 3, 1, 3, 1):
        expected, found = plain.update_from(one, 16, num_steps), graphed.update_from(other, 16, num_steps)
        assert found.floats() == pytest.approx(expected.floats(), rel=1e-3, abs=1e-4)
    assert graphed._execution.may_record()  # it did not fall back
    assert torch.equal(one.generator.get_state(), other.generator.get_state())
    assert torch.equal(plain.generator.get_state(), graphed.generator.get_state())
    assert torch.equal(one.sample(16).index, other.sample(16).index)
    parameters = dict(graphed.policy.named_parameters())
    for key, value in plain.policy.named_parameters():
        torch.testing.assert_close(parameters[key], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["dqn_prioritized", "sac_mixed"])
def test_buffers_of_every_kind_draw_where_they_live(kind: str) -> None:
    trainer = build(kind, device=DEVICE)
    trainer.run()
    batch = trainer.buffer.sample(8, n_step=3, num_batches=2)
    assert {leaf.device.type for leaf in (batch.obs, batch.index, batch.weight)} == {"cuda"}
    sequences = trainer.buffer.sample_sequences(8, 3, 2)
    assert {leaf.device.type for leaf in (sequences.obs, sequences.first)} == {"cuda"}


@pytest.mark.parametrize("mode", MODES)
def test_a_bad_gradient_is_left_out_and_named_a_little_later(mode: str) -> None:
    algorithm = make("bc", mode)
    update(algorithm, 0)
    before = copy.deepcopy(algorithm.policy.state_dict())
    bad = to_device(transitions(algorithm, 1))
    bad.weight[3] = float("inf")
    text = r"BC: the gradient of actor.* is not finite"
    algorithm.update(bad)  # does not wait
    torch.cuda.synchronize()
    with pytest.raises(rl.errors.NonFiniteError, match=text):
        algorithm.update(bad)
    algorithm.update(bad)
    with pytest.raises(rl.errors.NonFiniteError, match=text):
        algorithm.state_dict()
    assert all(torch.equal(before[key], value) for key, value in algorithm.policy.state_dict().items())
    update(algorithm, 2)
    algorithm.check_faults()


def test_an_optimizer_of_the_users_is_not_captured() -> None:
    algorithm = make("bc", "compiled, graph", optimizer=torch.optim.SGD)
    assert not algorithm.has_cuda_graph
    update(algorithm, 0)
    with pytest.raises(rl.errors.ParamsError, match=r"RuntimeParams\.cuda_graph: .* an optimizer of your own"):
        make("bc", "eager, graph", optimizer=torch.optim.SGD)


def test_a_copy_trains_itself() -> None:
    algorithm = make("sac", "eager, graph")
    update(algorithm, 0)
    copied, before = copy.deepcopy(algorithm), copy.deepcopy(algorithm.policy.state_dict())
    update(copied, 1)
    assert all(torch.equal(before[key], value) for key, value in algorithm.policy.state_dict().items())
    update(algorithm, 1)
    assert_same_state(algorithm, copied)


@pytest.mark.parametrize("mode", ["eager", "eager, graph", "compiled, graph"])
@pytest.mark.parametrize("name", ["ppo", "sac", "td3", "dqn", "offline_iql"])
def test_a_run_is_resumed_bit_for_bit(name: str, mode: str, tmp_path: Path) -> None:
    def made() -> Any:
        trainer = build(name, device=DEVICE)
        return type(trainer)(trainer.algorithm, dataclasses.replace(trainer.params, runtime=MODES[mode]))

    assert assert_resumes(made, tmp_path).algorithm.has_cuda_graph is ("graph" in mode)


@pytest.mark.parametrize("amp", [None, "fp16"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["ppo", "dqn", "td3", "sac"])
def test_gathered_limited_and_scaled_steps_are_the_eager_ones(name: str, mode: str, amp: Any) -> None:
    plan = rl.UpdatePlan(
        update=rl.UpdateParams(accumulate=2, max_grad_norm=0.1, nonfinite="skip"),
        precision=rl.PrecisionParams(amp=amp, initial_loss_scale=1024.0),
    )
    eager, other = make(name, "eager"), make(name, mode)
    for algorithm, runtime in ((eager, MODES["eager"]), (other, MODES[mode])):
        algorithm.attach(dataclasses.replace(plan, runtime=runtime))
    for seed in range(4):
        update(eager, seed)
        update(other, seed)
    assert other.num_skipped_steps == eager.num_skipped_steps == 0
    for (key, value), expected in zip(other.policy.named_parameters(), eager.policy.parameters(), strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=5e-3, msg=lambda text, key=key: f"{key}: {text}")
