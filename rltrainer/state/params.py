"""The parent of every params dataclass: frozen, keyword-only, checked at construction, printed, written as JSON."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Self

from rltrainer.errors import FrozenParamsError, ParamsError, readable
from rltrainer.files.json_text import read_strict_json, to_strict_json
from rltrainer.spaces import check_claims
from rltrainer.state.plain import PlainReader, to_plain
from rltrainer.validation.field_rules import Rule, as_python, field_hints, missing_fields, must_be, remedy, rules_of
from rltrainer.validation.hints import ARGUMENTS
from rltrainer.validation.suggestions import ExplainsArguments, did_you_mean

if TYPE_CHECKING:  # sensai ships no types, and a type checker accepts anything of a class with a parent it cannot see

    class ToStringMixin:
        """Print as `Name[field=value, ...]`."""
else:
    from sensai.util.string import ToStringMixin


def _refuse_assignment(params: "Params", name: str, value: object) -> NoReturn:
    how = f"Make a changed copy: dataclasses.replace(params, {name}=...)."
    raise FrozenParamsError.about(type(params).__name__, name, "params do not change", value, how)


class _ParamsClass(ExplainsArguments):
    """Metaclass of params: replaces the `__setattr__` of frozen dataclasses by one with a hint."""

    def __setattr__(cls, name: str, value: Any) -> None:
        super().__setattr__(name, _refuse_assignment if name == "__setattr__" else value)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Params(ToStringMixin, metaclass=_ParamsClass):
    """Check every field against the rule in its type.

    A field of a live object (a collector, a callback) has `compare=False`: it prints as class and id, and JSON holds
    only its name.

    Raises:
        ParamsError: a value breaks its field's rule. An `ArgumentError` if a name is no field, or one is missing.
    """

    def __post_init__(self) -> None:
        for name, rules in _field_rules(type(self)).items():
            given = getattr(self, name)
            value = as_python(given)
            # JSON has no numbers of NumPy, and a frozen field is set by `object`.
            if value is not given:
                object.__setattr__(self, name, value)
            if rules and not any(rule.accepts(value) for rule in rules):
                self.raise_invalid(name, must_be(rules), remedy(rules, value))

    @classmethod
    def argument_hint(cls, name: str) -> str:
        """Return which other params have a field of this name, or of our name for another library's."""
        for ours in (name, *ARGUMENTS.get(name, ())):
            if owners := _owners(Params, ours):
                return f" {ours!r} is a field of {' and '.join(owners)}."
        return ""

    def raise_invalid(self, field: str, rule: str, hint: str = "") -> NoReturn:
        """Raise a `ParamsError` about this field's value."""
        raise ParamsError.about(type(self).__name__, field, rule, getattr(self, field), hint)

    def to_plain(self) -> dict[str, Any]:
        """Return the params as plain data, for `to_json`."""
        fields = {field.name: to_plain(getattr(self, field.name)) for field in dataclasses.fields(self)}
        return {"params": type(self).__name__, "fields": fields}

    @classmethod
    def from_plain(cls, fields: Mapping[str, Any], reader: PlainReader, live: dict[str, Any] | None = None) -> Self:
        """Rebuild params from `to_plain`'s fields, or from `live` where that has them.

        A `ParamsError` if a field is unknown or missing.
        """
        live, known = live or {}, [field.name for field in dataclasses.fields(cls)]
        for name in [*fields, *live]:
            if name not in known:
                hint = did_you_mean(name[:100], known)
                raise ParamsError(f"{cls.__name__}.from_json: unknown field {readable(name)}.{hint}")
        written = {name: value for name, value in fields.items() if name not in live}
        values = {name: reader.inside(name).read(value, f"{cls.__name__}.{name}") for name, value in written.items()}
        values |= live
        for name in missing_fields(cls, values):
            raise ParamsError(f"{cls.__name__}.{name}: the text lacks this field; pass {name}=...")
        return cls(**values)

    def to_json(self) -> str:
        """Return the params as JSON; live objects, and callables of a user's, are only named."""
        return to_strict_json(self.to_plain())

    @classmethod
    def from_json(cls, text: str, **live: Any) -> Self:
        """Rebuild params from `to_json` text.

        Args:
            text: as `to_json` returned it.
            live: the objects and callables that JSON only names; overrides any other field too.

        Raises:
            ParamsError: the text is not JSON of this class, a name is unknown, or a live object is missing.
        """
        try:
            document = read_strict_json(text)
            written_by, fields = document["params"], document["fields"]
            if not isinstance(written_by, str) or not isinstance(fields, dict):
                raise ValueError("it has no name, or no fields")
            check_claims(fields, len(text))
        except (KeyError, TypeError, ValueError) as error:
            problem = f"the text is not JSON written by to_json ({error!r})"
            raise ParamsError(f"{cls.__name__}.from_json: {problem}") from error
        if written_by != cls.__name__:
            raise ParamsError(f"{cls.__name__}.from_json: the text describes a {written_by[:100]}")
        groups = [type(field.default) for field in dataclasses.fields(cls) if isinstance(field.default, Params)]

        def advice(place: str, name: str) -> str:
            return f"JSON holds only the name {readable(name)}; pass {place.partition('.')[0]}=..."

        return cls.from_plain(fields, PlainReader({group.__name__: group for group in groups}, advice), live)

    def _tostring_object_info(self) -> str:
        texts = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            # The text of a live object can be long, and differ from run to run; so does the repr of params, by an id.
            is_live = not (field.compare or value is None or value == ())
            text = f"{type(value).__name__}[id={id(value)}]" if is_live else repr(value)
            texts[field.name] = str(value) if isinstance(value, Params) else text
        return ", ".join(f"{name}={text}" for name, text in texts.items())


def _owners(parent: type[Params], field: str) -> list[str]:
    """Return our classes below this one that are the first to declare the field."""
    ours = [cls for cls in parent.__subclasses__() if cls.__module__.startswith("rltrainer.")]
    declares = {cls: field in vars(cls).get("__annotations__", {}) for cls in ours}
    return [name for cls in ours for name in ([cls.__name__] if declares[cls] else _owners(cls, field))]


@functools.cache
def _field_rules(cls: Any) -> dict[str, list[Rule]]:
    return {name: rules_of(hint) for name, hint in field_hints(cls).items()}
