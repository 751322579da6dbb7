"""Recurrent cells over sequences [L, B] in which episodes begin: one operator each, which a graph holds as one node.

A loop over L rows that a compiler unrolls takes minutes to compile, and autograd's record of it is most of its cost. So
the loops are written out, forwards and backwards; the products that do not wait for the row before are taken at once.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.compiler import is_exporting

from rltrainer.nets.linear import Linear


class RecurrentCell(nn.Module, ABC):
    """Maps a sequence of features, and what was remembered before it, to what is remembered after each row.

    Args:
        in_features: F.
        size: H, numbers of the output.
    """

    num_gates: ClassVar[int]
    num_parts: ClassVar[int]
    """Of the memory; the first is the output."""

    def __init__(self, in_features: int, size: int) -> None:
        super().__init__()
        self.size, self.memory_size = size, self.num_parts * size
        self.of_input = Linear(in_features, self.num_gates * size)
        self.of_memory = Linear(size, self.num_gates * size)

    def forward(self, x: Tensor, memory: Tensor, begins: Tensor) -> Tensor:
        """Return the memory after each row [L, B, S]; the output is its first part, see `output`.

        Args:
            x: features [L, B, F].
            memory: what was remembered before the first row [B, S].
            begins: [L, B] bool, where an episode begins: what was remembered before it is nothing.
        """
        products = self.of_input(x.flatten(0, 1)).to(memory.dtype).view(*x.shape[:2], -1)
        keep = (~begins).to(memory.dtype).unsqueeze(-1)
        memories, _ = self._operator(products, memory, keep, self.of_memory.weight, self.of_memory.bias)
        return memories

    def output(self, memory: Tensor) -> Tensor:
        """Return the output [..., H] that belongs to a memory [..., S]."""
        return memory[..., : self.size]

    @abstractmethod
    def _operator(self, *args: Tensor) -> tuple[Tensor, Tensor]:
        """Run the operator of the cell; see below what it takes and returns.

        A graph that is exported gets what the operator does: it runs where nobody knows operators of ours.
        """


class GRU(RecurrentCell):
    """A gated recurrent unit (Cho et al. 2014), as `torch.nn.GRU`; remembers its output."""

    num_gates, num_parts = 3, 1

    def _operator(self, *args: Tensor) -> tuple[Tensor, Tensor]:
        return _gru(*args) if is_exporting() else torch.ops.rltrainer.gru(*args)


class LSTM(RecurrentCell):
    """A long short-term memory (Hochreiter & Schmidhuber 1997), as `torch.nn.LSTM` with gates i, f, o, g.

    Remembers its output and its cell, side by side.
    """

    num_gates, num_parts = 4, 2

    def _operator(self, *args: Tensor) -> tuple[Tensor, Tensor]:
        return _lstm(*args) if is_exporting() else torch.ops.rltrainer.lstm(*args)


# Each operator takes products of the input [L, B, G * H], memory [B, S], keep [L, B, 1], weight [G * H, H] and bias of
# the memory. It returns the memories [L, B, S] and, for the way back, [L, B, K, H]: what was kept, gates, and the rest.


def _gru(x: Tensor, memory: Tensor, keep: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    size = weight.shape[1]
    transposed, memories, saved = weight.t(), [], []
    of_gates, of_new = torch.split(x, [2 * size, size], -1)
    for gates, new, keep_row in zip(of_gates.unbind(), of_new.unbind(), keep.unbind(), strict=True):
        before = memory * keep_row
        product = torch.addmm(bias, before, transposed)
        gates = (gates + product[:, : 2 * size]).sigmoid_()
        reset, update = gates.chunk(2, -1)
        candidate = product[:, 2 * size :]
        new = torch.addcmul(new, reset, candidate).tanh_()
        memory = torch.lerp(new, before, update)
        memories.append(memory)
        saved.append(torch.cat([before, gates, new, candidate], -1))
    return torch.stack(memories), torch.stack(saved).view(*x.shape[:2], 5, size)


def _gru_backward(gradient: Tensor, keep: Tensor, weight: Tensor, saved: Tensor) -> tuple[Tensor, ...]:
    before, reset, update, new, candidate = saved.unbind(2)
    of_new = (1 - update) * (1 - new.square())  # what arrives at the argument of tanh
    of_reset = of_new * candidate * reset * (1 - reset)
    of_update = (before - new) * update * (1 - update)
    factors = torch.stack([of_reset, of_update, of_new * reset], 2)
    arriving, totals = torch.zeros_like(gradient[0]), []
    rows = zip(gradient.unbind(), factors.unbind(), update.unbind(), keep.unbind(), strict=True)
    for row, factor, update_row, keep_row in reversed(list(rows)):
        total = row + arriving
        of_product = (total.unsqueeze(1) * factor).flatten(1)
        arriving = torch.addmm(total * update_row, of_product, weight).mul_(keep_row)
        totals.append(total)
    total = torch.stack(totals[::-1])
    of_product = total.unsqueeze(2) * factors
    of_x = torch.cat([of_product[:, :, :2], (total * of_new).unsqueeze(2)], 2)
    return _gradients(of_x, of_product, before, arriving)


def _lstm(x: Tensor, memory: Tensor, keep: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    size = weight.shape[1]
    transposed, memories, saved = weight.t(), [], []
    for products, keep_row in zip((x + bias).unbind(), keep.unbind(), strict=True):
        before = memory * keep_row
        hidden, cell = before.chunk(2, -1)
        products = torch.addmm(products, hidden, transposed)
        gates, new = products[:, : 3 * size].sigmoid(), products[:, 3 * size :].tanh()
        enter, stay, leave = gates.chunk(3, -1)
        cell = torch.addcmul(stay * cell, enter, new)
        bounded = cell.tanh()
        memory = torch.cat([leave * bounded, cell], -1)
        memories.append(memory)
        saved.append(torch.cat([before, gates, new, bounded], -1))
    return torch.stack(memories), torch.stack(saved).view(*x.shape[:2], 7, size)


def _lstm_backward(gradient: Tensor, keep: Tensor, weight: Tensor, saved: Tensor) -> tuple[Tensor, ...]:
    hidden, cell, enter, stay, leave, new, bounded = saved.unbind(2)
    through_cell = leave * (1 - bounded.square())
    factors = torch.stack(
        [
            new * enter * (1 - enter),
            cell * stay * (1 - stay),
            bounded * leave * (1 - leave),
            enter * (1 - new.square()),
        ],
        2,
    )
    arriving, products = torch.zeros_like(gradient[0]), []
    rows = zip(gradient.unbind(), factors.unbind(), through_cell.unbind(), stay.unbind(), keep.unbind(), strict=True)
    for row, factor, through, stay_row, keep_row in reversed(list(rows)):
        of_hidden, of_cell = (row + arriving).chunk(2, -1)
        of_cell = torch.addcmul(of_cell, of_hidden, through)
        of_product = torch.stack([of_cell, of_cell, of_hidden, of_cell], 1).mul_(factor)
        arriving = torch.cat([of_product.flatten(1) @ weight, of_cell * stay_row], -1).mul_(keep_row)
        products.append(of_product)
    of_product = torch.stack(products[::-1])
    return _gradients(of_product, of_product, hidden, arriving)


def _gradients(of_x: Tensor, of_product: Tensor, hidden: Tensor, of_memory: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients by x, memory, weight and bias; those by products are [L, B, G, H]."""
    rows = of_product.flatten(2).flatten(0, 1)
    return of_x.flatten(2).clone(), of_memory, rows.t() @ hidden.flatten(0, 1), rows.sum(0)


def _without_autocast(kernel: Any) -> Any:
    """Let a loop compute in the format of its memory: each row's rounding would be the next one's error."""

    def run(x: Tensor, *args: Tensor) -> Any:
        with torch.autocast(x.device.type, enabled=False):
            return kernel(x, *args)

    return run


def _register(name: str, forward: Any, backward: Any, num_saved: int) -> None:
    inputs = "Tensor x, Tensor memory, Tensor keep, Tensor weight, Tensor bias"
    _LIBRARY.define(f"{name}({inputs}) -> (Tensor, Tensor)")  # type: ignore[no-untyped-call]  # torch's, as below
    signature = "Tensor gradient, Tensor keep, Tensor weight, Tensor saved"
    _LIBRARY.define(f"{name}_backward({signature}) -> (Tensor, Tensor, Tensor, Tensor)")  # type: ignore[no-untyped-call]
    for operator, kernel in ((name, forward), (f"{name}_backward", backward)):
        _LIBRARY.impl(operator, _without_autocast(kernel), "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]

    def shapes(x: Tensor, memory: Tensor, keep: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        lead = x.shape[:2]
        return memory.new_empty(*lead, memory.shape[1]), memory.new_empty(*lead, num_saved, weight.shape[1])

    def backward_shapes(gradient: Tensor, keep: Tensor, weight: Tensor, saved: Tensor) -> Sequence[Tensor]:
        rows, gates = weight.shape[0], gradient.shape[:2]
        of_x, of_memory = gradient.new_empty(*gates, rows), gradient.new_empty(gradient.shape[1:])
        return of_x, of_memory, torch.empty_like(weight), gradient.new_empty(rows)

    def keep_for_backward(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        _, _, keep, weight, _ = inputs
        ctx.save_for_backward(keep, weight, output[1])

    def gradients(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        operator = getattr(torch.ops.rltrainer, f"{name}_backward")
        of_x, of_memory, of_weight, of_bias = operator(gradient.contiguous(), *ctx.saved_tensors)
        return of_x, of_memory, None, of_weight, of_bias

    torch.library.register_fake(f"rltrainer::{name}", shapes, lib=_LIBRARY)
    torch.library.register_fake(f"rltrainer::{name}_backward", backward_shapes, lib=_LIBRARY)
    torch.library.register_autograd(f"rltrainer::{name}", gradients, setup_context=keep_for_backward, lib=_LIBRARY)


_LIBRARY = torch.library.Library("rltrainer", "FRAGMENT")  # type: ignore[no-untyped-call]
_register("gru", _gru, _gru_backward, num_saved=5)
_register("lstm", _lstm, _lstm_backward, num_saved=7)
