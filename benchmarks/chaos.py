"""Trains through random faults, and looks whether everything happens that was promised.

    make chaos                                          # 500 faults, writes chaos.md
    python -m benchmarks.chaos --faults 10 --epochs 6   # a short look

Each leg trains a small run that is ended again and again. A fault strikes; how the run ended, what it said, what it
left and where the next life goes on are compared with what was promised. At the end stand the weights, optimizer,
buffer and log of a run that nobody disturbed, bit for bit. Which faults come is drawn from the seed; when a signal
arrives depends on the machine, and outcomes are checked whatever the moment. `faults/` does all this; here it only gets
a file system that can be full.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

QUOTA = "4m"
"""Size of the file system of the checkpoints."""


def main() -> int:
    """Run the program where a folder is a file system of its own, if that can be had."""
    folder = tempfile.mkdtemp(prefix="chaos-")
    command = [sys.executable, "-m", "benchmarks.faults.program", folder, *sys.argv[1:]]
    (Path(folder) / "small").mkdir()
    mount = f'mount -t tmpfs -o size={QUOTA} none "{folder}/small"'
    unshare = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    can = bool(shutil.which("unshare")) and subprocess.run([*unshare, mount], capture_output=True).returncode == 0
    if not can:
        print("No file system can be mounted here: of full disks there are only those that are injected.")
    status = subprocess.run([*unshare, f'{mount} && exec "$@"', "sh", *command] if can else command).returncode
    if status == 0:
        shutil.rmtree(folder)
    else:
        print(f"Logs, journals and what the runs said are in {folder}.")
    return status


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
