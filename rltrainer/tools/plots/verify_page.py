"""The page of `rltrainer verify`: its table, and the curves of each recipe over the measured ones."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from rltrainer.files.atomic_write import replaced_file
from rltrainer.tools.plots.curves import draw_group
from rltrainer.tools.plots.figures import count_steps, drawing, label, new_figure
from rltrainer.tools.plots.html_page import head, picture
from rltrainer.tools.plots.run_data import Curve


def verify_page(report: Mapping[str, Any], rows: Sequence[Mapping[str, str]], path: Path) -> Path:
    """Write the page of a report of `rltrainer verify`, with the rows of its table; return its path."""
    with drawing():
        columns = min(len(report), 3)
        figure, grid = new_figure("", len(report), num_columns=columns, size=(3.4, 2.6))
        for axes, found in zip(grid, report.values(), strict=True):
            draw_group(
                axes, 0, "measured", [Curve(found.measured.env_step, row) for row in found.measured.curves], 0.95
            )
            runs = [run["curve"] for run in found.runs.values() if run["curve"]["score"]]
            if runs:
                curves = [Curve(np.array(each["env_step"]), np.array(each["score"])) for each in runs]
                draw_group(axes, 1, "here", curves, 0.95)
            axes.set_title(label(found.name), size=9)
            count_steps(axes, "env steps")
            axes.legend()
    lines = [head("rltrainer verify"), "<table>"]
    for cells, tag in [(list(rows[0]), "th"), *((list(row.values()), "td") for row in rows)]:
        lines.append("<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>")
    lines += ["</table>", picture(figure, "learning curves of each recipe, measured and here"), "</body>\n</html>\n"]
    with replaced_file(path) as file:
        file.write("\n".join(lines).encode())
    return path
