"""The table of planted mistakes fits the code and the tests: `make mutants` itself takes minutes."""

import ast
from pathlib import Path

import pytest

from tests.planted import MUTANTS, Mutant

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mistake_can_be_planted(mutant: Mutant) -> None:
    source = (ROOT / mutant.file).read_text()
    planted = mutant.planted(source)
    assert ast.dump(ast.parse(planted)) != ast.dump(ast.parse(source))


@pytest.mark.parametrize("test", sorted({test for mutant in MUTANTS for test in mutant.tests}))
def test_the_tests_that_find_it_are_there(test: str) -> None:
    path, _, name = test.partition("::")
    assert (ROOT / path).exists()
    assert not name or f"def {name}(" in (ROOT / path).read_text()


def test_names_differ() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) == len(set(names)) >= 20


def test_code_that_stands_there_twice_is_no_place() -> None:
    mutant = Mutant("a mistake", "a.py", "x", "y", ())
    assert mutant.planted("1 + x") == "1 + y"
    with pytest.raises(ValueError, match="a mistake: expected 'x' once in a.py, found it 2 times"):
        mutant.planted("x + x")
