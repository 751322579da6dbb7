"""The texts of errors: short, and the same in every run."""

import functools
import pickle

import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer import errors
from rltrainer.errors import CheckpointError, EnvError, MissingExtraError, ParamsError, RLTrainerError


class Plain:
    def method(self) -> None: ...


class Broken:
    def __repr__(self) -> str:
        raise AttributeError("half made")


def named() -> None: ...


@pytest.mark.parametrize(("value", "text"), [
    ([-1, "x", None], "[-1, 'x', None]"),
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
    ("x" * 200, "'" + "x" * (errors.MAX_LENGTH - 1) + "..."),
    ([10**5000], "<list>"),  # too large to be written
])  # fmt: skip
def test_values_are_readable(value: object, text: str) -> None:
    assert errors.readable(value).replace(__name__, "tests.unit.test_errors") == text


def test_the_form_of_an_error() -> None:
    error = errors.SpaceError.about("A", "b", "must be 1", 2, "Try 1.")
    assert type(error) is errors.SpaceError
    assert str(error) == "A.b: must be 1; got 2 (int). Try 1."
    assert str(errors.ParamsError.about("A", "b", "must be 1", int)) == "A.b: must be 1; got <class 'int'> (type)"


@pytest.mark.parametrize(("text", "shown"), [
    ("plain text, é and 日本語", "plain text, é and 日本語"), ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
    ("a\rb\x08c\x7f\x9b1m", r"a\rb\x08c\x7f\x9b1m"), ("abc\u202etxt\u2028\udc80", r"abc\u202etxt\u2028\udc80"),
    ("two\nlines\tand a tab", "two\nlines\tand a tab"),
])  # fmt: skip
@pytest.mark.parametrize("cls", [CheckpointError, ParamsError, MissingExtraError, EnvError])
def test_an_error_is_shown_without_what_moves_a_cursor(cls: type[RLTrainerError], text: str, shown: str) -> None:
    assert str(cls(text)) == shown
    assert str(pickle.loads(pickle.dumps(cls(text)))) == shown
    assert errors.escaped(text) == shown.replace("\n", r"\n").replace("\t", r"\t")
