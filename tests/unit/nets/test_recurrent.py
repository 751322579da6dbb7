"""Recurrent cells against torch's, and against themselves row by row."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rltrainer.nets.recurrent_actor_critic import GRU, LSTM

L, B, F, H = 7, 3, 4, 5
CELLS = [GRU, LSTM]


def make(cls: Any, dtype: torch.dtype = torch.float64) -> Any:
    torch.manual_seed(0)
    return cls(F, H).to(dtype)


def data(cell: Any) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    dtype = cell.of_input.weight.dtype
    begins = torch.zeros(L, B, dtype=torch.bool)
    begins[3, 1] = begins[5, 0] = begins[5, 1] = begins[0, 2] = True
    x = torch.randn(L, B, F, generator=g, dtype=dtype)
    return x, torch.randn(B, cell.memory_size, generator=g, dtype=dtype), begins


def torchs(cell: Any) -> Any:
    """Return torch's cell with the same weights; its gates are i, f, g, o where ours are i, f, o, g."""
    theirs: Any = (nn.GRUCell if isinstance(cell, GRU) else nn.LSTMCell)(F, H, dtype=torch.float64)
    order = [0, 1, 2] if isinstance(cell, GRU) else [0, 1, 3, 2]
    for ours, name in ((cell.of_input, "ih"), (cell.of_memory, "hh")):
        for kind in ("weight", "bias"):
            gates = getattr(ours, kind).detach().chunk(len(order))
            getattr(theirs, f"{kind}_{name}").data.copy_(torch.cat([gates[i] for i in order]))
    return theirs


@pytest.mark.parametrize("cls", CELLS)
def test_cells_are_torchs(cls: Any) -> None:
    cell = make(cls)
    x, memory, begins = data(cell)
    memories = cell(x, memory, begins)
    theirs, expected = torchs(cell), memory
    for t in range(L):
        expected = torch.where(begins[t].unsqueeze(1), 0.0, expected)
        state = expected if cls is GRU else expected.chunk(2, -1)
        state = theirs(x[t], state)
        expected = state if cls is GRU else torch.cat(state, -1)
        torch.testing.assert_close(memories[t], expected)
        torch.testing.assert_close(cell.output(memories[t]), expected[:, :H])


@pytest.mark.parametrize("cls", CELLS)
def test_gradients_are_those_of_differences(cls: Any) -> None:
    cell = make(cls)
    x, memory, begins = data(cell)
    names = [name for name, _ in cell.named_parameters()]

    def run(x: Tensor, memory: Tensor, *parameters: Tensor) -> Tensor:
        named = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(cell, named, (x, memory, begins))  # type: ignore[no-any-return]

    inputs = [x, memory, *(p.detach() for p in cell.parameters())]
    assert torch.autograd.gradcheck(run, [tensor.requires_grad_() for tensor in inputs])


@pytest.mark.parametrize("cls", CELLS)
def test_a_sequence_is_its_rows_one_by_one(cls: Any) -> None:
    cell = make(cls, torch.float32)
    x, memory, begins = data(cell)
    whole = cell(x, memory, begins)
    for t in range(L):
        [memory] = cell(x[t : t + 1], memory, begins[t : t + 1])
        torch.testing.assert_close(memory, whole[t], rtol=0, atol=1e-6)


@pytest.mark.parametrize("cls", CELLS)
def test_what_begins_does_not_depend_on_what_was(cls: Any) -> None:
    cell = make(cls)
    x, memory, begins = data(cell)
    memory.requires_grad_()
    x.requires_grad_()
    of_x, of_memory = torch.autograd.grad(cell(x, memory, begins)[5:, 1].sum(), [x, memory])
    assert of_x[:5].abs().sum() == 0
    assert of_memory.abs().sum() == 0
    assert of_x[5, 1].abs().sum() > 0
    nothing = cell(x, torch.zeros_like(memory), begins)
    assert torch.equal(cell(x, memory, begins)[:, 2], nothing[:, 2]), "it begins in the first row"


@pytest.mark.parametrize("cls", CELLS)
def test_operators_do_what_compilers_are_told(cls: Any) -> None:
    cell = make(cls, torch.float32)
    _, memory, begins = data(cell)
    products = torch.randn(L, B, cell.num_gates * H, requires_grad=True)
    args = (products, memory, (~begins).float().unsqueeze(-1), cell.of_memory.weight, cell.of_memory.bias)
    operator = getattr(torch.ops.rltrainer, cls.__name__.lower())
    torch.library.opcheck(operator, args)
    backward = getattr(torch.ops.rltrainer, f"{cls.__name__.lower()}_backward")
    memories, saved = operator(*args)
    torch.library.opcheck(
        backward, (torch.ones_like(memories), args[2], args[3].detach(), saved.detach()),
        test_utils=("test_schema", "test_faketensor"),
    )  # fmt: skip


@pytest.mark.parametrize("cls", CELLS)
def test_bf16_is_for_the_products_of_the_input_only(cls: Any) -> None:
    cell = make(cls, torch.float32)
    x, memory, begins = data(cell)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = cell(x, memory, begins)
    assert rough.dtype == torch.float32
    assert 0 < (rough - cell(x, memory, begins)).abs().max() < 0.02
    rough.sum().backward()
