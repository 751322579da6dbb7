"""A small params class against bad values, and through JSON."""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest

from rltrainer.errors import ParamsError, RLTrainerError
from rltrainer.params import Params
from rltrainer.rules import (
    FiniteFloat,
    Flag,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Scheduled,
    UnitFloat,
    a_callable,
)
from rltrainer.schedules import LinearSchedule


@dataclass(frozen=True, kw_only=True, repr=False)
class TinyParams(Params):
    max_epochs: PositiveInt
    lr: PositiveFloat | Scheduled = 3e-4
    gamma: UnitFloat = 0.99
    batch_size: PositiveInt | None = 64
    warmup: NonNegativeInt = 0
    shift: FiniteFloat = -0.5
    normalize: Flag = True
    sizes: tuple[int, ...] = (64, 64)
    stop_fn: Annotated[Callable[[float], bool], a_callable("(score) -> bool")] | None = field(
        default=None, compare=False
    )
    hooks: tuple[Any, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size is not None and self.warmup > self.batch_size:
            self.refuse("warmup", "must be at most batch_size", "Lower it.")


class Hook:
    def __repr__(self) -> str:
        return "a very long text"


NAN, INF = float("nan"), float("inf")
EVERYTHING_BAD = [-1, 0, INF, NAN, "", None, True, []]
"""-1, 0, infinity, NaN, the empty text, None, True and a list."""


@pytest.mark.parametrize(
    ("name", "accepted"),
    [
        ("max_epochs", []),
        ("lr", []),
        ("gamma", [0]),
        ("batch_size", [None]),
        ("warmup", [0]),
        ("shift", [-1, 0]),
        ("normalize", [True]),
        ("stop_fn", [None]),
    ],
)
def test_every_field_refuses_what_its_rule_does_not_name(name: str, accepted: list[object]) -> None:
    refused = [repr(value) for value in EVERYTHING_BAD if not _is_accepted(name, value)]
    # By repr, because True == 1 and nan != nan.
    assert refused == [repr(value) for value in EVERYTHING_BAD if repr(value) not in map(repr, accepted)]


def _is_accepted(name: str, value: object) -> bool:
    values: dict[str, Any] = {"max_epochs": 1, name: value}
    try:
        TinyParams(**values)
    except ParamsError as error:
        return not str(error).startswith(f"TinyParams.{name}: must be ")
    return True


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"batch_size": -1}, "TinyParams.batch_size: must be a positive integer or None; got -1 (int)"),
        ({"max_epochs": True}, "TinyParams.max_epochs: must be a positive integer; got True (bool)"),
        (
            {"lr": "fast"},
            "TinyParams.lr: must be a positive finite number or a callable of progress in [0, 1]; got 'fast' (str)",
        ),
        ({"gamma": NAN}, "TinyParams.gamma: must be a number in [0, 1]; got nan (float)"),
        ({"stop_fn": 475}, "TinyParams.stop_fn: must be a callable (score) -> bool or None; got 475 (int)"),
        ({"warmup": 65}, "TinyParams.warmup: must be at most batch_size; got 65 (int). Lower it."),
    ],
)
def test_error_texts(values: dict[str, Any], text: str) -> None:
    with pytest.raises(ParamsError) as caught:
        TinyParams(**({"max_epochs": 1} | values))
    assert str(caught.value) == text
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, RLTrainerError)


def test_frozen_keyword_only_and_replace_checks_again() -> None:
    params = TinyParams(max_epochs=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.max_epochs = 4  # type: ignore[misc]  # what is tested
    with pytest.raises(TypeError):
        TinyParams(3)  # type: ignore[misc]  # what is tested
    assert dataclasses.replace(params, gamma=0.5).gamma == 0.5
    with pytest.raises(ParamsError):
        dataclasses.replace(params, gamma=1.5)


def test_printing_names_live_objects_by_class_and_id() -> None:
    params = TinyParams(max_epochs=3, stop_fn=bool, hooks=(Hook(),))
    text = str(params)
    assert text.startswith("TinyParams[max_epochs=3, lr=0.0003, gamma=0.99, batch_size=64,")
    assert f"stop_fn=type[id={id(bool)}]" in text
    assert "a very long text" not in text
    assert f"hooks=tuple[id={id(params.hooks)}]" in text
    assert "stop_fn=None" in str(TinyParams(max_epochs=3))


def test_live_objects_do_not_count_in_comparisons() -> None:
    assert TinyParams(max_epochs=3, stop_fn=bool) == TinyParams(max_epochs=3, stop_fn=None)
    assert TinyParams(max_epochs=3) != TinyParams(max_epochs=4)


def test_json_round_trip_is_exact_with_types() -> None:
    params = TinyParams(max_epochs=3, lr=1, gamma=0.1 + 0.2, batch_size=None, sizes=(3, 5), shift=-1e-300)
    again = TinyParams.from_json(params.to_json())
    assert again == params
    assert type(again.lr) is int
    assert again.sizes == (3, 5)
    assert again.hooks == ()


def test_json_names_live_objects_and_wants_them_back() -> None:
    hook = Hook()
    text = TinyParams(max_epochs=3, lr=LinearSchedule(1e-3), stop_fn=len, hooks=(hook,)).to_json()
    fields = json.loads(text)["fields"]
    assert fields["lr"] == {"live": "LinearSchedule"}
    assert fields["stop_fn"] == {"live": "len"}
    assert fields["hooks"] == [{"live": "Hook"}]
    with pytest.raises(
        ParamsError, match=r"^TinyParams.lr: JSON holds only the name 'LinearSchedule'; pass lr=\.\.\.$"
    ):
        TinyParams.from_json(text, stop_fn=len, hooks=(hook,))
    with pytest.raises(ParamsError, match=r"^TinyParams.hooks: JSON holds only the name 'Hook'; pass hooks=\.\.\.$"):
        TinyParams.from_json(text, lr=1e-3, stop_fn=len)
    again = TinyParams.from_json(text, lr=1e-3, stop_fn=len, hooks=(hook,))
    assert again.stop_fn is len
    assert again.hooks == (hook,)


def test_json_live_overrides_any_field() -> None:
    assert TinyParams.from_json(TinyParams(max_epochs=3).to_json(), max_epochs=7).max_epochs == 7


def test_json_suggests_the_nearest_name() -> None:
    text = TinyParams(max_epochs=3).to_json()
    with pytest.raises(ParamsError) as caught:
        TinyParams.from_json(text, bach_size=3)
    assert str(caught.value) == "TinyParams.from_json: unknown field 'bach_size'. Did you mean 'batch_size'?"
    with pytest.raises(ParamsError, match=r"^TinyParams.from_json: unknown field 'zzzzz'\.$"):
        TinyParams.from_json(text.replace('"warmup"', '"zzzzz"'))


def test_json_values_are_checked_like_any_other() -> None:
    text = TinyParams(max_epochs=3).to_json().replace("0.99", "1.99")
    with pytest.raises(ParamsError, match=r"^TinyParams.gamma: must be a number in \[0, 1\]; got 1.99 \(float\)"):
        TinyParams.from_json(text)


def test_json_of_another_class() -> None:
    text = TinyParams(max_epochs=3).to_json().replace("TinyParams", "PPOParams")
    with pytest.raises(ParamsError, match=r"^TinyParams.from_json: the text describes a PPOParams$"):
        TinyParams.from_json(text)


def test_json_without_a_required_field() -> None:
    document = json.loads(TinyParams(max_epochs=3).to_json())
    del document["fields"]["max_epochs"]
    with pytest.raises(ParamsError, match=r"^TinyParams.max_epochs: the text lacks this field; pass max_epochs=\.\.\."):
        TinyParams.from_json(json.dumps(document))
    assert TinyParams.from_json(json.dumps(document), max_epochs=2).max_epochs == 2


@pytest.mark.parametrize(
    "text", ["", "{", "3", "[]", "{}", '{"params": "TinyParams"}', '{"params": "TinyParams", "fields": 3}', "[" * 10**5]
)
def test_json_that_to_json_did_not_write(text: str) -> None:
    with pytest.raises(ParamsError, match=r"^TinyParams.from_json: the text is not JSON written by to_json \("):
        TinyParams.from_json(text)
