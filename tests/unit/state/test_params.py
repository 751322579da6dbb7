"""A small params class against bad values, and through JSON."""

import copy
import dataclasses
import inspect
import json
import pickle
from dataclasses import InitVar, dataclass, field
from typing import Annotated, Any

import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.errors import ParamsError, RLTrainerError
from rltrainer.schedules import LinearSchedule
from rltrainer.state.params import Params
from rltrainer.validation import field_rules
from rltrainer.validation.field_rules import PositiveInt


@dataclass(frozen=True, kw_only=True, repr=False)
class TinyParams(Params):
    max_epochs: PositiveInt
    lr: field_rules.PositiveFloat | field_rules.Scheduled = 3e-4
    gamma: field_rules.UnitFloat = 0.99
    batch_size: PositiveInt | None = 64
    warmup: field_rules.NonNegativeInt = 0
    shift: field_rules.FiniteFloat = -0.5
    normalize: field_rules.Flag = True
    sizes: tuple[int, ...] = (64, 64)
    stop_fn: Annotated[Any, field_rules.a_callable("(score) -> bool")] | None = field(default=None, compare=False)
    hooks: tuple[Any, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size is not None and self.warmup > self.batch_size:
            self.raise_invalid("warmup", "must be at most batch_size", "Lower it.")


class DoubledSchedule(LinearSchedule):
    def __call__(self, progress: float) -> float:
        return 2 * super().__call__(progress)


class Hook:
    def __repr__(self) -> str:
        return "a very long text"


NAN, INF = float("nan"), float("inf")
EVERYTHING_BAD = [-1, 0, INF, NAN, "", None, True, []]
"""-1, 0, infinity, NaN, the empty text, None, True and a list."""


ACCEPTED = {"gamma": [0], "batch_size": [None], "warmup": [0], "shift": [-1, 0], "normalize": [True], "stop_fn": [None]}


@pytest.mark.parametrize("name", ["max_epochs", "lr", *ACCEPTED])
def test_every_field_refuses_what_its_rule_does_not_name(name: str) -> None:
    for value in EVERYTHING_BAD:
        values: dict[str, Any] = {"max_epochs": 1, name: value}
        if repr(value) in map(repr, ACCEPTED.get(name, [])):  # by repr, because True == 1 and nan != nan
            TinyParams(**values)
        else:
            with pytest.raises(ParamsError, match=rf"^TinyParams\.{name}: must be "):
                TinyParams(**values)


@pytest.mark.parametrize(("values", "text"), [
    ({"batch_size": -1}, "batch_size: must be a positive integer or None; got -1 (int)"),
    ({"max_epochs": True}, "max_epochs: must be a positive integer; got True (bool)"),
    ({"lr": "fast"}, "lr: must be a positive finite number or a callable of progress in [0, 1]; got 'fast' (str)"),
    ({"gamma": NAN}, "gamma: must be a number in [0, 1]; got nan (float)"),
    ({"stop_fn": 475}, "stop_fn: must be a callable (score) -> bool or None; got 475 (int). Write lambda score: ..."),
    ({"warmup": 65}, "warmup: must be at most batch_size; got 65 (int). Lower it."),
])  # fmt: skip
def test_error_texts(values: dict[str, Any], text: str) -> None:
    with pytest.raises(ParamsError) as caught:
        TinyParams(**({"max_epochs": 1} | values))
    assert str(caught.value) == f"TinyParams.{text}"
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, RLTrainerError)


def test_frozen_and_replace_checks_again() -> None:
    params = TinyParams(max_epochs=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.max_epochs = 4  # type: ignore[misc]  # what is tested
    assert dataclasses.replace(params, gamma=0.5).gamma == 0.5
    with pytest.raises(ParamsError):
        dataclasses.replace(params, gamma=1.5)


def test_live_objects_are_printed_by_class_and_id_and_do_not_count_in_comparisons() -> None:
    params = TinyParams(max_epochs=3, stop_fn=bool, hooks=(Hook(),))
    text = str(params)
    assert text.startswith("TinyParams[max_epochs=3, lr=0.0003, gamma=0.99, batch_size=64,")
    assert f"stop_fn=type[id={id(bool)}]" in text
    assert "a very long text" not in text
    assert f"hooks=tuple[id={id(params.hooks)}]" in text
    assert "stop_fn=None" in str(TinyParams(max_epochs=3))
    assert TinyParams(max_epochs=3, stop_fn=bool) == TinyParams(max_epochs=3, stop_fn=None)
    assert TinyParams(max_epochs=3) != TinyParams(max_epochs=4)


def test_json_round_trip_is_exact_with_types() -> None:
    params = TinyParams(max_epochs=3, lr=1, gamma=0.1 + 0.2, batch_size=None, sizes=(3, 5), shift=-1e-300)
    again = TinyParams.from_json(params.to_json())
    assert again == params
    assert (type(again.lr), again.sizes, again.hooks) == (int, (3, 5), ())


def test_json_names_live_objects_and_wants_them_back() -> None:
    hook = Hook()
    text = TinyParams(max_epochs=3, lr=abs, stop_fn=len, hooks=(hook,)).to_json()
    fields = json.loads(text)["fields"]
    assert (fields["lr"], fields["stop_fn"], fields["hooks"]) == ({"live": "abs"}, {"live": "len"}, [{"live": "Hook"}])
    with pytest.raises(ParamsError, match=r"^TinyParams.lr: JSON holds only the name 'abs'; pass lr=\.\.\.$"):
        TinyParams.from_json(text, stop_fn=len, hooks=(hook,))
    with pytest.raises(ParamsError, match=r"^TinyParams.hooks: JSON holds only the name 'Hook'; pass hooks=\.\.\.$"):
        TinyParams.from_json(text, lr=1e-3, stop_fn=len)
    again = TinyParams.from_json(text, lr=1e-3, stop_fn=len, hooks=(hook,), max_epochs=7)
    assert (again.stop_fn, again.hooks, again.max_epochs) == (len, (hook,), 7)


def test_a_schedule_of_ours_is_data_in_json() -> None:
    params = TinyParams(max_epochs=3, lr=LinearSchedule(1e-3, 1e-4, until=0.3))
    document = json.loads(params.to_json())
    assert document["fields"]["lr"] == {"schedule": "LinearSchedule", "start": 1e-3, "end": 1e-4, "until": 0.3}
    assert TinyParams.from_json(params.to_json()) == params
    assert rl.DQNParams.from_json(rl.DQNParams().to_json()) == rl.DQNParams()
    text = TinyParams(max_epochs=3, lr=DoubledSchedule(1.0)).to_json()  # of a user's
    with pytest.raises(ParamsError, match=r"^TinyParams.lr: JSON holds only the name 'DoubledSchedule'; pass lr"):
        TinyParams.from_json(text)


def test_functions_and_classes_of_ours_come_back_by_name() -> None:
    for params in (rl.A2CParams(optimizer=rl.rms_prop), rl.NetParams(activation=torch.nn.ELU, hidden_sizes=[3, 4])):
        again = type(params).from_json(params.to_json())
        assert vars(again) == vars(params)
    text = rl.A2CParams(optimizer=rl.rms_prop).to_json().replace("rms_prop", "seed")
    with pytest.raises(ParamsError, match=r"^A2CParams.optimizer: this release of rltrainer knows no 'seed'"):
        rl.A2CParams.from_json(text)


@pytest.mark.parametrize(("schedule", "text"), [
    ({"schedule": "os.system", "command": "ls"}, "TinyParams.lr: unknown schedule 'os.system' in the JSON; "),
    ({"schedule": ["LinearSchedule"]}, "TinyParams.lr: unknown schedule ['LinearSchedule'] in the JSON; known: "),
    ({"schedule": "LinearSchedule", "start": 1}, "TinyParams.lr: a LinearSchedule in JSON has start, end, until; "),
    ({"schedule": "LinearSchedule", "start": "1", "end": 0, "until": 1}, "LinearSchedule.start: must be a finite "),
    ({"live": "LinearSchedule"}, "TinyParams.lr: JSON holds only the name 'LinearSchedule'; pass lr=..."),
])  # fmt: skip
def test_a_damaged_schedule_in_json(schedule: Any, text: str) -> None:
    document = json.loads(TinyParams(max_epochs=3).to_json())
    document["fields"]["lr"] = schedule
    with pytest.raises(ParamsError) as caught:
        TinyParams.from_json(json.dumps(document))
    assert str(caught.value).startswith(text)


def plain(**changes: Any) -> str:
    """Return the JSON of params with other fields; None removes one."""
    document = json.loads(TinyParams(max_epochs=3).to_json())
    document["fields"] = {key: value for key, value in (document["fields"] | changes).items() if value is not None}
    return json.dumps(document)


@pytest.mark.parametrize(("text", "live", "error"), [
    (plain(), {"bach_size": 3}, ".from_json: unknown field 'bach_size'. Did you mean 'batch_size'?"),
    (plain(zzzzz=1), {}, ".from_json: unknown field 'zzzzz'."),
    (plain(gamma=1.99), {}, ".gamma: must be a number in [0, 1]; got 1.99 (float)"),
    (plain().replace("TinyParams", "PPOParams"), {}, ".from_json: the text describes a PPOParams"),
    (plain(max_epochs=None), {}, ".max_epochs: the text lacks this field; pass max_epochs=..."),
])  # fmt: skip
def test_json_that_does_not_fit(text: str, live: dict[str, Any], error: str) -> None:
    with pytest.raises(ParamsError) as caught:
        TinyParams.from_json(text, **live)
    assert str(caught.value) == f"TinyParams{error}"


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "3", "[]", "{}", "[" * 10**5, b"\xff", '{"params": "TinyParams"}',
        *(
            f'{{"params": "TinyParams", "fields": {fields}}}'
            for fields in (
                "3", '[["max_epochs", 3]]', '{"max_epochs": 3, "max_epochs": 4}', '{"lr": NaN}', '{"lr": 1e999}',
                '{"lr": {"space": "Box", "shape": [10000000], "low": 0, "high": 1}}',
            )
        ),
    ],
)  # fmt: skip
def test_json_that_to_json_did_not_write(text: str) -> None:
    with pytest.raises(ParamsError, match=r"^TinyParams.from_json: the text is not JSON written by to_json \("):
        TinyParams.from_json(text)


def test_a_type_error_within_a_constructor_stays() -> None:
    class Own(rl.DQN):
        def __init__(self, policy: Any) -> None:
            len(policy)
            super().__init__(policy)

    with pytest.raises(TypeError, match=r"^object of type 'int' has no len\(\)$"):
        Own(3)


def test_every_name_of_another_library_has_one_of_ours() -> None:
    from rltrainer.validation.hints import ADVICE, ARGUMENTS, ATTRIBUTES

    classes = [rl.NetParams, rl.PPOParams, rl.SACParams, rl.DQNParams, rl.TD3Params, rl.IQLParams, rl.CQLParams]
    classes += [rl.TQCParams, rl.REDQParams, rl.CrossQParams, rl.FlashSACParams, rl.TRPOParams, rl.PQNParams]
    classes += [rl.UpdateParams, rl.OnPolicyTrainerParams, rl.OffPolicyTrainerParams, rl.OfflineTrainerParams]
    classes += [rl.OfflineRecipe, rl.Recipe, rl.CheckpointParams]
    known = {field.name for cls in classes for field in dataclasses.fields(cls)} | set(vars(rl.TrainerHook))
    known |= {"orthogonal_init", "normalize_obs", "normalize_reward", "num_critics", "num_outputs", "num_quantiles"}
    known |= {"sde_sample_interval", "cell_size"}
    calls = rl.make_vec, rl.evaluate_policy, rl.record, rl.ReplayBuffer, rl.Collector.collect, rl.TensorBoardLogger
    known |= {name for called in calls for name in inspect.signature(called).parameters}
    assert {ours for names in ARGUMENTS.values() for ours in names} <= known
    assert {needed for needed, _, _ in ADVICE} <= known | {"net", "space"}
    assert all(inspect.isclass(getattr(rl, needed)) for needed, _, _ in ATTRIBUTES)


def test_params_with_one_positional_field_stay_positional() -> None:
    assert rl.EpsilonGreedy(0.2) == rl.EpsilonGreedy(epsilon=0.2)
    with pytest.raises(ParamsError, match="EpsilonGreedy: multiple values for argument 'epsilon'"):
        rl.EpsilonGreedy(0.2, epsilon=0.3)


def test_numbers_of_numpy_become_pythons() -> None:
    params = TinyParams(
        max_epochs=np.int64(3), lr=np.float32(0.5), gamma=np.float64(0.5), warmup=np.uint8(2), normalize=np.bool_(False)
    )
    assert params == TinyParams(max_epochs=3, lr=0.5, gamma=0.5, warmup=2, normalize=False)
    assert [type(getattr(params, name)) for name in ("max_epochs", "lr", "gamma", "normalize")] == [
        int, float, float, bool
    ]  # fmt: skip
    assert TinyParams.from_json(params.to_json()) == params
    schedule = LinearSchedule(np.float64(1.0), np.float32(0.5), until=np.float64(0.5))
    assert repr(schedule) == "LinearSchedule(start=1.0, end=0.5, until=0.5)"
    assert json.loads(TinyParams(max_epochs=3, sizes=(np.int64(3),)).to_json())["fields"]["sizes"] == [3]
    for value in (np.bool_(True), np.float64(3.0), np.timedelta64(3), np.array([3]), np.int64(0)):
        with pytest.raises(ParamsError, match="TinyParams.max_epochs: must be a positive integer; got"):
            TinyParams(max_epochs=value)  # type: ignore[arg-type]  # what is tested


@dataclass(frozen=True, kw_only=True, repr=False)
class WithInitOnly(Params):
    size: PositiveInt = 3
    scale: InitVar[int]

    def __post_init__(self, scale: int) -> None:
        super().__post_init__()


def test_copies_and_pickles_of_params_with_required_fields_and_arguments_that_are_no_field() -> None:
    assert copy.deepcopy(WithInitOnly(scale=3)) == WithInitOnly(scale=4)
    with pytest.raises(ParamsError, match="WithInitOnly: missing a required argument: 'scale'"):
        WithInitOnly(size=3)  # type: ignore[call-arg]  # what is tested
    params = TinyParams(max_epochs=3, stop_fn=len)
    for made in (copy.copy(params), copy.deepcopy(params), pickle.loads(pickle.dumps(params))):
        assert made == params
        assert made.stop_fn is len
