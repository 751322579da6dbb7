"""What `verify` says of a checkpoint, of a run's, and of what is none; and its command line."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rltrainer.checkpoint import CheckpointStore, verify, write_checkpoint
from rltrainer.checkpoint.__main__ import main
from rltrainer.checkpoint.folder import read_manifest
from rltrainer.checkpoint.store import live_state
from rltrainer.errors import CheckpointError
from tests.unit.data.reference import World, add_step, make_buffer

ROOT = Path(__file__).parents[3]


def run_of_two(directory: Path) -> None:
    buffer, world, store = make_buffer(8), World(0, 1), CheckpointStore(directory, 2, 0)
    store.open()
    for step in (100, 200):
        add_step(buffer, None, world.step()[0])
        nested = {"w": torch.zeros(2, 3), "inner": [{"count": torch.tensor(1)}], "plain": 3}
        store.save({"algorithm": nested, "buffer": live_state(buffer)}, step, step / 8)
    store.close()


def test_a_run(tmp_path: Path) -> None:
    run_of_two(tmp_path / "run")
    report = verify(tmp_path / "run")
    assert report.is_whole
    newest, older = (tmp_path / "run" / f"checkpoint-000000000{step}" for step in (200, 100))
    assert report.problems == {newest: "", older: ""}
    lines = str(report).splitlines()
    assert lines[:2] == [f"{newest}: whole", "  format 3, step 200, score 25.0"]
    assert lines[2].startswith("  algorithm: ")
    assert lines[2].endswith(" bytes, 2 tensors")
    assert set(lines[3:5]) == {"    w: F32 [2, 3]", "    inner.0.count: I64 []"}
    (rows,) = read_manifest(newest).row_files.values()
    assert f", 1 files of rows of {rows.size:,} bytes" in lines[5]
    assert str(report).startswith(str(verify(newest)))
    write_checkpoint(tmp_path / "alone", {"a": {"w": torch.zeros(5)}})
    assert str(verify(tmp_path / "alone")).splitlines()[1] == "  format 3"


def test_a_damaged_one_is_named_with_its_file(tmp_path: Path) -> None:
    run_of_two(tmp_path)
    damaged = tmp_path / "checkpoint-000000000100" / "algorithm.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    report = verify(tmp_path)
    assert not report.is_whole
    *_, first, second, last = str(report).splitlines()
    assert last == "2 checkpoints, 1 damaged"
    assert first.startswith(f"{damaged.parent}: DAMAGED. {damaged}: expected ")
    assert second == "  format 3, step 100, score 12.5"
    (damaged.parent / "manifest.json").write_text("{")
    assert "DAMAGED" in str(verify(damaged.parent))
    assert "manifest.json: damaged (JSONDecodeError" in str(verify(damaged.parent))
    (damaged.parent / "manifest.json").unlink()
    assert list(map(bool, verify(tmp_path).problems.values())) == [True, False]


def test_a_copy_without_its_rows(tmp_path: Path) -> None:
    run_of_two(tmp_path / "run")
    (tmp_path / "run" / "checkpoint-000000000200").rename(tmp_path / "copy")
    text = "The checkpoints of a run need the folder 'rows' beside them; copy it with them, or save one that stands"
    assert text in str(verify(tmp_path / "copy"))
    (tmp_path / "link").symlink_to(tmp_path / "run" / "checkpoint-000000000100")
    assert verify(tmp_path / "link").is_whole


@pytest.mark.parametrize("name", ["nothing", "empty", "file"])
def test_what_is_none(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    text = "is no checkpoint: it has no manifest" if name == "empty" else "there is no such checkpoint"
    with pytest.raises(CheckpointError, match=f"{tmp_path / name}: {text}"):
        verify(tmp_path / name)


def test_names_from_a_file_move_no_cursor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(tmp_path / "sound", {"algorithm": {"a\x1b[31m": {"\r\nb\u202e": torch.zeros(2)}}})
    write_checkpoint(tmp_path / "other", {"algorithm": {"x": 1}})
    (tmp_path / "other" / "b\x1b[2J.safetensors").touch()
    for name, shown in (("sound", r"a\x1b[31m.\r\nb\u202e: F32 [2]"), ("other", r"b\x1b[2J.safetensors: not in the")):
        monkeypatch.setattr(sys, "argv", ["", "verify", str(tmp_path / name)])
        main()
        out = capsys.readouterr().out
        assert shown in out
        assert out.replace("\n", "").isprintable()


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def ask(path: Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["", "verify", str(path)])
        return (main(), *capsys.readouterr())

    run_of_two(tmp_path / "run")
    assert ask(tmp_path / "run") == (0, f"{verify(tmp_path / 'run')}\n", "")
    nothing = tmp_path / "nothing"
    assert ask(nothing) == (1, "", f"{nothing}: there is no such checkpoint. In {tmp_path} there are run\n")
    (tmp_path / "run" / "checkpoint-000000000200" / "algorithm.safetensors").unlink()
    command = [sys.executable, "-m", "rltrainer.checkpoint", "verify", str(tmp_path / "run")]
    damaged = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert damaged.returncode == 1
    assert "algorithm.safetensors: missing" in damaged.stdout
    monkeypatch.setattr(sys, "argv", [""])
    with pytest.raises(SystemExit):
        main()
