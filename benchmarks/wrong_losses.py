"""Whether `rltrainer verify` finds a wrong loss: each is planted in a copy of the package and verified there.

    python -m benchmarks.wrong_losses                    five wrong losses, then five runs without one
    python -m benchmarks.wrong_losses --minutes 4 --only DQN

The losses were chosen before the first run.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.planted import Mutant, mutant

ROOT = Path(__file__).parents[1]
WRONG_LOSSES = [
    mutant("sign: PPO's ratio is upside down", "functional/losses.py",
           "ratio = log_ratio.exp()", "ratio = (-log_ratio).exp()"),
    mutant("sign: the actor of DDPG and TD3 looks for the worst action", "algorithms/actor_critic/td3.py",
           "return -(q * batch.weight).mean()", "return (q * batch.weight).mean()"),
    mutant("stop-gradient: DQN's target is the trained network's, with gradient", "algorithms/q_learning/dqn.py",
           "td_error = self.target(batch) - chosen",
           "td_error = batch.reward + batch.discount * self.policy.q_values(batch.next_obs).amax(1) - chosen"),
    mutant("discount: advantages bootstrap where an episode has terminated", "functional/returns.py",
           "next_value.masked_fill(terminated, 0.0)", "next_value"),
    mutant("discount: replayed transitions bootstrap where an episode has terminated", "data/ring.py",
           "discount.masked_fill_(terminated, 0.0)", "discount"),
]  # fmt: skip
NUM_RIGHT = 5
"""Runs without a wrong loss."""


def verify(tree: Path, minutes: float, options: list[str]) -> dict[str, str]:
    """Verify a copy of the package; return the verdict of each recipe."""
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "rltrainer", "verify", "--minutes", str(minutes), *options]
    run = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    verdicts = dict(re.findall(r"^(\w+/\S+)  .*  (met|missed|unsure\b.*)$", run.stdout, re.MULTILINE))
    if not verdicts or (run.returncode == 1) != ("missed" in verdicts.values()):
        raise SystemExit(f"{run.stdout}{run.stderr}")
    return verdicts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--only", default="", metavar="TEXT", help="wrong losses with this in their names; or: right")
    parser.add_argument("options", nargs="*", help="of rltrainer verify, after --, such as --recipes NAME")
    args = parser.parse_args()
    cases: list[Mutant | None] = [each for each in WRONG_LOSSES if args.only in each.name]
    cases += [None] * NUM_RIGHT if args.only in ("", "right") else []
    for number, case in enumerate(cases):
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder)
            shutil.copytree(ROOT / "rltrainer", tree / "rltrainer", ignore=shutil.ignore_patterns("__pycache__"))
            if case is not None:
                (file := tree / case.file).write_text(case.planted(file.read_text()))
            found = verify(tree, args.minutes, ["--seed", str(100 * number + 11), *args.options])
        word = "missed" if "missed" in found.values() else "not missed"
        print(f"{word:11}{case.name if case else 'right'}: {found}", flush=True)


if __name__ == "__main__":
    main()
