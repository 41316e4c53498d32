"""Records `make demo` as an animated picture: `python -m docs.record_demo` writes docs/demo.svg.

Each line appears when the demo printed it. Programs that show no animation show all lines.
"""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "demo.svg"
LAST = "Kill an agent"
COLUMNS, CELL, LINE, MARGIN = 128, 7.2, 17, 16
"""Characters in a row; width of a character, height of a row and margin in pixels."""
NO_BREAK = "\u00a0"
"""A space that no program removes at the beginning of a line."""
STYLE = """
text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; fill: #d1d7e0 }
.typed { fill: #7ee787 } .heading { font-weight: bold } .good { fill: #7ee787 }
g { animation: appear 1ms backwards } @keyframes appear { from { opacity: 0 } }
@media (prefers-reduced-motion: reduce) { g { animation: none } }"""


def recorded() -> Iterator[tuple[float, str]]:
    """The lines of one run up to LAST, each with the seconds since the start. Raises RuntimeError when the demo fails."""
    began = time.monotonic()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = (sys.executable, "-m", "hollow.demo")
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as demo:  # noqa: S603 - ours
        assert demo.stdout is not None  # noqa: S101 - it is a pipe
        for line in demo.stdout:
            if line.startswith(LAST):
                break
            yield time.monotonic() - began, line.rstrip().replace(str(ROOT), "~/muster")
        else:
            raise RuntimeError("the demo has failed")
        demo.send_signal(signal.SIGINT)


def kind_of(text: str) -> str:
    """The CSS class of a line."""
    if text.startswith("$"):
        return "typed"
    if text.startswith("NAME "):
        return "heading"
    return "good" if "Available" in text and " s  " in text else ""


def picture(lines: list[tuple[float, str]]) -> str:
    """SVG of a terminal with these lines."""
    rows: list[str] = []
    for (second, text), (_, previous) in zip(lines, [(0.0, ""), *lines], strict=False):
        if not text and not previous:
            continue
        for part in textwrap.wrap(text, COLUMNS, subsequent_indent="    ", drop_whitespace=False) or [""]:
            top = MARGIN + LINE * (len(rows) + 1)
            width = f'textLength="{len(part) * CELL:.1f}" lengthAdjust="spacingAndGlyphs"'
            rows.append(
                f'<g style="animation-delay:{second:.1f}s">'
                f'<text x="{MARGIN}" y="{top}" {width} class="{kind_of(part)}">{escape(part).replace(" ", NO_BREAK)}</text></g>'
            )
    size = f"{COLUMNS * CELL + 2 * MARGIN:.0f} {LINE * len(rows) + 2 * MARGIN + LINE // 2}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" viewBox="0 0 {size}" role="img">\n'
        "<title>make demo: a hub and three clusters, from the start to Available</title>\n"
        f"<style>{STYLE}\n</style>\n"
        f'<rect width="100%" height="100%" rx="8" fill="#161b22" stroke="#3d444d"/>\n' + "\n".join(rows) + "\n</svg>\n"
    )


if __name__ == "__main__":
    PICTURE.write_text(picture([(0.0, "$ make demo"), *((second + 0.5, text) for second, text in recorded())]))
