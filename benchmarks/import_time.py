"""Measure what `import rltrainer` adds to `import torch, gymnasium`: modules, processor's seconds, the clock's.

    python -m benchmarks.import_time

Each figure is the median of several new processes, all but the first with bytecode on disk, as after an installation.
The goal is at most 0.3 s of the clock on a machine with nothing else to do; the processor's time depends less on that.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """
import json, sys, time
import torch, gymnasium
before, cpu, clock = len(sys.modules), time.process_time(), time.perf_counter()
import rltrainer
print(json.dumps([len(sys.modules) - before, time.process_time() - cpu, time.perf_counter() - clock]))
"""


def measure(bytecode: str) -> list[float]:
    """Return modules, and seconds of the processor and of the clock, of one new process."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPYCACHEPREFIX": bytecode, "PYTHONPATH": str(Path(__file__).parents[1])}
    run = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    return list(json.loads(run.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as bytecode:
        first, *rest = [measure(bytecode) for _ in range(args.runs + 1)]
    print(f"{'import rltrainer after torch and gymnasium':44} modules   CPU s  clock s")
    for name, row in (("without bytecode", first), ("median", [statistics.median(c) for c in zip(*rest, strict=True)])):
        print(f"{name:44} {row[0]:7.0f} {row[1]:7.3f} {row[2]:8.3f}")


if __name__ == "__main__":
    main()
