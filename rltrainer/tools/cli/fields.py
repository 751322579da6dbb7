"""Every field of a training as an option, made from the dataclasses: nothing of it is written twice."""

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from rltrainer.checkpoint import CheckpointParams
from rltrainer.interval import Every
from rltrainer.nets import NetParams
from rltrainer.schedules import LinearSchedule
from rltrainer.state.params import Params
from rltrainer.tools.cli.values import read_value
from rltrainer.tools.recipes import AnyRecipe
from rltrainer.tools.recipes.algorithms import policy_of

OF_COMMAND = {
    "algorithm", "env", "env_kwargs", "wrappers", "test_wrappers", "data", "params", "policy", "trainer", "seed",
    "source",
}  # fmt: skip
"""Fields of a recipe that the command names itself, or that are none of a user's."""
NOT_AS_WORDS = {"net", "critic_net", "encoder", "profiler", "optimizer_factory", "folder"}
"""Fields whose values no words can say."""


@dataclass(frozen=True)
class FieldOption:
    """A field as an option."""

    group: str
    name: str
    default: str
    text: str

    @property
    def flag(self) -> str:
        """The option on the command line: `--batch-size`, `--runtime.compile`."""
        prefix = f"{self.group}." if self.group in NESTED + NETS else ""
        return f"--{prefix}{self.name}".replace("_", "-")

    @property
    def key(self) -> str:
        """The name among the command's arguments."""
        return f"{self.group}__{self.name}"

    def to_click(self) -> click.Option:
        """Return the option; it is listed by group, not line by line."""
        return click.Option([self.flag, self.key], metavar="VALUE", hidden=True)


NESTED = ("update", "precision", "runtime", "checkpoint")
"""Groups of params within the trainer's."""
NETS = ("net", "critic_net")
"""Options of a policy that are params."""


def fields_of(recipe: AnyRecipe) -> Iterator[FieldOption]:
    """Yield the options of a training with the recipe's values as defaults."""
    own = field_texts(type(recipe))
    for field in dataclasses.fields(recipe):
        if field.name not in OF_COMMAND and not field.name.startswith("published"):
            yield FieldOption("run", field.name, shown(getattr(recipe, field.name)), own[field.name])
    yield from _of_params("algorithm", recipe.params)
    policy_class = policy_of(recipe.algorithm)
    words = option_texts(policy_class)
    for name in recipe.policy_names():
        if name not in NOT_AS_WORDS:
            default = shown(recipe.policy[name]) if name in recipe.policy else ""
            yield FieldOption("policy", name, default, words.get(name, ""))
    for name in NETS:
        if name in recipe.policy_names():
            yield from _of_params(name, recipe.policy.get(name) or NetParams())
    trainer_class: Any = recipe.trainer_params_class
    words = field_texts(trainer_class)
    for name, field in recipe.trainer_fields().items():
        if name not in NESTED:
            yield FieldOption("trainer", name, shown(recipe.trainer.get(name, field.default)), words[name])
    for name in NESTED[:-1]:
        yield from _of_params(name, recipe.trainer.get(name, recipe.trainer_fields()[name].default))
    yield from _of_params("checkpoint", CheckpointParams("unused"))


def with_values(recipe: AnyRecipe, given: dict[str, str]) -> tuple[AnyRecipe, dict[str, Any]]:
    """Return the recipe with the values of options, and those of its checkpoints."""
    groups: dict[str, dict[str, Any]] = {}
    for key, text in given.items():
        group, _, name = key.partition("__")
        try:
            value = read_value(text)
        except ValueError as error:
            raise ValueError(f"--{name.replace('_', '-')}: {error}") from error
        if name == "hidden_sizes" and isinstance(value, int):
            value = (value,)
        groups.setdefault(group, {})[name] = value
    checkpoint = groups.pop("checkpoint", {})
    CheckpointParams("unused", **checkpoint)
    fields: dict[str, Any] = {}
    for name in NESTED[:-1]:
        if name in groups:
            default: Any = recipe.trainer.get(name, recipe.trainer_fields()[name].default)
            fields[name] = dataclasses.replace(default, **groups.pop(name))
    for name in NETS:
        if name in groups:
            fields[name] = dataclasses.replace(recipe.policy.get(name) or NetParams(), **groups.pop(name))
    return recipe.with_fields(
        **{name: value for each in groups.values() for name, value in each.items()}, **fields
    ), checkpoint


def _of_params(group: str, params: Params) -> Iterator[FieldOption]:
    words = field_texts(type(params))
    for field in dataclasses.fields(params):
        if field.name not in NOT_AS_WORDS:
            yield FieldOption(group, field.name, shown(getattr(params, field.name)), words.get(field.name, ""))


def shown(value: Any) -> str:
    """Return a value as a command would have it."""
    if isinstance(value, tuple | list):
        return ",".join(map(shown, value)) + "," * (len(value) == 1)
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, LinearSchedule):  # and CosineSchedule, which is one
        kind = type(value).__name__.removesuffix("Schedule").lower()
        return f"{kind}:{value.start:g}:{value.end:g}:{value.until:g}"
    if isinstance(value, Every):
        return f"{value.n}:{value.unit}"
    return getattr(value, "__name__", None) or str(value)


def field_texts(cls: type[Any]) -> dict[str, str]:
    """Return the docstrings of a dataclass's fields by name, its parents' too."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if each.__module__.startswith("rltrainer."):
            body = _definition(each).body
            for field, text in itertools.pairwise(body):
                match field, text:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                        found[name] = " ".join(words.split())
    return found


def option_texts(cls: type[Any]) -> dict[str, str]:
    """Return the explanations of a constructor's arguments in docstrings, its parents' too.

    They are the entries of the section `Args`, or else the sentence that names the argument in backticks.
    """
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        text = inspect.cleandoc(each.__doc__ or "")
        section = re.search(r"^Args:\n((?: {4}.*\n?|\n)*)", text, re.MULTILINE)
        for sentence in re.split(r"(?<=\.)\s+", text[: section.start()] if section else text):
            found.update(dict.fromkeys(re.findall(r"`(\w+)`", sentence), " ".join(sentence.split())))
        entries = re.split(r"^(?=\w+(?:, \w+)*: )", textwrap.dedent(section[1]), flags=re.MULTILINE) if section else []
        for entry in filter(None, entries):
            names, _, words = entry.partition(": ")
            found.update(dict.fromkeys(re.split(r", ", names), " ".join(words.split())))
    return found


def _definition(cls: type[Any]) -> ast.ClassDef:
    node = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(node, ast.ClassDef), "the source of a class"
    return node
