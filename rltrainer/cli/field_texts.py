"""The words that explain a field: written once, at the field, and read from there."""

import ast
import inspect
import itertools
import re
import textwrap
from typing import Any


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
    """Return what a class says of its constructor's arguments, its parents too: the section `Args` of docstrings."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        section = re.search(r"^Args:\n((?: {4}.*\n?|\n)*)", inspect.cleandoc(each.__doc__ or ""), re.MULTILINE)
        entries = re.split(r"^(?=\w+(?:, \w+)*: )", textwrap.dedent(section[1]), flags=re.MULTILINE) if section else []
        for entry in filter(None, entries):
            names, _, words = entry.partition(": ")
            found.update(dict.fromkeys(re.split(r", ", names), " ".join(words.split())))
    return found


def _definition(cls: type[Any]) -> ast.ClassDef:
    node = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(node, ast.ClassDef), "the source of a class"
    return node
