"""All gradient steps that are due are one sample and one update, with the bits of as many single ones."""

from typing import Any

import pytest
import torch

import rltrainer as rl
from tests.fakes import ScriptedOffPolicy
from tests.resume.runs import build, digest


def calls_of(name: str, ratio: float, at_once: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], Any]:
    """Run with so many batches at once; return the numbers of batches that were sampled, and the trainer."""
    sizes: list[Any] = []
    sample = rl.ReplayBuffer.sample

    def counted(self: Any, batch_size: int, *, num_batches: int | None = None, **options: Any) -> rl.Transitions:
        sizes.append(num_batches)
        return sample(self, batch_size, num_batches=num_batches, **options)

    with monkeypatch.context() as patch:
        patch.setattr(rl.ReplayBuffer, "sample", counted)
        patch.setattr(rl.ReplayBuffer, "max_num_batches", lambda self, batch_size: at_once)
        trainer = build(name, max_epochs=2)
        object.__setattr__(trainer.params, "update_step_num_gradient_steps_per_sample", ratio)
        trainer.run()
    return sizes, trainer


@pytest.mark.parametrize("name", ["dqn", "double_dqn", "td3", "sac", "iql"])
def test_bits_are_those_of_single_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # 10 samples and 0.7 gradient steps for each, three times after 10 of warm-up.
    single, one = calls_of(name, 0.7, 1, monkeypatch)
    several, other = calls_of(name, 0.7, 32, monkeypatch)
    few, third = calls_of(name, 0.7, 3, monkeypatch)
    assert single == [None] * 21
    assert several == [7, 7, 7]
    assert few == [3, 3, None] * 3
    assert one.gradient_step == other.gradient_step == third.gradient_step == 21
    for key, value in one.algorithm.policy.state_dict().items():
        assert torch.equal(value, other.algorithm.policy.state_dict()[key]), key
        assert torch.equal(value, third.algorithm.policy.state_dict()[key]), key
    assert torch.equal(one.algorithm.generator.get_state(), other.algorithm.generator.get_state())
    if name != "iql":  # none of these has a loss that only some steps report: means of means round otherwise
        assert digest(one) == digest(other)


class Chosen(ScriptedOffPolicy):
    """Learns from the first transition alone."""

    def sample(self, buffer: rl.ReplayBuffer, batch_size: int, num_batches: int | None = None) -> rl.Transitions:
        index = torch.zeros(batch_size if num_batches is None else (num_batches, batch_size), dtype=torch.int64)
        batch = super().sample(buffer, batch_size, num_batches)
        batch.index.copy_(index)
        return batch


@pytest.mark.parametrize(("name", "ratio", "num_steps"), [("dqn", 0.1, 1), ("dqn", 1.0, 10), ("offline_sac", None, 4)])
def test_the_algorithm_chooses_what_it_learns_from(name: str, ratio: float | None, num_steps: int) -> None:
    fields = {} if ratio is None else {"update_step_num_gradient_steps_per_sample": ratio}
    trainer = build(name, max_epochs=1, **fields)
    algorithm = Chosen(trainer.algorithm.policy)
    type(trainer)(algorithm, trainer.params).run()
    assert [batch.index.tolist() for batch in algorithm.batches] == [[0] * 8] * num_steps
