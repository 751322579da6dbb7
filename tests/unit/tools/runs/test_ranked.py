"""Ranks that a program starts: their number, what travels, and the failure of one."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import rltrainer as rl
from rltrainer.errors import ParamsError, RLTrainerError
from rltrainer.tools.runs.ranked import ranks_to_start, run_ranks
from tests.faults.torchrun import MARK, end
from tests.unit.ranks.rank_programs import fail, set_variables
from tests.unit.tools.refusals import error_text
from tests.unit.tools.runs.test_seeds import wait_for

ROOT = Path(__file__).parents[4]


def test_a_number_of_ranks_is_started_but_not_by_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [ranks_to_start("train", number) for number in (None, 1, 3)] == [None, None, 3]
    assert "train.num_ranks: must be" in error_text(ParamsError, ranks_to_start, "train", 0)
    set_variables(monkeypatch)
    assert [ranks_to_start("train", number) for number in (None, 4)] == [None, None]
    text = "train.num_ranks: must be None, or 4 as of torchrun, which started this process; got 2 (int)"
    assert error_text(ParamsError, ranks_to_start, "train", 2) == text


def test_a_function_that_cannot_travel_is_refused() -> None:
    assert "must travel to another process" in error_text(ParamsError, run_ranks, "train", 2, lambda: None)


@pytest.mark.full
def test_a_mistake_is_told_without_a_traceback(tmp_path: Path) -> None:
    text = error_text(ParamsError, rl.train, "CartPole-v1", num_ranks=3, num_env_steps=256, folder=tmp_path)
    owner = "OnPolicyTrainerParams.training_collector.num_envs"
    assert text == f"{owner}: must be a multiple of the number of shards, 3; got 8 (int). Take 6 or 9."
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_the_failure_of_a_rank_has_its_traceback_and_leaves_the_program_as_it_was() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), os.environ.get("OMP_NUM_THREADS")
    text = error_text(RLTrainerError, run_ranks, "train", 2, fail)
    assert text.startswith("train: rank 1 of 2")
    assert 'raise ValueError("of rank 1")\nValueError: of rank 1' in text
    assert before == (
        signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), os.environ.get("OMP_NUM_THREADS")
    )  # fmt: skip


@pytest.mark.full
def test_a_rank_that_ends_at_its_start_is_told_with_its_code() -> None:
    text = error_text(RLTrainerError, run_ranks, "train", 2, partial(fail, 3))
    assert text == "train: rank 1 of 2 failed:\nits process exited with code 3"


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_ranks_of_a_launcher_that_is_killed_save_and_leave_no_folder(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, rltrainer as rl\n"
        "if __name__ == '__main__':\n"
        # A compiler leaves its headers in the same place.
        "    options = {'show_progress': False, 'runtime': rl.RuntimeParams(compile=False)}\n"
        "    rl.train('CartPole-v1', num_ranks=2, num_env_steps=10**7, folder=sys.argv[1], **options)\n"
    )
    (temporary := tmp_path / "tmp").mkdir()
    settings = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT), MARK: str(tmp_path)}
    command = [sys.executable, str(program), str(tmp_path / "runs")]
    with subprocess.Popen(command, env=settings, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        wait_for(lambda: any((tmp_path / "runs").glob("*/log*")), 60.0)
        assert os.listdir(temporary)
        run.kill()
        end(run, str(tmp_path))
    assert os.listdir(temporary) == []
    assert any((tmp_path / "runs").glob("*/checkpoint*"))
