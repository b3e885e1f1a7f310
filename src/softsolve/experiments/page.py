"""A report's page: blocks of text, tables and pictures, as HTML and as Markdown."""

import base64
import dataclasses
import html
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from softsolve.experiments.records import replacing

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 68rem;
       margin: 2rem auto; padding: 0 1rem; }
h1, h2 { line-height: 1.2; }
h2 { margin-top: 2.5rem; }
pre { background: #f5f5f5; padding: .7rem 1rem; overflow-x: auto; }
img { max-width: 100%; height: auto; }
figure { margin: 1.5rem 0; }
figcaption { color: #555; font-size: .9rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums;
        font-size: .85rem; }
th, td { padding: .2rem .6rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 2px solid #222; }
tbody tr:nth-child(even) { background: #f7f7f7; }
"""


@dataclasses.dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str

    def as_html(self) -> str:
        """Return it as HTML."""
        return f"<p>{html.escape(self.text)}</p>"

    def as_markdown(self) -> str:
        """Return it as Markdown."""
        return self.text


@dataclasses.dataclass(frozen=True)
class Command:
    """A command to type."""

    text: str

    def as_html(self) -> str:
        """Return it as HTML."""
        return f"<pre>{html.escape(self.text)}</pre>"

    def as_markdown(self) -> str:
        """Return it as Markdown."""
        return f"```console\n{self.text}\n```"


@dataclasses.dataclass(frozen=True)
class Table:
    """A table with a heading of its own."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def as_html(self) -> str:
        """Return it as HTML."""

        def line(cells: Sequence[str], tag: str) -> str:
            inner = "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)
            return f"<tr>{inner}</tr>"

        body = "\n".join(line(row, "td") for row in self.rows)
        return (
            f"<h2>{html.escape(self.title)}</h2>\n"
            f'<div class="wide"><table>\n<thead>{line(self.header, "th")}</thead>\n'
            f"<tbody>\n{body}\n</tbody>\n</table></div>"
        )

    def as_markdown(self) -> str:
        """Return it as Markdown."""
        rule = ["---", *("---:" for _ in self.header[1:])]
        lines = [self.header, rule, *self.rows]
        table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
        return f"## {self.title}\n\n{table}"


@dataclasses.dataclass(frozen=True)
class Picture:
    """A figure with a caption; ``name`` is that of its files."""

    name: str
    caption: str
    figure: Figure

    def save(self, folder: Path) -> None:
        """Write it as PNG and SVG."""
        for kind in ("png", "svg"):
            with replacing(folder / f"{self.name}.{kind}") as file:
                self.figure.savefig(
                    file, format=kind, dpi=110, metadata=_dateless(kind)
                )

    def as_html(self, folder: Path) -> str:
        """Return it as HTML, with the saved picture inside."""
        data = base64.b64encode((folder / f"{self.name}.png").read_bytes()).decode()
        caption = html.escape(self.caption)
        return (
            f'<figure><img alt="{caption}" src="data:image/png;base64,{data}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )

    def as_markdown(self) -> str:
        """Return it as Markdown."""
        return f"![{self.caption}]({self.name}.png)\n\n*{self.caption}*"


def _dateless(kind: str) -> dict[str, None]:
    # The same run gives the same files.
    return {"Date": None} if kind == "svg" else {}


Block = Text | Command | Table | Picture


@dataclasses.dataclass(frozen=True)
class Page:
    """A title and what is below it."""

    title: str
    blocks: Sequence[Block]

    def write(self, folder: Path) -> Path:
        """Write ``index.html``, ``index.md`` and the pictures; return the first."""
        for block in self.blocks:
            if isinstance(block, Picture):
                block.save(folder)
        target = folder / "index.html"
        with replacing(target) as file:
            file.write(self._html(folder).encode())
        with replacing(folder / "index.md") as file:
            file.write(self._markdown().encode())
        return target

    def _html(self, folder: Path) -> str:
        body = "\n".join(
            block.as_html(folder) if isinstance(block, Picture) else block.as_html()
            for block in self.blocks
        )
        title = html.escape(self.title)
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width">\n'
            f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
            f"<h1>{title}</h1>\n{body}\n</body>\n</html>\n"
        )

    def _markdown(self) -> str:
        blocks = "\n\n".join(block.as_markdown() for block in self.blocks)
        return f"# {self.title}\n\n{blocks}\n"
