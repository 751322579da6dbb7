"""The notebook of the examples, cell by cell in a kernel, as a reader runs it: pictures, a film, an interval."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A process of its own: Jupyter imports ipykernel, by which bars know that they are in a notebook.
EXECUTE = "from nbclient.cli import NbClientApp; NbClientApp.launch_instance()"


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_first_five_minutes(tmp_path: Path) -> None:
    """Every cell as it is, but for a tenth of the env steps."""
    path = tmp_path / "first_five_minutes.ipynb"
    text = (ROOT / "examples" / path.name).read_text()
    assert text.count("_000") == 4
    path.write_text(text.replace("_000", "_00"))
    command = [sys.executable, "-c", EXECUTE, str(path), "--inplace", "--kernel_name=python3"]
    run = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    cells = json.loads(path.read_text())["cells"]
    outputs = [each for cell in cells if cell["cell_type"] == "code" for each in cell["outputs"]]
    shown = [each["data"] for each in outputs if "data" in each]
    assert sum("image/png" in data for data in shown) == 3
    assert sum("<video" in "".join(data.get("text/html", "")) for data in shown) == 1
    # Bars and lines go to one stream: a second one would break the bar at every line.
    streams = [each for each in outputs if each["output_type"] == "stream"]
    assert {each["name"] for each in streams} == {"stdout"}
    said = "".join("".join(each["text"]) for each in streams)
    assert said.count("\nIQM of 3 seeds: ") == 2
    assert "lr 1e-3: IQM" in said
    assert "train.algorithm: must travel to another process" in said
