"""Numbers that a graph computes once."""

import torch
from torch._inductor.utils import run_and_get_code

from rltrainer.functional.scalars import computed_once
from rltrainer.updates.adam import Adam


def test_a_graph_takes_no_power_in_a_loop_over_a_vector() -> None:
    rules = [Adam([torch.ones(40), torch.ones(24)]) for _ in range(2)]
    gradient, applies = torch.arange(64.0), torch.tensor(True)
    compiled = torch.compile(rules[0].step_flat)
    _, (code,) = run_and_get_code(compiled, rules[0].parameters, gradient, applies)
    # One for each of the two decay rates; without `computed_once` each loop over a parameter has its own.
    assert code.count("pow(") == 2
    rules[1].step_flat(rules[1].parameters, gradient, applies)
    torch.testing.assert_close(rules[0].parameters, rules[1].parameters)


def test_a_number_may_be_cut_out_of_a_vector() -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        y = x * 2 + 1
        return y * computed_once(y[3])

    x = torch.arange(40.0)
    assert torch.equal(torch.compile(scaled)(x), scaled(x))


def test_outside_a_graph_it_is_the_number_itself() -> None:
    number = torch.tensor(3.0)
    assert computed_once(number) is number
