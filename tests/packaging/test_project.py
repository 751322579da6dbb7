"""What the project says of itself agrees: versions, interpreters, extras and the packages that they bring."""

import ast
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import yaml
from packaging.requirements import Requirement

import rltrainer as rl
from rltrainer.envs.make_vec import _EXTRAS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGE = {path: path.read_text() for path in sorted((ROOT / "rltrainer").rglob("*.py"))}


def distribution(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def brought_by() -> dict[str, set[str]]:
    """Return the distributions that each extra names, and under `` those that are always there."""
    listed = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    return {extra: {distribution(Requirement(text).name) for text in texts} for extra, texts in listed.items()}


def foreign_imports() -> dict[str, Path]:
    """Return the packages of others that some module of ours imports, anywhere in it."""
    found = {}
    for path, source in PACKAGE.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0]: path for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found[node.module.partition(".")[0]] = path
    return {name: path for name, path in found.items() if name not in (*sys.stdlib_module_names, "rltrainer")}


OF_USERS = {"jax", "gymnax"}
"""Packages of the envs that an adapter is given: who has such an env has them."""


def test_whatever_is_imported_comes_with_an_extra() -> None:
    distributions = metadata.packages_distributions()
    brought = set().union(*brought_by().values())
    imported = foreign_imports()
    assert {"torch", "matplotlib", "onnx"} <= set(imported)
    missing = {
        name: str(path.relative_to(ROOT))
        for name, path in imported.items()
        if name not in OF_USERS and not {distribution(each) for each in distributions.get(name, [name])} & brought
    }
    assert missing == {}


def test_errors_name_extras_that_are_there() -> None:
    """An extra is an argument of `install_extra`, or the second one of `importing_extra`."""
    call = r"""(?:install_extra\(|importing_extra\([^,]*, )["'](\w+)["']"""
    named = {extra for source in PACKAGE.values() for extra in re.findall(call, source)} | set(_EXTRAS.values())
    assert named >= {"onnx", "plot", "cli", "mujoco"}
    assert named <= set(PROJECT["optional-dependencies"])
    assert [
        name for name, source in PACKAGE.items() if re.search(r"\bin a clone|`make |python examples/", source)
    ] == []


def test_everything_that_extras_name_is_pinned_and_developers_have_all_of_it() -> None:
    (own,) = [Requirement(text) for text in PROJECT["optional-dependencies"]["dev"] if text.startswith("rltrainer")]
    assert own.extras == set(PROJECT["optional-dependencies"]) - {"dev"}
    lines = (ROOT / "requirements" / "dev.txt").read_text().splitlines()
    pinned = {distribution(line.partition("==")[0]): line.partition("==")[2] for line in lines if "==" in line}
    assert all(pinned.values())
    for extra, names in brought_by().items():
        assert names - {"torch", "rltrainer"} <= set(pinned), extra
    texts = [text for texts in PROJECT["optional-dependencies"].values() for text in texts]
    for requirement in map(Requirement, [*PROJECT["dependencies"], *texts]):
        if (name := distribution(requirement.name)) in pinned:
            assert requirement.specifier.contains(pinned[name]), requirement


def test_versions_and_interpreters_agree() -> None:
    newest = re.search(r"^## \[(.+?)\] - (Unreleased|\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest is not None
    assert newest[1] == rl.__version__
    named = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert named == ["3.11", "3.12", "3.13"]
    assert PROJECT["requires-python"] == f">={named[0]}"
    for page in ("README.md", "CONTRIBUTING.md", "docs/installing.md"):
        assert f"Python {named[0]} to {named[-1]}" in (ROOT / page).read_text(), page


def test_the_citation_is_complete() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors", "license", "type"} <= set(citation)
    assert (citation["license"], citation["version"]) == (PROJECT["license"], rl.__version__)
    assert citation["authors"] == [{"name": author["name"]} for author in PROJECT["authors"]]
