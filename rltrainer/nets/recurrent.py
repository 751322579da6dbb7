"""Memory of the episode: recurrent cells, the encoder that holds one, and the parent of policies with memory."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.compiler import is_exporting

from rltrainer.nets.encoder import Encoder
from rltrainer.nets.linear import Linear
from rltrainer.nets.mlp import SQRT_2, orthogonal_
from rltrainer.nets.net_params import NetParams
from rltrainer.nets.policy import Policy
from rltrainer.tree import Tree, leaves
from rltrainer.validation.field_rules import PositiveInt, checked

CellName = Literal["gru", "lstm"]


class RecurrentCell(nn.Module):
    """Maps a sequence of features [L, B, F] and the memory before it to the memory after each row; the output has H."""

    name: ClassVar[CellName]
    num_gates: ClassVar[int]
    num_parts: ClassVar[int]  # of the memory, of H numbers each; the first is the output

    def __init__(self, in_features: int, size: int) -> None:
        super().__init__()
        self.size, self.memory_size = size, self.num_parts * size
        self.of_input = Linear(in_features, self.num_gates * size)
        self.of_memory = Linear(size, self.num_gates * size)

    def forward(self, x: Tensor, memory: Tensor, begins: Tensor) -> Tensor:
        """Return the memory after each row [L, B, S], given features and the memory before the first row [B, S].

        `begins` [L, B] bool marks the rows where an episode starts: the memory before them is zero.
        """
        products = self.of_input(x.flatten(0, 1)).to(memory.dtype).view(*x.shape[:2], -1)
        keep = (~begins).to(memory.dtype).unsqueeze(-1)
        # An exported graph gets the steps of the operator, which other programs lack.
        operator = _STEPS[self.name] if is_exporting() else getattr(torch.ops.rltrainer, self.name)
        memories: Tensor = operator(products, memory, keep, self.of_memory.weight, self.of_memory.bias)[0]
        return memories

    def output(self, memory: Tensor) -> Tensor:
        """Return the output [..., H] for a memory [..., S]."""
        return memory[..., : self.size]


class GRU(RecurrentCell):
    """A gated recurrent unit (Cho et al. 2014), as `torch.nn.GRU`; its output is its memory."""

    name = "gru"
    num_gates = 3
    num_parts = 1


class LSTM(RecurrentCell):
    """A long short-term memory (Hochreiter & Schmidhuber 1997), as `torch.nn.LSTM` with gates i, f, o, g.

    Its memory is its output beside its cell.
    """

    name = "lstm"
    num_gates = 4
    num_parts = 2


# An operator takes products of the input [L, B, G * H], memory [B, S], keep [L, B, 1], weight [G * H, H] and bias of
# the memory. It returns the memories [L, B, S] and, for the backward pass, [L, B, K, H]: kept memory, gates, the rest.


def _gru(x: Tensor, memory: Tensor, keep: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    size = weight.shape[1]
    transposed = weight.t()
    memories, saved = [], []
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
    of_new = (1 - update) * (1 - new.square())  # the gradient at the argument of tanh
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
    transposed = weight.t()
    memories, saved = [], []
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
    of_gates = [new * enter * (1 - enter), cell * stay * (1 - stay), bounded * leave * (1 - leave)]
    factors = torch.stack([*of_gates, enter * (1 - new.square())], 2)
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
    """Return the gradients by x, memory, weight and bias, from the gradients by products [L, B, G, H]."""
    rows = of_product.flatten(2).flatten(0, 1)
    return of_x.flatten(2).clone(), of_memory, rows.t() @ hidden.flatten(0, 1), rows.sum(0)


def _register(name: str, forward: Any, backward: Any, num_saved: int) -> None:
    inputs = "Tensor x, Tensor memory, Tensor keep, Tensor weight, Tensor bias"
    _LIBRARY.define(f"{name}({inputs}) -> (Tensor, Tensor)")  # type: ignore[no-untyped-call]  # torch's, as below
    signature = "Tensor gradient, Tensor keep, Tensor weight, Tensor saved"
    _LIBRARY.define(f"{name}_backward({signature}) -> (Tensor, Tensor, Tensor, Tensor)")  # type: ignore[no-untyped-call]

    def run(kernel: Any, x: Tensor, *args: Tensor) -> Any:
        # In the format of the memory: in a lower one, the rounding errors of the rows would add up.
        with torch.autocast(x.device.type, enabled=False):
            return kernel(x, *args)

    for operator, kernel in ((name, forward), (f"{name}_backward", backward)):
        _LIBRARY.impl(operator, partial(run, kernel), "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]

    def shapes(x: Tensor, memory: Tensor, keep: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        lead = x.shape[:2]
        return memory.new_empty(*lead, memory.shape[1]), memory.new_empty(*lead, num_saved, weight.shape[1])

    def backward_shapes(gradient: Tensor, keep: Tensor, weight: Tensor, saved: Tensor) -> Sequence[Tensor]:
        of_x, of_bias = gradient.new_empty(*gradient.shape[:2], len(weight)), gradient.new_empty(len(weight))
        return of_x, gradient.new_empty(gradient.shape[1:]), torch.empty_like(weight), of_bias

    def keep_for_backward(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs[2:4], output[1])  # keep, weight, and what was saved

    def gradients(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        operator = getattr(torch.ops.rltrainer, f"{name}_backward")
        of_x, of_memory, of_weight, of_bias = operator(gradient.contiguous(), *ctx.saved_tensors)
        return of_x, of_memory, None, of_weight, of_bias

    torch.library.register_fake(f"rltrainer::{name}", shapes, lib=_LIBRARY)
    torch.library.register_fake(f"rltrainer::{name}_backward", backward_shapes, lib=_LIBRARY)
    torch.library.register_autograd(f"rltrainer::{name}", gradients, setup_context=keep_for_backward, lib=_LIBRARY)


_STEPS = {"gru": _gru, "lstm": _lstm}
_LIBRARY = torch.library.Library("rltrainer", "FRAGMENT")  # type: ignore[no-untyped-call]
_register("gru", _gru, _gru_backward, num_saved=5)
_register("lstm", _lstm, _lstm_backward, num_saved=7)


class RecurrentEncoder(nn.Module):
    """An encoder, and the cell of this class and output size behind it."""

    def __init__(self, encoder: Encoder, make_cell: type[RecurrentCell], size: int) -> None:
        super().__init__()
        self.encoder = encoder.orthogonal_(SQRT_2)
        self.cell = orthogonal_(make_cell(encoder.out_features, size), 1.0)

    def forward(self, obs: Tree, memory: Tensor, begins: Tensor) -> Tensor:
        """Return the memory after each row [L * N, S]; see `RecurrentPolicy.next_state`."""
        features: Tensor = self.encoder(obs)
        memories: Tensor = self.cell(features.view(*begins.shape, -1), memory, begins)
        return memories.flatten(0, 1)


class RecurrentPolicy(Policy):
    """A policy whose memory [N, S] is the memory of one recurrent encoder or of several, one beside the other."""

    # The output of a cell is bounded; tanh on top of it saturates where returns are large.
    default_net = NetParams(hidden_sizes=(64, 64), activation=nn.ReLU)

    @abstractmethod
    def memories(self) -> list[RecurrentEncoder]:
        """Return the encoders with memory in the order of their memories, each once."""

    def make_memory(self, net: NetParams, cell: CellName, cell_size: int) -> RecurrentEncoder:
        """Return an encoder with the parts of `net`, and a cell behind it."""
        name = type(self).__name__
        make_cell: type[RecurrentCell] = GRU if checked(name, "cell", cell, CellName) == "gru" else LSTM
        encoder = Encoder(self.observation_space, net)
        return RecurrentEncoder(encoder, make_cell, checked(name, "cell_size", cell_size, PositiveInt))

    def initial_state(self, num_envs: int) -> Tensor:
        """Return zeros [num_envs, S]."""
        size = sum(part.cell.memory_size for part in self.memories())
        return torch.zeros(num_envs, size, device=self.device)

    def next_state(self, obs: Tree, state: Tensor | None, begins: Tensor | None = None) -> Tensor:
        """Return the memory after each observation [L * N, S], given the memory before the first row [N, S].

        The normalised observations, a tree [L * N, ...], are L of each of N envs, time first. `begins` [L, N] bool
        marks the starts of episodes; None is one row without a start. A `state` of None starts an episode.
        """
        state = self.initial_state(len(leaves(obs)[0])) if state is None else state
        if begins is None:
            begins = torch.zeros(1, len(state), dtype=torch.bool, device=state.device)
        memories, state = self.memories(), state.to(self.weight_dtype)
        before = torch.split(state, [part.cell.memory_size for part in memories], -1)
        return torch.cat([part(obs, memory, begins) for part, memory in zip(memories, before, strict=True)], -1)
