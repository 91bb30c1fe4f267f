"""``report.html``: one file that shows whether a run learned, and why. It needs no server and no network.

Nothing in it can act but its own script: the page's policy refuses every load, the data is inert JSON, and the script
puts text on the page as text only.
"""

from __future__ import annotations

import html
import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

from oncurve.board.charts import charts
from oncurve.board.examples import held_out, training_groups
from oncurve.board.summary import summary
from oncurve.board.text import shown, visible
from oncurve.runlog import RunLog, RunLogError, replacing

# In JSON these stand in strings only, so escaping them changes nothing for the reader of the JSON, and leaves the
# reader of the HTML nothing to take for the end of the script.
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def write_report(run_dir: Path | str) -> Path:
    """Write ``report.html`` into a run directory, finished or not, and return its path. The file appears whole.

    Raises RunLogError if there is no readable record or no room for the report.
    """
    run_dir = Path(run_dir)
    page = render(report_data(run_dir))
    path = run_dir / "report.html"
    try:
        with replacing(path) as temporary:
            temporary.write_text(page, encoding="utf-8")
    except OSError as error:
        raise RunLogError(f"cannot write {path}: {error}") from error
    return path


def report_data(run_dir: Path) -> dict[str, Any]:
    """All that the page shows, ready for JSON; bounded in size whatever the run's."""
    with RunLog.open(run_dir, readonly=True) as log:
        evals = log.eval_rows()
        return {
            "name": visible(run_dir.resolve().name),
            **summary(log, evals),
            "sections": charts(log, evals),
            "held_out": held_out(log),
            "training": training_groups(log),
            "config": _config(run_dir),
        }


def _config(run_dir: Path) -> Any:
    try:
        return shown((run_dir / "config.toml").read_text(encoding="utf-8", errors="replace"), head=20_000)
    except OSError:
        return None  # A copied report of a copied record is still worth having.


def render(data: dict[str, Any]) -> str:
    """The page."""
    static = resources.files("oncurve.board") / "static"
    pieces = {
        "TITLE": html.escape(data["name"]),
        "DATA": escaped_json(data),
        **{
            name: (static / file).read_text(encoding="utf-8")
            for name, file in (
                ("UPLOT_LICENSE", "LICENSE-uPlot"),
                ("UPLOT_CSS", "uPlot.min.css"),
                ("UPLOT_JS", "uPlot.iife.min.js"),
                ("REPORT_CSS", "report.css"),
                ("TOOLS_JS", "tools.js"),
                ("CURVES_JS", "curves.js"),
                ("REPORT_JS", "report.js"),
            )
        },
    }
    # In one pass, so that what is put in is never searched for places to put more.
    template = (static / "report.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: pieces[match[1]], template)


def escaped_json(data: Any) -> str:
    """JSON that may stand in a ``<script type="application/json">``."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    # A lone surrogate cannot be written as UTF-8. Model text has none left by now; a metric's name might.
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return re.sub("[<>&\u2028\u2029]", lambda match: _ESCAPES[match[0]], text)
