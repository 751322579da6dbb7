"""Each typical mistake ends in an error that names the field, shows the value and says what to do."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import rltrainer as rl
from rltrainer.tools.cli import main
from tests.mistakes.arguments import ARGUMENTS
from tests.mistakes.table import COMMANDS, MISTAKES
from tests.mistakes.world import names, write_files

ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}|\bid=\d{9,}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("mistakes")
    write_files(made)
    return made


@pytest.fixture(scope="module")
def world() -> dict[str, Any]:
    """Return names for code that changes none of what they name."""
    return names()


def lacks(text: str, *parts: str) -> list[str]:
    """Return what a text should have and has not, and what it has that it should not."""
    return [part for part in parts if part not in text] + ADDRESS.findall(text)


@pytest.mark.parametrize(("does", "error", "name", "value", "remedy"), MISTAKES, ids=[row[0] for row in MISTAKES])
def test_a_mistake_is_explained(
    does: str, error: type[Exception], name: str, value: str, remedy: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(rl.errors.RLTrainerError) as caught:
        exec(does, names())
    text = str(caught.value)
    assert caught.type is error, text
    assert lacks(text, name, value, remedy) == [], text
    assert [note for note in getattr(caught.value, "__notes__", []) if ADDRESS.search(note)] == []


@pytest.mark.parametrize(("does", "error", "text"), ARGUMENTS, ids=[row[0] for row in ARGUMENTS])
def test_an_argument_that_breaks_a_rule_is_named(
    does: str, error: type[Exception], text: str, folder: Path, world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(rl.errors.RLTrainerError) as caught:
        exec(does, world)
    assert caught.type is error, caught.value
    pattern = ".*".join(map(re.escape, text.removesuffix("$").split("~"))) + r"\Z" * text.endswith("$")
    assert re.match(pattern, str(caught.value), re.DOTALL), caught.value
    own, _, _ = str(caught.value).partition("PicklingError")  # Python's text has an address
    assert not ADDRESS.search(own)


@pytest.mark.parametrize(("command", "status", "name", "value", "remedy"), COMMANDS, ids=[row[0] for row in COMMANDS])
def test_a_mistaken_command_is_explained(
    command: str, status: int, name: str, value: str, remedy: str, folder: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(folder)
    assert main(shlex.split(command)) == status
    printed = capsys.readouterr()
    text = " ".join((printed.out + printed.err).split())
    assert lacks(text, name, value, remedy) == [], text
    assert "Traceback" not in text


def test_there_are_many_of_all_kinds() -> None:
    assert len({row[0] for row in [*MISTAKES, *COMMANDS]}) == len(MISTAKES) + len(COMMANDS) >= 100
    kinds = {row[1] for row in MISTAKES}
    assert {
        "ParamsError", "ArgumentError", "SpaceError", "EnvError", "NonFiniteError", "CheckpointError",
        "ReplayBufferError", "ReturnedError", "NoSuchNameError",
    } <= {kind.__name__ for kind in kinds}  # fmt: skip


def test_what_is_lacking_is_found() -> None:
    assert lacks("a.b: must be c; got d at 0x7f3a2c1b", "a.b", "what") == ["what", "0x7f3a2c1b"]
