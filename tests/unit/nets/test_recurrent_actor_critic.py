"""Recurrent cells against torch's, and the actor-critic with memory: sequences are steps one by one."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rltrainer as rl
from rltrainer.nets.recurrent import GRU, LSTM

L, B, F, H = 7, 3, 4, 5
every_cell = pytest.mark.parametrize("cls", [GRU, LSTM])


def make_cell(cls: Any, dtype: torch.dtype = torch.float64) -> tuple[Any, Tensor, Tensor, Tensor]:
    """Return a cell, features, a memory, and where episodes begin."""
    torch.manual_seed(0)
    cell, g = cls(F, H).to(dtype), torch.Generator().manual_seed(1)
    begins = torch.zeros(L, B, dtype=torch.bool)
    begins[3, 1] = begins[5, 0] = begins[5, 1] = begins[0, 2] = True
    x = torch.randn(L, B, F, generator=g, dtype=dtype)
    return cell, x, torch.randn(B, cell.memory_size, generator=g, dtype=dtype), begins


def torchs(cell: Any) -> Any:
    """Return torch's cell with the same weights; its gates are i, f, g, o where ours are i, f, o, g."""
    theirs: Any = (nn.GRUCell if isinstance(cell, GRU) else nn.LSTMCell)(F, H, dtype=torch.float64)
    order = [0, 1, 2] if isinstance(cell, GRU) else [0, 1, 3, 2]
    for ours, name in ((cell.of_input, "ih"), (cell.of_memory, "hh")):
        for kind in ("weight", "bias"):
            gates = getattr(ours, kind).detach().chunk(len(order))
            getattr(theirs, f"{kind}_{name}").data.copy_(torch.cat([gates[i] for i in order]))
    return theirs


@every_cell
def test_cells_are_torchs(cls: Any) -> None:
    cell, x, memory, begins = make_cell(cls)
    memories = cell(x, memory, begins)
    theirs, expected = torchs(cell), memory
    for t in range(L):
        expected = torch.where(begins[t].unsqueeze(1), 0.0, expected)
        state = theirs(x[t], expected if cls is GRU else expected.chunk(2, -1))
        expected = state if cls is GRU else torch.cat(state, -1)
        torch.testing.assert_close(memories[t], expected)
        torch.testing.assert_close(cell.output(memories[t]), expected[:, :H])


@every_cell
def test_gradients_are_those_of_differences(cls: Any) -> None:
    cell, x, memory, begins = make_cell(cls)
    names = [name for name, _ in cell.named_parameters()]

    def run(x: Tensor, memory: Tensor, *parameters: Tensor) -> Tensor:
        named = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(cell, named, (x, memory, begins))  # type: ignore[no-any-return]

    inputs = [x, memory, *(p.detach() for p in cell.parameters())]
    assert torch.autograd.gradcheck(run, [tensor.requires_grad_() for tensor in inputs])


@every_cell
def test_an_episode_does_not_depend_on_rows_before_it(cls: Any) -> None:
    cell, x, memory, begins = make_cell(cls)
    memory.requires_grad_()
    x.requires_grad_()
    of_x, of_memory = torch.autograd.grad(cell(x, memory, begins)[5:, 1].sum(), [x, memory])
    assert of_x[:5].abs().sum() == of_memory.abs().sum() == 0
    assert of_x[5, 1].abs().sum() > 0
    nothing = cell(x, torch.zeros_like(memory), begins)
    assert torch.equal(cell(x, memory, begins)[:, 2], nothing[:, 2]), "it begins in the first row"


@every_cell
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # which torch 2.14 reads in its own check
def test_operators_are_as_compilers_expect(cls: Any) -> None:
    cell, _, memory, begins = make_cell(cls, torch.float32)
    products = torch.randn(L, B, cell.num_gates * H, requires_grad=True)
    args = (products, memory, (~begins).float().unsqueeze(-1), cell.of_memory.weight, cell.of_memory.bias)
    operator = getattr(torch.ops.rltrainer, cls.__name__.lower())
    torch.library.opcheck(operator, args)
    memories, saved = operator(*args)
    torch.library.opcheck(
        getattr(torch.ops.rltrainer, f"{cls.__name__.lower()}_backward"),
        (torch.ones_like(memories), args[2], args[3].detach(), saved.detach()),
        test_utils=("test_schema", "test_faketensor"),
    )


@every_cell
def test_bf16_is_for_the_products_of_the_input_only(cls: Any) -> None:
    cell, x, memory, begins = make_cell(cls, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = cell(x, memory, begins)
    assert rough.dtype == torch.float32
    assert 0 < (rough - cell(x, memory, begins)).abs().max() < 0.02
    rough.sum().backward()


# The policy

OBS = gym.spaces.Dict(mode=gym.spaces.Discrete(3), position=gym.spaces.Box(-1.0, 1.0, (2,), np.float32))
TWO = gym.spaces.Discrete(2)
BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
every_kind = pytest.mark.parametrize(
    "options", [{"cell": cell, "share_cell": share} for cell in ("gru", "lstm") for share in (False, True)]
)
N = 4


def make(action_space: Any = TWO, **options: Any) -> rl.RecurrentActorCritic:
    torch.manual_seed(0)
    return rl.RecurrentActorCritic(OBS, action_space, hidden_sizes=(8,), cell_size=6, **options)


def sequence() -> tuple[list[dict[str, Tensor]], dict[str, Tensor], Tensor]:
    """Return nine rows of observations of four envs, all of them flattened, and where episodes begin."""
    g = torch.Generator().manual_seed(1)
    begins = torch.zeros(9, N, dtype=torch.bool)
    begins[4, 1] = begins[4, 2] = begins[8, 2] = True
    obs = {"mode": torch.randint(0, 3, (9, N), generator=g), "position": torch.randn(9, N, 2, generator=g)}
    rows = [{key: leaf[t] for key, leaf in obs.items()} for t in range(9)]
    return rows, {key: leaf.flatten(0, 1) for key, leaf in obs.items()}, begins


@every_kind
@pytest.mark.parametrize("action_space", [TWO, BOX], ids=["choices", "box"])
@torch.no_grad()
def test_a_sequence_is_its_steps_one_by_one(options: dict[str, Any], action_space: Any) -> None:
    policy, (rows, flat, begins) = make(action_space, **options), sequence()
    state = torch.randn(N, policy.initial_state(1).shape[1], generator=torch.Generator().manual_seed(2))
    whole = policy.next_state(flat, state, begins)
    mode, value = policy.distribution(whole).mode().view(9, N, -1), policy.value(whole).view(9, N)
    for t, row in enumerate(rows):
        state = torch.where(begins[t].unsqueeze(1), policy.initial_state(N), state)
        action, state = policy.act(row, state)
        torch.testing.assert_close(action.view(N, -1), mode[t].to(action.dtype), rtol=0, atol=1e-6)
        torch.testing.assert_close(state, whole.view(9, N, -1)[t], rtol=0, atol=1e-6)
        torch.testing.assert_close(policy.value(state), value[t], rtol=0, atol=1e-6)


@every_kind
@torch.no_grad()
def test_memory_makes_a_difference_until_an_episode_begins(options: dict[str, Any]) -> None:
    policy, (_, flat, begins) = make(**options), sequence()
    zero = policy.initial_state(N)
    one, other = (policy.next_state(flat, memory, begins).view(9, N, -1) for memory in (zero, zero + 0.5))
    assert (one == other).all(-1).tolist() == [[False, t >= 4, t >= 4, False] for t in range(9)]


@pytest.mark.parametrize(("cell", "share", "size"), [("gru", 0, 12), ("lstm", 0, 24), ("gru", 1, 6), ("lstm", 1, 12)])
def test_the_memory_is_that_of_each_cell(cell: Any, share: int, size: int) -> None:
    policy, (rows, _, _) = make(cell=cell, share_cell=bool(share)), sequence()
    assert policy.initial_state(3).tolist() == [[0.0] * size] * 3
    assert policy.columns["state"] == ((size,), torch.float32)
    assert (policy.actor_memory is policy.critic_memory) == bool(share)
    policy.value(policy.next_state(rows[0], policy.initial_state(N))).sum().backward()  # type: ignore[no-untyped-call]  # torch's
    reached = [bool(parameter.grad.any()) for parameter in policy.actor_memory.cell.of_input.parameters()]  # type: ignore[union-attr]
    assert set(reached) == {bool(share)}


def test_it_starts_near_uniform_and_normalises_what_it_sees() -> None:
    policy, (rows, flat, begins) = make(normalize_obs=True), sequence()
    entropy = policy.distribution(policy.next_state(flat, policy.initial_state(N), begins)).entropy()
    assert entropy.min() > 0.999 * np.log(2)
    assert policy.obs_normalizer is not None
    policy.obs_normalizer.update({"mode": rows[0]["mode"], "position": rows[0]["position"] * 9 + 5})
    _, state = policy.act(rows[0], policy.initial_state(N))
    with torch.no_grad():
        assert torch.equal(state, policy.next_state(policy.normalize(rows[0]), policy.initial_state(N)))


def test_a_saved_policy_continues_with_the_same_memory(tmp_path: Path) -> None:
    policy, (rows, _, _) = make(cell="lstm", normalize_obs=True), sequence()
    policy.save(tmp_path / "policy.safetensors")
    again = rl.load_policy(tmp_path / "policy.safetensors")
    state = policy.initial_state(N) + 0.25
    for one, other in zip(policy.act(rows[0], state), again.act(rows[0], state), strict=True):
        assert torch.equal(one, other)
