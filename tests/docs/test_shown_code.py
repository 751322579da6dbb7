"""What pages show of the library is the library's code, without docstrings and annotations.

A comment before a block, `<!-- rltrainer/.../tqc.py -->`, says which file its classes are from. A page may leave out
members of a class, and write `rl.SAC` for what the file imports as `SAC`.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHOWN = re.compile(r"^<!-- (rltrainer/\S+\.py) -->\n+```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [
    (path.name, *found)
    for path in sorted((ROOT / "docs").rglob("*.md"))
    for found in SHOWN.findall(path.read_text(encoding="utf-8"))
]


class Bare(ast.NodeTransformer):
    """Takes away what a page leaves out: docstrings, annotations of functions, `rl.`."""

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.body = [part for part in node.body if not (isinstance(part, ast.AnnAssign) and part.value is None)]
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        node.body = [
            ast.Assign([part.target], part.value) if isinstance(part, ast.AnnAssign) and part.value else part
            for part in node.body
        ]
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        is_docstring = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_docstring else self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id == "rl":
            return ast.Name(node.attr, node.ctx)
        return self.generic_visit(node)


def classes(code: str) -> dict[str, tuple[str, dict[str, str]]]:
    """Return of each class its head, and its members by name, as text."""
    found = {}
    for node in Bare().visit(ast.parse(code)).body:
        if isinstance(node, ast.ClassDef):
            members = {name_of(part): ast.unparse(ast.fix_missing_locations(part)) for part in node.body}
            node.body = []
            found[node.name] = ast.unparse(node), members
    return found


def name_of(part: ast.stmt) -> str:
    if isinstance(part, ast.FunctionDef):
        return part.name
    return ast.unparse(part.targets[0] if isinstance(part, ast.Assign) else getattr(part, "target", part))


def differences(shown: str, code: str) -> list[str]:
    """Return the names of what a page shows in another way than the code has it."""
    wrong, ours = [], classes(code)
    for name, (head, members) in classes(shown).items():
        our_head, our_members = ours.get(name, ("", {}))
        wrong += [name] * (head != our_head)
        wrong += [f"{name}.{member}" for member, text in members.items() if text != our_members.get(member)]
    return wrong


def test_what_is_shown_is_the_code() -> None:
    for page, file, shown in BLOCKS:
        assert classes(shown)
        assert differences(shown, (ROOT / file).read_text()) == [], f"{page} shows other code than {file}"
    pages = "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    assert len(BLOCKS) == pages.count("<!-- rltrainer/") >= 3


CODE = """
class A(B):
    'A docstring.'
    x: int = 1
    y: int
    def f(self, q: int) -> int:
        z: int = q
        return z
"""


def test_differences_are_found() -> None:
    same = "class A(rl.B):\n    x: int = 1\n    def f(self, q):\n        z = q\n        return z"
    assert differences(same, CODE) == []
    assert differences("class A(B):\n    x: int = 2\n    def f(self, q):\n        return z", CODE) == ["A.x", "A.f"]
    assert differences("class A(rl.C):\n    x: int = 1", CODE) == ["A"]
    assert differences("class B:\n    w = 1", CODE) == ["B", "B.w"]
