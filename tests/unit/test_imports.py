"""What importing rltrainer needs of the machine."""

import subprocess
import sys


def test_it_needs_no_module_that_only_unix_has() -> None:
    program = "import sys; sys.modules.update(fcntl=None, resource=None, pwd=None); import rltrainer"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
