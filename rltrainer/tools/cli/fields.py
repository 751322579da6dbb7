"""Every field of a run as an option, made from the dataclasses, so that nothing is written twice."""

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rltrainer.checkpoint import CheckpointParams
from rltrainer.interval import Every
from rltrainer.nets import NetParams
from rltrainer.schedules import LinearSchedule
from rltrainer.state.params import Params
from rltrainer.tools.cli.values import read_value
from rltrainer.tools.recipes import AnyRecipe
from rltrainer.tools.recipes.algorithms import policy_of

# Fields of a recipe that the command names itself, or that no user sets.
OF_COMMAND = {
    "algorithm", "env", "env_kwargs", "wrappers", "test_wrappers", "data", "seed", "source", "published_score",
    "published_as",
}  # fmt: skip
# Fields with values that no words can say.
NOT_AS_WORDS = {"net", "critic_net", "encoder", "profiler", "optimizer_factory", "folder"}
# Groups of params that are fields of the trainer's params, or options of the policy.
NESTED = ("update", "precision", "runtime", "checkpoint", "net", "critic_net")


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
        prefix = f"{self.group}." if self.group in NESTED else ""
        return f"--{prefix}{self.name}".replace("_", "-")

    @property
    def key(self) -> str:
        """The name among the command's arguments."""
        return f"{self.group}__{self.name}"


def fields_of(recipe: AnyRecipe) -> Iterator[FieldOption]:
    """Yield the options of a run with the recipe's values as defaults."""
    known, trainer_class = recipe.fields_by_owner(), recipe.trainer_params_class
    nested = _nested_params(recipe)
    of_nested = {name: (field_texts(type(params)), vars(params)) for name, params in nested.items()}
    groups: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
        "run": (field_texts(type(recipe)), {name: getattr(recipe, name) for name in known[""]}),
        "algorithm": (field_texts(type(recipe.params)), vars(recipe.params)),
        "policy": (option_texts(policy_of(recipe.algorithm)), {**dict.fromkeys(known["policy"], ""), **recipe.policy}),
        **{name: of_nested.pop(name) for name in ("net", "critic_net") if name in nested},
        "trainer": (
            field_texts(trainer_class),
            {name: recipe.trainer.get(name, getattr(trainer_class, name)) for name in known["trainer"]},
        ),
        **of_nested,
    }
    for group, (texts, values) in groups.items():
        hidden = NOT_AS_WORDS | (OF_COMMAND if group == "run" else set(nested))
        for name, value in values.items():
            if name not in hidden:
                yield FieldOption(group, name, shown(value), texts.get(name, ""))


def with_values(recipe: AnyRecipe, given: dict[str, str]) -> tuple[AnyRecipe, dict[str, Any]]:
    """Return the recipe with the values of options, and the fields of its checkpoints; a `ValueError` for bad words."""
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
    checkpoint, fields = groups.get("checkpoint", {}), dict[str, Any]()
    for name, params in _nested_params(recipe).items():
        if name in groups:
            fields[name] = dataclasses.replace(params, **groups.pop(name))
    # Checked above. Its folder will be the run's, which does not exist yet.
    fields.pop("checkpoint", None)
    for values in groups.values():
        fields |= values
    return recipe.with_fields(**fields), checkpoint


def _nested_params(recipe: AnyRecipe) -> dict[str, Params]:
    """Return the params of the groups in `NESTED` that the recipe has."""
    trainer: Any = recipe.trainer_params_class
    found = {name: recipe.trainer.get(name, getattr(trainer, name)) for name in NESTED[:3]}
    found["checkpoint"] = CheckpointParams("unused")
    of_policy = recipe.fields_by_owner()["policy"]
    return found | {name: recipe.policy.get(name) or NetParams() for name in NESTED[4:] if name in of_policy}


def shown(value: Any) -> str:
    """Return a value as a user would write it in a command."""
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
    # A field has no `__doc__`, so the source is read: a text that follows an annotated name is its docstring.
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if each.__module__.startswith("rltrainer."):
            definition: Any = ast.parse(textwrap.dedent(inspect.getsource(each))).body[0]
            for field, text in itertools.pairwise(definition.body):
                match field, text:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                        found[name] = " ".join(words.split())
    return found


def option_texts(cls: type[Any]) -> dict[str, str]:
    """Return the explanations of a constructor's arguments in docstrings, its parents' too.

    An explanation is an entry of the section `Args`, or else the sentence that names the argument in backticks.
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
