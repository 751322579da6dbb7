"""The parent of every params dataclass: frozen, keyword-only, checked at construction, printed, written as JSON."""

import dataclasses
import difflib
import functools
import json
from typing import Any, Self, get_type_hints

from sensai.util.string import ToStringMixin  # type: ignore[import-untyped]

from rltrainer.errors import ParamsError, field_error_text
from rltrainer.rules import Rule, rules_of


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Params(ToStringMixin):  # type: ignore[misc]  # sensai ships no types
    """Check every field against the rule in its type.

    A field that holds a live object (a collector, a callback) is declared with `compare=False`: it prints as class and
    id, and JSON holds only its name.

    Raises:
        ParamsError: a value breaks its field's rule; the text names class, field, rule and value.
    """

    def __post_init__(self) -> None:
        for name, rules in _field_rules(type(self)).items():  # type: ignore[arg-type]  # a class is hashable
            value = getattr(self, name)
            if rules and not any(rule.accepts(value) for rule in rules):
                self.refuse(name, "must be " + " or ".join(rule.text for rule in rules))

    def refuse(self, field: str, rule: str, hint: str = "") -> None:
        """Raise a `ParamsError` about this field's value."""
        raise ParamsError(field_error_text(type(self).__name__, field, rule, getattr(self, field), hint))

    def to_json(self) -> str:
        """Return the params as JSON text; live objects and callables are written as their names."""
        values = {field.name: _as_json(getattr(self, field.name)) for field in dataclasses.fields(self)}
        return json.dumps({"params": type(self).__name__, "fields": values}, indent=2)

    @classmethod
    def from_json(cls, text: str, **live: Any) -> Self:
        """Rebuild params from `to_json` text.

        Args:
            text: what `to_json` wrote.
            live: the objects and callables that JSON can only name; also overrides any other field.

        Raises:
            ParamsError: the text is not JSON of this class, a name is unknown, or a live object is missing.
        """
        try:
            document = json.loads(text)
            written_by, values = document["params"], dict(document["fields"])
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ParamsError(
                f"{cls.__name__}.from_json: the text is not JSON written by to_json ({error!r})"
            ) from error
        if written_by != cls.__name__:
            raise ParamsError(f"{cls.__name__}.from_json: the text describes a {written_by}")
        known = [field.name for field in dataclasses.fields(cls)]
        for name in [*values, *live]:
            if name not in known:
                nearest = difflib.get_close_matches(name, known, n=1)
                hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
                raise ParamsError(f"{cls.__name__}.from_json: unknown field {name!r}.{hint}")
        values = {name: _from_json(cls, name, value) for name, value in values.items() if name not in live} | live
        for field in dataclasses.fields(cls):
            has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
            if field.name not in values and not has_default:
                raise ParamsError(f"{cls.__name__}.{field.name}: the text lacks this field; pass {field.name}=...")
        return cls(**values)

    def _tostring_object_info(self) -> str:
        """List the fields in their order; a live object's own text can be long and need not be stable, so not that."""
        texts = {field.name: _as_text(getattr(self, field.name), field.compare) for field in dataclasses.fields(self)}
        return ", ".join(f"{name}={text}" for name, text in texts.items())


@functools.cache
def _field_rules(cls: type[Params]) -> dict[str, list[Rule]]:
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: rules_of(hints[field.name]) for field in dataclasses.fields(cls)}


def _as_json(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [_as_json(item) for item in value]
    if isinstance(value, Params):
        return json.loads(value.to_json())
    return {"live": getattr(value, "__qualname__", type(value).__qualname__)}


def _from_json(cls: type[Params], name: str, value: object) -> object:
    """Return a field's value; JSON knows no tuples, and params are frozen, so a list was a tuple."""
    if isinstance(value, list):
        return tuple(_from_json(cls, name, item) for item in value)
    if isinstance(value, dict) and "params" in value:
        # The class is the default's: no name is looked up for a file.
        group = next(field.default for field in dataclasses.fields(cls) if field.name == name)
        if isinstance(group, Params):
            return type(group).from_json(json.dumps(value))
    if isinstance(value, dict):
        raise ParamsError(f"{cls.__name__}.{name}: JSON holds only the name {value.get('live')!r}; pass {name}=...")
    return value


def _as_text(value: object, is_plain: bool) -> str:
    if isinstance(value, Params):
        return str(value)  # its repr has an id
    is_plain = is_plain or value is None or value == ()
    return repr(value) if is_plain else f"{type(value).__name__}[id={id(value)}]"
