"""The house, read from the syntax tree of every module: floors, cycles, forbidden calls, names, sizes, docstrings.

Each rule is a function from the package's modules to complaints. It is asserted on rltrainer, and on small made-up
packages that break it.
"""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "rltrainer"
FLOORS = {
    "tools": 6,
    "trainers": 5,
    "hooks": 4,
    "checkpoint": 4,
    "algorithms": 3,
    "collect": 3,
    "execution": 2,
    "updates": 2,
    "nets": 1,
    "data": 1,
    "envs": 1,
    "loggers": 1,
    "functional": 0,
    "state": 0,
    "validation": 0,
    "processes": 0,
    "ranks": 0,
    "files": 0,
}
ROOF_FLOOR = 7
ROOF = {"__init__", "__main__"}
"""Top-level modules on the highest floor; all others are on floor 0."""

WORDS = {"errors", "types", "tree", "spaces", "seeding", "schedules", "interval", "plan", "device"}
"""The single files at the top level: the words of the domain, which every room may use."""

FORBIDDEN_MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "runpy"}
FORBIDDEN_NAMES = {
    "eval", "exec", "__import__", "builtins.eval", "builtins.exec", "builtins.__import__", "importlib.import_module",
    "importlib.__import__", "torch.load", "torch.save", "yaml.load", "yaml.load_all", "yaml.full_load",
    "yaml.unsafe_load",
}  # fmt: skip
DRAWERS = {"util", "utils", "common", "helper", "helpers", "misc", "base"}
MAX_LINES = 600
"""A file is one idea, as large as that is; a longer one needs a reason."""

SATELLITES = {
    "algorithms.part_state": "what is saved of an algorithm and how, not what it learns",
    "tools.cli.doctor": "a command of its own",
    "tools.cli.run_commands": "commands of their own",
    "tools.cli.sweep_command": "a command of its own",
    "tools.cli.verify": "a command of its own",
    "ranks.board": "memory that ranks share, not who they are and what befalls them",
    "collect.tensor_rollouts": "rollouts without an object per step, not the loop of those with one",
    "tools.sweeps.trial_process": "the program of another process",
    "trainers.run_log": "where the numbers of a run go, not what a run does",
    "trainers.same_program": "what must not differ between processes, not how a run is split",
}
"""Files that only one other file of their room imports, each with the reason why it is not a part of that one."""

Modules = dict[str, str]
"""Dotted module names, a package's `__init__` included, and their source: `rltrainer.data.__init__`."""


def read_package() -> Modules:
    paths = sorted(PACKAGE.rglob("*.py"))
    return {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path.read_text() for path in paths}


def imports(module: str, modules: Modules) -> set[str]:
    """Return the package's own modules that a module imports, in functions and for types too."""
    found = set()
    for node in ast.walk(ast.parse(modules[module])):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".")[: -node.level] if node.level else []
            origin = ".".join([*package, *([node.module] if node.module else [])])
            # `from rltrainer import errors` imports the module errors, not something from rltrainer/__init__.py.
            names = [
                name if is_module(name, modules) else origin for name in (f"{origin}.{a.name}" for a in node.names)
            ]
        else:
            continue
        found |= {name if name in modules else f"{name}.__init__" for name in names if is_module(name, modules)}
    return found


def is_module(name: str, modules: Modules) -> bool:
    return name in modules or f"{name}.__init__" in modules


def room(module: str) -> str:
    """Return a module's room: `data` for `rltrainer.data.replay`, the module's own name at the top level."""
    return module.split(".")[1]


def floor(module: str) -> int | None:
    if module.count(".") > 1:
        return FLOORS.get(room(module))
    return ROOF_FLOOR if room(module) in ROOF else 0


def rooms_without_a_floor(modules: Modules) -> Iterator[str]:
    for module in modules:
        if floor(module) is None:
            yield f"{module}: the room {room(module)!r} is on no floor"


def imports_that_do_not_point_down(modules: Modules) -> Iterator[str]:
    for module in modules:
        for imported in sorted(imports(module, modules)):
            here, there = floor(module), floor(imported)
            if here is None or there is None or room(module) == room(imported):
                continue
            if there > here or (there == here and here not in (0, ROOF_FLOOR)):
                yield f"{module} (floor {here}) imports {imported} (floor {there})"


def room_cycles(modules: Modules) -> Iterator[str]:
    """Yield a cycle among the rooms of each package: its sub-packages and its own files."""
    packages = {module.removesuffix(".__init__") for module in modules if module.endswith(".__init__")}
    for package in sorted(packages):
        depth = package.count(".") + 2
        rooms: dict[str, set[str]] = {}
        for module in modules:
            if not module.startswith(package + ".") or module == f"{package}.__init__":
                continue
            found = {i for i in imports(module, modules) if i.startswith(package + ".") and i != f"{package}.__init__"}
            here = ".".join(module.split(".")[:depth])
            rooms.setdefault(here, set()).update({".".join(i.split(".")[:depth]) for i in found} - {here})
        yield from cycles(rooms)


def single_files(modules: Modules) -> Iterator[str]:
    for module in modules:
        if module.count(".") == 1 and (name := room(module)) not in WORDS | ROOF:
            yield f"{module}: {name!r} is none of the words at the top level; it belongs in a room"


def import_cycles(modules: Modules) -> Iterator[str]:
    """Yield one cycle for each module from which depth-first search finds a way back into its own path."""
    yield from cycles({module: imports(module, modules) for module in modules})


def cycles(graph: dict[str, set[str]]) -> Iterator[str]:
    """Yield one cycle for each node from which depth-first search finds a way back into its own path."""
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> Iterator[str]:
        if node in path:
            yield " -> ".join([*path[path.index(node) :], node])
        elif node not in done:
            for other in sorted(graph[node]):
                yield from visit(other, [*path, node])
            done.add(node)

    for node in graph:
        yield from visit(node, [])


def forbidden_code(modules: Modules) -> Iterator[str]:
    """Yield what could run code from a file, whatever it is called here (`import torch as t; t.load`)."""
    for module, source in modules.items():
        tree = ast.parse(source)
        origins = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    origins[alias.asname or alias.name.split(".")[0]] = (
                        alias.name if alias.asname else alias.name.split(".")[0]
                    )
                    if alias.name.split(".")[0] in FORBIDDEN_MODULES:
                        yield f"{module}:{node.lineno} imports {alias.name}"
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                origins |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
                if node.module.split(".")[0] in FORBIDDEN_MODULES:
                    yield f"{module}:{node.lineno} imports {node.module}"
        for node in ast.walk(tree):
            if (name := dotted(node, origins)) in FORBIDDEN_NAMES:
                yield f"{module}:{node.lineno} uses {name}"
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and not is_false(node.value):
                yield f"{module}:{node.value.lineno} allows pickle"


def dotted(node: ast.AST, origins: dict[str, str]) -> str:
    """Return the full name that an expression refers to, or `` if it starts from no import and no builtin."""
    if isinstance(node, ast.Name):
        return origins.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return f"{owner}.{node.attr}" if (owner := dotted(node.value, origins)) else ""
    return ""


def is_false(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def drawers(modules: Modules) -> Iterator[str]:
    for module in modules:
        for part in module.split("."):
            if part.strip("_").lower() in DRAWERS:
                yield f"{module}: {part!r} says nothing of what is in it"


def long_files(modules: Modules) -> Iterator[str]:
    for module, source in modules.items():
        if (num_lines := len(source.splitlines())) > MAX_LINES:
            yield f"{module}: {num_lines} lines, more than {MAX_LINES}"


def satellites(modules: Modules) -> Iterator[str]:
    """Yield the satellites that have no reason."""
    for complaint in satellites_of(modules):
        if complaint.partition(":")[0].removeprefix("rltrainer.") not in SATELLITES:
            yield complaint


def satellites_of(modules: Modules) -> Iterator[str]:
    """Yield modules that one other module of their package imports, and no module elsewhere."""
    importers: dict[str, set[str]] = {}
    for module in modules:
        for imported in imports(module, modules):
            importers.setdefault(imported, set()).add(module)
    for module, found in importers.items():
        (only, *others) = found
        package, _, name = module.rpartition(".")
        is_beside = only.rpartition(".")[0] == package and not only.endswith(".__init__")
        if not others and is_beside and name != "__init__":
            yield f"{module}: only {only} imports it"


def missing_docstrings(modules: Modules) -> Iterator[str]:
    """Yield modules, public functions, classes and their public methods that say nothing."""
    for module, source in modules.items():
        tree = ast.parse(source)
        if source.strip() and ast.get_docstring(tree) is None:
            yield f"{module} has no docstring"
        yield from (f"{module}.{name} has no docstring" for name in undocumented(tree))


def undocumented(parent: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[str]:
    for node in parent.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        if ast.get_docstring(node) is None and not is_redefinition(node):
            yield prefix + node.name
        if isinstance(node, ast.ClassDef):
            yield from undocumented(node, f"{prefix}{node.name}.")


def is_redefinition(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """Return whether a name is documented elsewhere: an overload, an override that says so, a property's setter."""
    marks = [ast.unparse(decorator).split(".")[-1] for decorator in node.decorator_list]
    return any(mark in ("overload", "override", "setter", "deleter") for mark in marks)


RULES: list[Callable[[Modules], Iterator[str]]] = [
    rooms_without_a_floor, imports_that_do_not_point_down, import_cycles, room_cycles, single_files, forbidden_code,
    drawers, long_files, satellites, missing_docstrings,
]  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_house(rule: Callable[[Modules], Iterator[str]]) -> None:
    assert list(rule(read_package())) == []


def test_each_satellite_is_one() -> None:
    assert len(SATELLITES) <= 15
    modules = read_package()
    found = {text.partition(":")[0].removeprefix("rltrainer.") for text in satellites_of(modules)}
    assert found == set(SATELLITES)


def test_the_whole_package_is_read() -> None:
    modules = read_package()
    assert {"rltrainer.__init__", "rltrainer.errors", "rltrainer.loggers.logger"} <= set(modules)
    assert "rltrainer.errors" in imports("rltrainer.loggers.logger", modules)


def small_house(**sources: str) -> Modules:
    """Return a package in which `data__replay="..."` stands for rltrainer/data/replay.py."""
    modules = {
        "rltrainer.__init__": "", "rltrainer.errors": "", "rltrainer.data.__init__": "", "rltrainer.data.replay": "",
    }  # fmt: skip
    return modules | {"rltrainer." + name.replace("__", ".", 1): source for name, source in sources.items()}


@pytest.mark.parametrize(("statement", "imported"), [
    ("import rltrainer", "rltrainer.__init__"),
    ("import rltrainer.data.replay", "rltrainer.data.replay"),
    ("import rltrainer.errors as e", "rltrainer.errors"),
    ("from rltrainer import errors", "rltrainer.errors"),
    ("from rltrainer import seed", "rltrainer.__init__"),
    ("from rltrainer.errors import ParamsError", "rltrainer.errors"),
    ("from rltrainer.data import ReplayBuffer", "rltrainer.data.__init__"),
    ("from rltrainer.data import replay", "rltrainer.data.replay"),
    ("from ..data import replay", "rltrainer.data.replay"),
    ("from ..data.replay import ReplayBuffer", "rltrainer.data.replay"),
    ("from .. import errors", "rltrainer.errors"),
    ("def f():\n    from rltrainer import errors", "rltrainer.errors"),
    ("if TYPE_CHECKING:\n    import rltrainer.errors", "rltrainer.errors"),
])  # fmt: skip
def test_every_way_to_import_is_seen(statement: str, imported: str) -> None:
    modules = small_house(collect__collector=statement)
    assert imports("rltrainer.collect.collector", modules) == {imported}


def test_foreign_imports_are_not_the_packages() -> None:
    modules = small_house(collect__collector="import torch\nfrom torch import nn\nfrom rltrainer_extras import data")
    assert imports("rltrainer.collect.collector", modules) == set()


@pytest.mark.parametrize(("importer", "statement"), [
    ("data__replay", "from rltrainer.collect import Collector"),  # up
    ("errors", "import rltrainer.data.replay"),  # up from the ground
    ("functional__losses", "from rltrainer.data import replay"),
    ("data__replay", "from rltrainer.nets.heads import Head"),  # beside
    ("collect__collector", "from rltrainer.algorithms.ppo import PPO"),
    ("data__replay", "from rltrainer import ReplayBuffer"),  # the roof
    ("hooks__hook", "def f():\n    from rltrainer.checkpoint import save"),
])  # fmt: skip
def test_an_import_up_or_beside_is_found(importer: str, statement: str) -> None:
    others = {"collect____init__": "", "nets__heads": "", "algorithms__ppo": "", "checkpoint____init__": ""}
    complaints = list(imports_that_do_not_point_down(small_house(**others | {importer: statement})))
    assert len(complaints) == 1
    assert "rltrainer." + importer.replace("__", ".", 1) in complaints[0]


@pytest.mark.parametrize(("importer", "statement"), [
    ("data__replay", "from rltrainer.errors import ParamsError"),
    ("data__replay", "from rltrainer.data.rollout import RolloutBuffer"),
    ("trainers__trainer", "from rltrainer.data import ReplayBuffer"),
    ("errors", "import rltrainer.functional.losses"),
    ("functional__losses", "import rltrainer.errors"),
    ("__init__", "from rltrainer.data import ReplayBuffer"),
])  # fmt: skip
def test_an_import_down_or_within_a_room_is_allowed(importer: str, statement: str) -> None:
    modules = small_house(data__rollout="", functional__losses="")
    modules["rltrainer." + (importer if importer == "__init__" else importer.replace("__", ".", 1))] = statement
    assert list(imports_that_do_not_point_down(modules)) == []


def test_an_unknown_room_is_found() -> None:
    assert list(rooms_without_a_floor(small_house(attic__box=""))) == [
        "rltrainer.attic.box: the room 'attic' is on no floor"
    ]


def test_cycles_are_found_once() -> None:
    modules = small_house(
        a="import rltrainer.b", b="from rltrainer import c", c="import rltrainer.a", d="import rltrainer.a"
    )
    assert list(import_cycles(modules)) == ["rltrainer.a -> rltrainer.b -> rltrainer.c -> rltrainer.a"]


def test_a_module_that_imports_its_own_room_is_a_cycle() -> None:
    modules = small_house(data__replay="from rltrainer.data import RolloutBuffer")
    modules["rltrainer.data.__init__"] = "from rltrainer.data.replay import ReplayBuffer"
    assert len(list(import_cycles(modules))) == 1


def test_a_diamond_is_no_cycle() -> None:
    modules = small_house(a="import rltrainer.b, rltrainer.c", b="import rltrainer.d", c="import rltrainer.d", d="")
    assert list(import_cycles(modules)) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle", "import pickle as p", "from pickle import loads", "def f():\n    import marshal",
        "import shelve", "eval(text)", "run = exec", "map(eval, texts)", "__import__('os')",
        "import builtins\nbuiltins.eval(text)", "import importlib\nimportlib.import_module(name)",
        "from importlib import import_module\nimport_module(name)", "import importlib as i\ni.import_module(name)",
        "import torch\ntorch.load(path)", "import torch as t\nt.load(path)",
        "from torch import load as read\nread(path)", "import torch.nn\ntorch.load(path)",
        "import yaml\nyaml.load(text)", "import numpy as np\nnp.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=flag)",
    ],
)  # fmt: skip
def test_forbidden_code_is_found(source: str) -> None:
    assert list(forbidden_code(small_house(data__replay=source)))


@pytest.mark.parametrize(
    "source",
    [
        "policy.eval()", "import torch.nn as nn\nnn.Linear(1, 1).eval()", "self.load(path)",
        "import json\njson.load(file)", "import numpy as np\nnp.load(path, allow_pickle=False)",
        "import importlib.metadata\nimportlib.metadata.version('torch')", "import yaml\nyaml.safe_load(text)",
        "def load(path): ...\nload(path)", "text = 'eval(this) with pickle'",
    ],
)  # fmt: skip
def test_harmless_code_is_not(source: str) -> None:
    assert list(forbidden_code(small_house(data__replay=source))) == []


@pytest.mark.parametrize("name", ["data__utils", "helpers", "common____init__", "data___base", "nets__Misc"])
def test_drawers_are_found(name: str) -> None:
    assert len(list(drawers(small_house(**{name: ""})))) == 1


def test_long_files_are_found() -> None:
    assert list(long_files(small_house(a="x = 1\n" * 600))) == []
    assert list(long_files(small_house(a="x = 1\n" * 601))) == ["rltrainer.a: 601 lines, more than 600"]


def test_satellites_are_found() -> None:
    beside = small_house(data__ring="", data__replay="from rltrainer.data.ring import Ring")
    assert list(satellites(beside)) == ["rltrainer.data.ring: only rltrainer.data.replay imports it"]
    shared = beside | {"rltrainer.data.other": "from rltrainer.data import ring"}
    elsewhere = small_house(data__ring="", collect__collector="from rltrainer.data.ring import Ring")
    offered = small_house(data__ring="") | {"rltrainer.data.__init__": "from rltrainer.data.ring import Ring"}
    assert [list(satellites(house)) for house in (shared, elsewhere, offered)] == [[], [], []]


def test_missing_docstrings_are_found() -> None:
    source = (
        "def f(): ...\ndef _g(): ...\ndef h():\n    'Say so.'\n    def inner(): ...\n"
        "class C:\n    def m(self): ...\n    def __len__(self): ...\n    @override\n    def o(self): ...\n"
    )
    found = [text.split()[0] for text in missing_docstrings(small_house(a=source))]
    assert found == ["rltrainer.a", "rltrainer.a.f", "rltrainer.a.C", "rltrainer.a.C.m"]
