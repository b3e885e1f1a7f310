"""A report's page: blocks of text, tables and pictures, as HTML and as Markdown."""

import base64
import dataclasses
import html
import io
import re
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from PIL import Image

from softsolve.experiments.records import replacing, writing

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 72rem;
       margin: 2rem auto; padding: 0 1rem; }
h1, h2 { line-height: 1.2; }
h2 { margin-top: 2.5rem; }
pre { background: #f5f5f5; padding: .7rem 1rem; white-space: pre-wrap; }
img { max-width: 100%; height: auto; }
figure { margin: 1.5rem 0; }
figcaption { color: #555; font-size: .9rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums;
        font-size: .8rem; }
th, td { padding: .2rem .45rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.words th, .words td { text-align: left; white-space: normal; vertical-align: top; }
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
    """A table with a heading of its own; of numbers, or of ``words``."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: bool = False

    def as_html(self) -> str:
        """Return it as HTML."""

        def line(cells: Sequence[str], tag: str) -> str:
            inner = "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)
            return f"<tr>{inner}</tr>"

        body = "\n".join(line(row, "td") for row in self.rows)
        return (
            f"<h2>{html.escape(self.title)}</h2>\n"
            f'<div class="wide"><table{" class=words" if self.words else ""}>\n'
            f"<thead>{line(self.header, 'th')}</thead>\n"
            f"<tbody>\n{body}\n</tbody>\n</table></div>"
        )

    def as_markdown(self) -> str:
        """Return it as Markdown."""
        rule = ["---", *("---" if self.words else "---:" for _ in self.header[1:])]
        lines = [self.header, rule, *self.rows]
        table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
        return f"## {self.title}\n\n{table}"


@dataclasses.dataclass(frozen=True)
class Picture:
    """A figure with a caption; its files are named ``prefix-name``."""

    name: str
    caption: str
    figure: Figure

    def save(self, prefix: Path, kind: str) -> None:
        """Write it as ``png`` or ``svg``."""
        buffer = io.BytesIO()
        # Without a date, and with names that are not random, the same run gives the
        # same files.
        metadata = {"Date": None} if kind == "svg" else {}
        with mpl.rc_context({"svg.hashsalt": self.name}):
            self.figure.savefig(buffer, format=kind, dpi=110, metadata=metadata)
        with replacing(self._path(prefix, kind)) as file:
            file.write(_with_palette(buffer) if kind == "png" else buffer.getvalue())

    def _path(self, prefix: Path, kind: str) -> Path:
        return prefix.with_name(f"{prefix.name}-{self.name}.{kind}")

    def as_html(self, prefix: Path) -> str:
        """Return it as HTML, with the saved picture inside."""
        data = base64.b64encode(self._path(prefix, "png").read_bytes()).decode()
        caption = html.escape(self.caption)
        return (
            f'<figure><img alt="{caption}" src="data:image/png;base64,{data}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )

    def as_markdown(self, prefix: Path) -> str:
        """Return it as Markdown."""
        name = self._path(prefix, "png").name
        return f"![{self.caption}]({name})\n\n*{self.caption}*"


def _with_palette(png: io.BytesIO) -> bytes:
    """Return a picture with 256 colours: a quarter of the size.

    They start spread over all colours, so that those of thin lines are kept.
    """
    smaller = io.BytesIO()
    image = Image.open(png).convert("RGB")
    image = image.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=3)
    image.save(smaller, "PNG", optimize=True)
    return smaller.getvalue()


Block = Text | Command | Table | Picture


@dataclasses.dataclass(frozen=True)
class Page:
    """A title and what is below it."""

    title: str
    blocks: Sequence[Block]

    def write_html(self, target: Path, prefix: Path) -> None:
        """Write it in one file, and its pictures as PNG and SVG too."""
        for block in self.blocks:
            if isinstance(block, Picture):
                for kind in ("png", "svg"):
                    block.save(prefix, kind)
        with replacing(target) as file:
            file.write(self._html(prefix).encode())

    def write_markdown(self, target: Path, prefix: Path) -> None:
        """Write it as Markdown, and its pictures as PNG.

        What the file had under the heading "Remarks" stays: it is written by hand.
        """
        for block in self.blocks:
            if isinstance(block, Picture):
                block.save(prefix, "png")
        with writing(target):
            old = target.read_text() if target.exists() else ""
        with replacing(target) as file:
            file.write(self._markdown(prefix, _remarks(old, prefix.name)).encode())

    def _html(self, prefix: Path) -> str:
        body = "\n".join(
            block.as_html(prefix) if isinstance(block, Picture) else block.as_html()
            for block in self.blocks
        )
        title = html.escape(self.title)
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width">\n'
            f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
            f"<h1>{title}</h1>\n{body}\n</body>\n</html>\n"
        )

    def _markdown(self, prefix: Path, remarks: str) -> str:
        blocks = [
            block.as_markdown(prefix)
            if isinstance(block, Picture)
            else block.as_markdown()
            for block in self.blocks
        ]
        if remarks:
            introduction = (isinstance(block, Text | Command) for block in self.blocks)
            place = [*introduction, False].index(False)
            blocks.insert(place, remarks)
        return "\n\n".join([f"# {self.title}", *blocks]) + "\n"


def _remarks(page: str, name: str) -> str:
    """Return the section Remarks of a Markdown page.

    It goes up to the next heading, or to a picture of the page's own, by its ``name``.
    """
    picture = rf"!\[[^\n]*\]\({re.escape(name)}-"
    section = rf"^## Remarks$.*?(?=^#{{1,2}} |^{picture}|\Z)"
    found = re.search(section, page, flags=re.M | re.S)
    return "" if found is None else found[0].strip()
