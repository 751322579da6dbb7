"""Envs of tensors on the second device: no operation mixes devices, nothing waits, and the numbers are the CPU's."""

import pytest
import torch

import rltrainer as rl
from rltrainer.envs.tensors import TENSOR_ENVS
from rltrainer.envs.tensors.tensor_vector_env import TensorEnvState, TensorVectorEnv
from rltrainer.tree import leaves, map_tree

N = 5


def made(env_id: str, device: str) -> TensorVectorEnv:
    envs = rl.make_vec(env_id, N, backend="tensor", device=device, seed=1)
    assert isinstance(envs, TensorVectorEnv)
    return envs


@pytest.mark.parametrize("env_id", TENSOR_ENVS)
def test_advance_is_that_of_the_cpu_and_does_not_wait(env_id: str) -> None:
    there, here = made(env_id, "cuda"), made(env_id, "cpu")
    uniform, action = here.sample_uniforms(), torch.as_tensor(here.action_space.sample())
    on_device = TensorEnvState(map_tree(lambda leaf: leaf.to("cuda"), here.current.state), there.current.num_steps)
    arguments = on_device, action.to("cuda"), uniform.to("cuda")
    torch.cuda.set_sync_debug_mode("error")
    after, step = there.advance(*arguments)
    table = there.sample_uniforms(3)
    torch.cuda.set_sync_debug_mode("default")
    expected_after, expected = here.advance(here.current, action, uniform)
    names = ("obs", "reward", "terminated", "truncated", "final_obs")
    pairs = [(after.state, expected_after.state), *((getattr(step, name), getattr(expected, name)) for name in names)]
    for found, wanted in pairs:
        for one, other in zip(leaves(found), leaves(wanted), strict=True):
            assert one.device.type == "cuda"
            torch.testing.assert_close(one.cpu(), other)
    assert (table.device.type, after.num_steps.device.type) == ("cuda", "cuda")


@pytest.mark.parametrize(("first", "second"), [("cuda", "cpu"), ("cpu", "cuda"), ("cuda", "cuda")])
def test_a_state_of_one_device_is_taken_over_on_another(first: str, second: str) -> None:
    one, other = made("CartPole-v1", first), made("CartPole-v1", second)
    for _ in range(3):
        one.step(torch.ones(N, dtype=torch.int64, device=first))
    state = one.state()
    assert {state.num_steps.device.type, state.leaves[0].device.type, state.generator.device.type} == {"cpu"}
    other.set_state(state)
    assert other.current.num_steps.tolist() == [3] * N
    assert other.current.state.device.type == second
    assert torch.equal(other.current.state.cpu(), one.current.state.cpu())
    if first == second:
        assert torch.equal(other.sample_uniforms(), one.sample_uniforms())
