"""Functions of tensors as compiled graphs of the CPU: called once, or for one index or row after another."""

import functools
import logging
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from rltrainer.execution.compiler import OPTIONS, TESTED, compilers_reason, with_code_of_its_own
from rltrainer.tree import Tree, map_tensors, map_tree

SPAN = torch.int16
"""Number format of the span [2] of steps, the first one and the end, by which a graph's input is known."""
LOOPS_TESTED = ("2.13.", "2.14.")
"""Versions of torch whose loops were tested; with a later one, there are only loops that are checked first."""
STEPS_PER_CALL = 256
"""Largest number of steps of a loop in one call: the process is deaf to Ctrl-C for so long."""
_OF_CPU = {**OPTIONS, "cpp_wrapper": True}
aten = torch.ops.aten


class CompiledFunction:
    """A pure function of tensors as a compiled graph of the CPU; one that cannot be compiled runs as it is."""

    # The compiler looks at all that the function has read at each call, which costs little beside a whole rollout.

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name, self._function = name, function
        compiled = with_code_of_its_own(function)
        self._compiled: Callable[..., Any] | None = torch.compile(compiled, dynamic=False, options=_OF_CPU)

    def __call__(self, *args: Any) -> Any:
        """Return the function's result."""
        if self._compiled is None:
            return self._function(*args)
        try:
            return self._compiled(self._name, *args)
        except Exception as error:
            if (reason := compilers_reason(error)) is None:
                raise
            self._compiled = None
            logging.getLogger("rltrainer").info("%s runs uncompiled: %s", self._name, reason)
            return self._function(*args)


class CompiledLoop:
    """Calls `function(index, *args)` for the indexes [1] of int64 below a number, in compiled code of the CPU.

    The function changes tensors in place, and no other objects; it returns a dict of scalar tensors, or an empty one.
    """

    def __init__(self, name: str, function: Callable[..., dict[str, Tensor]], is_checked: bool = False) -> None:
        def run(span: Tensor, *args: Any) -> dict[str, Tensor]:
            if torch.compiler.is_compiling():
                return function(span[:1].long(), *args)
            return self.uncompiled(span, *args)  # where the user has switched the compiler off

        self._name, self._function = name, function
        self._compiled: Callable[..., Any] | None = None
        if is_checked or loops_are_tested():
            step = with_code_of_its_own(run)
            self._compiled = torch.compile(step, fullgraph=True, dynamic=False, backend=compile_loop, options=_OF_CPU)

    def __call__(self, state: str, num_steps: int, *args: Any) -> dict[str, Tensor] | None:
        """Return the sums of what the function returns; None if it cannot be compiled, and nothing was done.

        For another `state` than before it is compiled again.
        """
        sums: dict[str, Tensor] = {}
        if num_steps > torch.iinfo(SPAN).max:
            return None
        for first in range(0, num_steps, STEPS_PER_CALL):
            if self._compiled is None:
                return None
            span = torch.tensor([first, min(first + STEPS_PER_CALL, num_steps)], dtype=SPAN)
            try:
                found = self._compiled(state, span, *args)
            except Exception as error:
                if first or (reason := compilers_reason(error)) is None:
                    raise
                self._compiled = None
                text = "%s runs step by step instead of as one compiled loop: %s"
                logging.getLogger("rltrainer").info(text, self._name, reason)
                return None
            sums = _add(sums, found) if first else found
        return sums

    def uncompiled(self, span: Tensor, *args: Any) -> dict[str, Tensor]:
        """Return the sums of what the function returns for the indexes from the first number of a span to the other."""
        found = [self._function(torch.tensor([index]), *args) for index in range(*span.tolist())]
        return functools.reduce(_add, found)


class CompiledRows:
    """Calls a pure function for one row of inputs [T, ...] after another, in compiled code of the CPU.

    `function(carried, inputs, *fixed)` returns what it carries on to the next row, a tree of tensors as `carried`, and
    its outputs, a tree [1, ...].
    """

    def __init__(self, name: str, function: Callable[..., tuple[Tree, Tree]]) -> None:
        self._function, self._loop = function, CompiledLoop(name, self._run_row)
        self._outputs_like: dict[str, Tree] = {}

    def __call__(
        self, state: str, num_rows: int, carried: Tree, inputs: Any, fixed: Sequence[Any]
    ) -> tuple[Tree, Tree] | None:  # fmt: skip
        """Return what the last row carries on and the outputs [T, ...]; None if the loop cannot be compiled.

        For another `state` than before it is compiled again, and its outputs may have other shapes.
        """
        if state not in self._outputs_like:
            _, first = self._function(carried, map_tensors(lambda x: x[:1], inputs), *fixed)
            self._outputs_like[state] = map_tree(lambda x: torch.empty_like(x[0]), first)
        # Each number of rows is a shape to compile: the next power of two.
        room = 1 << (num_rows - 1).bit_length()
        inputs = map_tensors(lambda x: torch.cat([x, x.new_zeros(room - num_rows, *x.shape[1:])]), inputs)
        outputs = map_tree(lambda x: x.new_empty((room, *x.shape)), self._outputs_like[state])
        carried = map_tree(Tensor.clone, carried)
        found = self._loop(state, num_rows, carried, inputs, outputs, fixed)
        return None if found is None else (carried, map_tree(lambda x: x[:num_rows], outputs))

    def _run_row(self, index: Tensor, carried: Tree, inputs: Any, outputs: Tree, fixed: Any) -> dict[str, Tensor]:
        """Run the row at `index` [1], and change in place: this row of the outputs, and what is carried."""
        own = map_tensors(lambda x: x.index_select(0, index), inputs)
        after, row = self._function(carried, own, *fixed)
        map_tree(lambda column, x: column.index_copy_(0, index, x), outputs, row)
        map_tree(Tensor.copy_, carried, after)
        return {}


def loops_are_tested() -> bool:
    """Return whether loops were tested with this version of torch."""
    return torch.__version__.startswith(LOOPS_TESTED)


def loops_are_wrong() -> bool:
    """Return whether this version of torch was tested, but not its loops.

    Loops of torch 2.11 compute other numbers, and crash if two threads compile at once.
    """
    return torch.__version__.startswith(TESTED) and not loops_are_tested()


def _add(one: dict[str, Tensor], other: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x + other[name] for name, x in one.items()}


def compile_loop(graph: fx.GraphModule, inputs: Sequence[Any], *, options: dict[str, Any]) -> Callable[..., Any]:
    """Compile a graph of one step of a loop; a backend of `torch.compile`.

    The graph has one input with the number format `SPAN`, whose first number is the step. The compiled code runs it
    for each step of the span; it returns the sums over the steps of what the graph returns.

    Raises:
        RuntimeError: the step changes an object of Python's, which a compiled loop would do once for all steps.
    """
    from torch._dynamo.symbolic_convert import InstructionTranslator
    from torch._inductor import compile_fx  # seconds of imports, both

    effects = InstructionTranslator.current_tx().output.side_effects
    for changed in effects.id_to_variable.values():
        # An optimizer's norm and a rank's share are read at once, and are None between the steps.
        is_ours = "state_for_graphs" in vars(changed.python_type())
        if effects.is_modified(changed) and changed.source is not None and not is_ours:
            raise RuntimeError(f"{changed.source.name} is changed")

    def compile_whole(step: fx.GraphModule, inputs: Sequence[Any], **settings: Any) -> Any:
        return compile_fx.compile_fx_inner(_loop_over(step), inputs, **settings)

    compiled: Any = compile_fx.compile_fx(graph, inputs, inner_compile=compile_whole, config_patches=options)
    return compiled  # type: ignore[no-any-return]  # callable


def _loop_over(step: fx.GraphModule) -> fx.GraphModule:
    """Return a graph with the inputs of a step's, in ATen's operations, that runs it for each step of its span."""
    # while_loop(is_inside, step, (span, *changed, *totals), fixed); the inputs that a step changes are changed in place
    inputs = step.graph.find_nodes(op="placeholder")
    (span,) = (x for x in inputs if x.meta["val"].dtype is SPAN)
    changed = [x for x in inputs if any(user.target is aten.copy_.default and user.args[0] is x for user in x.users)]
    fixed = [x for x in inputs if x is not span and x not in changed]
    results = list(step.graph.output_node().args[0])  # type: ignore[arg-type]  # a tuple of nodes

    body, known = fx.Graph(), dict[fx.Node, fx.Node]()
    totals = _add_inputs(body, known, [span, *changed], results, fixed)
    for node in step.graph.nodes:
        if node.op not in ("placeholder", "output"):
            known[node] = body.node_copy(node, known.__getitem__)
    first, end = (_call(body, aten.slice.Tensor, known[span], 0, at, at + 1) for at in range(2))
    following = _call(body, aten.cat.default, [_call(body, aten.add.Tensor, first, 1), end])
    sums = [_call(body, aten.add.Tensor, total, known[x]) for total, x in zip(totals, results, strict=True)]
    body.output((following, *(known[x] for x in changed), *sums))

    condition, known = fx.Graph(), {}
    _add_inputs(condition, known, [span, *changed], results, fixed)
    first, end = (_call(condition, aten.select.int, known[span], 0, at) for at in range(2))
    condition.output((_call(condition, aten.lt.Tensor, first, end),))

    whole, known = fx.Graph(), {}
    _add_inputs(whole, known, inputs)
    start = _call(whole, aten.add.Tensor, known[span], 0)  # a copy: the caller's is an input
    zeros = [_zeros(whole, x.meta["val"]) for x in results]
    graphs = nn.ModuleDict({"is_inside": fx.GraphModule(step, condition), "step": fx.GraphModule(step, body)})
    carried = start, *(known[x] for x in changed), *zeros
    loop = whole.call_function(
        torch.ops.higher_order.while_loop,
        (whole.get_attr("is_inside"), whole.get_attr("step"), carried, tuple(known[x] for x in fixed)),
    )
    loop.meta["val"] = tuple(x.meta["val"] for x in carried)
    whole.output(tuple(_call(whole, operator.getitem, loop, k) for k in range(len(carried) - len(zeros), len(carried))))
    return fx.GraphModule(graphs, whole)


def _add_inputs(graph: fx.Graph, known: dict[fx.Node, fx.Node], *nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Add an input for each node; note the inputs of inputs, and return the inputs of other nodes."""
    others = []
    for node in (node for some in nodes for node in some):
        name = node.name if node.op == "placeholder" else f"total_{node.name}"
        added = graph.placeholder(name)
        added.meta["val"] = node.meta["val"]
        if node.op == "placeholder":
            known[node] = added
        else:
            others.append(added)
    return others


def _zeros(graph: fx.Graph, like: Any) -> fx.Node:
    settings = {"dtype": like.dtype, "device": like.device}
    node = graph.call_function(aten.full.default, (list(like.shape), 0.0), settings)
    node.meta["val"] = like
    return node


def _call(graph: fx.Graph, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
    """Add a call of a function, with its result on fake tensors, which the compiler asks for."""
    node = graph.call_function(target, args, kwargs)
    node.meta["val"] = target(*fx.map_arg(args, lambda x: x.meta["val"]), **kwargs)
    return node
