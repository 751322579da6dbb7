"""The package's syntax tree, walked for every way in which a file could become code (promise 10).

`tests/test_architecture.py` forbids `eval`, `exec`, `torch.load`, pickles and their like without exception. Here are
the ways that some modules need, each with the reason why no file reaches it.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "rltrainer"

FORBIDDEN = {
    "ForkingPickler", "Popen", "check_output", "ctypes", "exec_module", "find_spec", "globals", "import_module",
    "locals", "methodcaller", "popen", "safe_globals",
    "spec_from_file_location", "system", "weights_only",
}  # fmt: skip
"""Names that are not even mentioned, wherever they come from."""

EXCEPTIONS = {
    ("__init__.py", "globals"): "lists the public names",
    ("processes/channel.py", "ForkingPickler"): "pickles between our own processes, through pipes, not files",
    ("processes/worker.py", "Popen"): "runs this interpreter, with a program and a folder's name from there",
    ("loggers/services.py", "find_spec"): "asks whether a package is there whose name is written there",
}

READERS = {
    "from_state", "from_plain", "from_json", "of_state", "of_progress", "prepare_load", "prepare_ring", "read", "load",
    "load_state_dict", "set_extra_state", "restore", "check_state_dict", "check_module", "check_part", "load_part",
    "take_progress", "read_state", "read_buffer", "decoded", "prepare_sampling", "read_run", "read_checkpoint",
    "check_state", "set_state",
}  # fmt: skip
"""Functions that are given what was read from files; `_read...` are too."""

BY_NAME = {
    ("updates/adam.py", "check_state_dict"): "names are those of a tuple in the code",
    ("updates/adam.py", "load_state_dict"): "the same",
    ("hooks/batch_recorder.py", "load"): "names are those of a dataclass",
}
"""Where such a function takes or sets an attribute by a name that is not written there, and why no file has it."""


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield str(path.relative_to(PACKAGE)), ast.parse(path.read_text())


def names_in(tree: ast.AST) -> set[str]:
    """Return every name that code mentions: variables, attributes, imports, keywords."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                found.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found |= {part for alias in names for part in alias.name.split(".")}
    return found


def by_name(tree: ast.AST) -> Iterator[str]:
    """Yield the functions that read, and take or set attributes by names that are not written there."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        if function.name not in READERS and not function.name.startswith(("_read", "_load", "_prepare")):
            continue
        for node in ast.walk(function):
            match node:
                case ast.Call(func=ast.Name(id="getattr" | "setattr" | "delattr"), args=[_, name, *_]):
                    if not isinstance(name, ast.Constant):
                        yield function.name
                case ast.Call(func=ast.Attribute(attr="__setattr__" | "__getattribute__")):
                    yield function.name
                case ast.Attribute(value=ast.Call(func=ast.Name(id="vars")), attr="update"):
                    yield function.name


def test_no_file_becomes_code() -> None:
    found = {(path, name) for path, tree in modules() for name in names_in(tree) & FORBIDDEN}
    assert found == EXCEPTIONS.keys()


def test_no_attribute_is_taken_or_set_by_a_name_from_a_file() -> None:
    assert {(path, name) for path, tree in modules() for name in by_name(tree)} == BY_NAME.keys()


def test_files_are_opened_only_where_somebody_looks_at_what_they_are() -> None:
    """Who opens files is written here; everybody else has `open_regular`."""
    found = {path for path, tree in modules() if opens_files(tree)}
    assert [path for path in found if not path.startswith(tuple(OPENERS))] == []
    assert [path for path in OPENERS if not any(each.startswith(path) for each in found)] == []


def opens_files(tree: ast.AST) -> bool:
    """Return whether code opens files by itself."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="open" | "FileIO" | "safe_open" | "load_file")):
                return True
            case ast.Attribute(attr="read_text" | "read_bytes" | "FileIO" | "memmap" | "fromfile" | "from_file"):
                return True
            case ast.Attribute(value=ast.Name(id="os" | "io"), attr="open"):
                return True
    return False


OPENERS = {
    "files/regular_file.py": "what everybody else calls",
    "state/state_file.py": "has safetensors map what `open_regular` has opened",
    "checkpoint/": "looks at what each name is before",
    "files/atomic_write.py": "writes",
    "loggers/log_state.py": "bytes of a log that is appended to, never more than were written",
    "loggers/file_logger.py": "lines of a log; a pipe is refused by the constructor",
    "data/memory_forecast.py": "what the system says",
    "hooks/resources.py": "what the system says",
    "nets/linear.py": "what the system says",
    "ranks/board.py": "memory of another rank's, of numbers alone",
    "processes/program.py": "what the system says",
    "ranks/torch_ranks.py": "what the system says",
    "tools/runs/ranked.py": "where no output goes",
}


WAYS = [
    "import importlib; importlib.import_module(name)", "from importlib import import_module as load",
    "torch.serialization.safe_globals([A])", "import ctypes.util", "torch.load(file, weights_only=False)",
    "globals()[name]()",
]  # fmt: skip
BY_NAMES = [
    "setattr(self, name, 1)", "getattr(self, state['x'])()", "vars(self).update(state)", "object.__setattr__(a, b, c)",
]  # fmt: skip


def test_every_way_is_seen() -> None:
    assert [source for source in WAYS if not names_in(ast.parse(source)) & FORBIDDEN] == []
    for body in BY_NAMES:
        assert list(by_name(ast.parse(f"class A:\n    def prepare_load(self, state):\n        {body}")))
        assert not list(by_name(ast.parse(f"def unrelated():\n    {body}")))
    assert not list(by_name(ast.parse("def load(a):\n    getattr(a, 'x', None)")))
