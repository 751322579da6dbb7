"""Faults on a device that is not waited for, with a stand-in that says when a copy arrives."""

import copy

import pytest
import torch

import rltrainer as rl
from rltrainer.updates.gradient_faults import DeviceFlag, Transfer
from tests.contract.test_all_algorithms import make, transitions


class Slow:
    """Copies at once, and says that it has arrived when it is told to."""

    def __init__(self) -> None:
        self.has_arrived = False
        self.num_started = 0

    def start(self, number: torch.Tensor) -> Transfer:
        self.num_started += 1
        return number.clone(), lambda: self.has_arrived


def test_a_number_is_seen_when_its_copy_has_arrived() -> None:
    number, link = torch.zeros(()), Slow()
    read = DeviceFlag(number, link.start)
    assert not read.was_nonzero(wait=False)  # a copy of 0 is under way
    number.fill_(1)
    assert not read.was_nonzero(wait=False)
    assert link.num_started == 1
    link.has_arrived = True
    assert not read.was_nonzero(wait=False)  # the 0 has arrived, the 1 is under way
    assert read.was_nonzero(wait=False)
    number.zero_()
    assert not read.was_nonzero(wait=False)
    assert link.num_started == 3


def test_waiting_sees_what_there_is_now_and_forgets_what_is_under_way() -> None:
    number, link = torch.ones(()), Slow()
    read = DeviceFlag(number, link.start)
    assert not read.was_nonzero(wait=False)
    assert read.was_nonzero(wait=True)
    number.zero_()
    link.has_arrived = True
    assert not read.was_nonzero(wait=False)
    assert not read.was_nonzero(wait=False)


def test_a_late_fault_is_told_once_and_before_anything_is_saved() -> None:
    algorithm, link = make("bc"), Slow()
    algorithm.optimizer._bad._delayed = DeviceFlag(algorithm.optimizer._bad.num, link.start)
    bad = transitions(algorithm, 16, weight=torch.full((16,), float("inf")))
    algorithm.update(bad)
    algorithm.update(transitions(algorithm, 16))
    link.has_arrived = True
    with pytest.raises(rl.errors.NonFiniteError, match=r"BC: the gradient of actor.* is not finite"):
        algorithm.update(transitions(algorithm, 16))
    algorithm.update(transitions(algorithm, 16))

    link.has_arrived = False
    algorithm.update(bad)
    copied = copy.deepcopy(algorithm)
    for one in (algorithm, copied):
        with pytest.raises(rl.errors.NonFiniteError, match="is not finite"):
            one.state_dict()
        one.state_dict()
