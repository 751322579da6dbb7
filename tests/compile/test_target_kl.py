"""An update step that ends early takes the same steps when it is compiled."""

import pytest
import torch

from tests.compile.test_compiled_updates import COMPILED, _fresh_compiler, make, update

pytestmark = pytest.mark.full  # every test compiles

__all__ = ["_fresh_compiler"]


def test_compiled_updates_end_where_uncompiled_ones_do() -> None:
    eager, compiled = (make("ppo", target_kl=3e-6) for _ in range(2))
    compiled.attach(COMPILED)
    taken = []
    for seed in range(6):
        one, other = update(eager, seed), update(compiled, seed)
        assert one.num_gradient_steps == other.num_gradient_steps
        assert one.floats() == pytest.approx(other.floats(), rel=1e-3, abs=1e-5)
        taken.append(one.num_gradient_steps)
    assert compiled.is_compiled
    assert len(set(taken)) > 1, "some end early"
    for p, q in zip(eager.policy.parameters(), compiled.policy.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-5)
