"""The texts of errors: short, and the same in every run."""

import functools

import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.errors import MAX_LENGTH, field_error_text, readable


class Plain:
    def method(self) -> None: ...


class Broken:
    def __repr__(self) -> str:
        raise AttributeError("half made")


def named() -> None: ...


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-1, "-1"),
        ("x", "'x'"),
        ([1, None], "[1, None]"),
        (rl.PPOParams, "<class 'rltrainer.algorithms.policy_gradient.ppo.PPOParams'>"),
        (named, "<function named>"),
        (Plain(), "<tests.unit.test_errors.Plain object>"),
        (Plain().method, "<bound method Plain.method of <tests.unit.test_errors.Plain object>>"),
        ([named], "[<function named>]"),
        (functools.partial(named), "functools.partial(<function named>)"),
        (Broken(), "<Broken>"),
        (np.zeros((200, 3)), "<ndarray of shape (200, 3)>"),
        (torch.nn.Sequential(*[torch.nn.ReLU()] * 20), "<Sequential>"),
        (rl.GaussianNoise(0.5), "GaussianNoise[std=0.5]"),
        ("x" * 200, "'" + "x" * (MAX_LENGTH - 1) + "..."),
    ],
)
def test_values_are_readable(value: object, text: str) -> None:
    assert readable(value).replace(__name__, "tests.unit.test_errors") == text


def test_the_form_of_an_error() -> None:
    assert field_error_text("A", "b", "must be 1", 2, "Try 1.") == "A.b: must be 1; got 2 (int). Try 1."
    assert field_error_text("A", "b", "must be 1", int) == "A.b: must be 1; got <class 'int'> (type)"


def test_a_number_too_large_to_be_written() -> None:
    assert readable(10**5000) == "<int>"
