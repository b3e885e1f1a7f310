"""Writing the report of a run."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from softsolve.experiments.errors import OutputError
from softsolve.experiments.experiment import Experiment
from softsolve.experiments.page import Block, Command, Page, Table, Text
from softsolve.experiments.records import Record, RunDirectory
from softsolve.experiments.registry import get_experiment
from softsolve.experiments.settings import shown

SAME = "the same"


def write_report(path: Path, markdown: Path | None = None) -> Path:
    """Write the page of the run in ``path``; return where its HTML is.

    ``markdown`` is where to write it once more, to be kept with a project's pages:
    without the directories of the machine.
    """
    directory = RunDirectory(path)
    manifest = directory.read_manifest()
    if manifest is None:
        msg = f"{path} holds no run: there is no manifest.json. Pass a run's --out."
        raise OutputError(msg)
    experiment = get_experiment(manifest["experiment"])
    kind = type(experiment.presets["paper"])
    settings = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in manifest["config"].items()
    }
    page = experiment.page(kind(**settings), directory)
    about = [*page.blocks, _settings(experiment, manifest), _about(manifest)]
    others = Text(" ".join(_others(experiment, kind(**settings), manifest)))

    def with_command(command: str) -> Page:
        blocks: list[Block] = [Command(command), others, *about]
        return Page(page.title, blocks)

    folder, name = path / "report", experiment.name
    target = folder / "index.html"
    whole = with_command(manifest["command"])
    whole.write_html(target, folder / name)
    whole.write_markdown(folder / "index.md", folder / name)
    if markdown is not None:
        kept = with_command(without_directories(manifest["command"]))
        kept.write_markdown(markdown, markdown.with_suffix(""))
    return target


def without_directories(command: str) -> str:
    """Return a command with DIR for its data, and without where it writes.

    >>> without_directories("softsolve run ranking --data=/home/me/data --out there")
    'softsolve run ranking --data DIR'
    """
    kept = []
    words = iter(shlex.split(command))
    for word in words:
        option, separator, _ = word.partition("=")
        if option not in ("--data", "--out"):
            kept.append(word)
            continue
        if not separator:
            next(words, None)
        if option == "--data":
            kept += ["--data", "DIR"]
    return shlex.join(kept)


def _others(
    experiment: Experiment[Any], config: Any, manifest: Record
) -> Iterator[str]:
    """Yield sentences on what is other than in the paper."""
    paper = vars(experiment.presets["paper"])
    changed = {key: value for key, value in vars(config).items() if value != paper[key]}
    stated = [key for key in changed if key in experiment.stated]
    chosen = [key for key in changed if key not in experiment.stated]
    if manifest["status"] != "finished":
        yield "This run has not come to its end: numbers are of what is done so far."
    if stated:
        texts = (
            f"{key} {shown(changed[key])} ({experiment.stated[key]})" for key in stated
        )
        yield f"Other than in the paper (in brackets): {'; '.join(texts)}."
    if chosen:
        texts = (f"{key} {shown(changed[key])} ({shown(paper[key])})" for key in chosen)
        yield (
            "Where the paper says nothing, other than in the preset paper: "
            f"{'; '.join(texts)}."
        )
    if not changed:
        yield "All settings are those of the paper, where it says them."
    if substitutes := experiment.substitutes(config, manifest["data"]):
        yield substitutes


def _settings(experiment: Experiment[Any], manifest: Record) -> Table:
    paper = vars(experiment.presets["paper"])
    rows = []
    for key, value in manifest["config"].items():
        here, there = shown(value), shown(paper[key])
        preset = SAME if here == there else there
        rows.append([key, here, preset, experiment.stated.get(key, "–")])
    header = ["setting", "here", "preset paper", "the paper says"]
    return Table("Settings", header, rows, words=True)


def _about(manifest: Record) -> Table:
    rows = [
        ["status", manifest["status"]],
        ["started", manifest["started"]],
        ["wall time", _duration(manifest.get("seconds"))],
        ["seed", str(manifest["seed"])],
        *([key, str(value)] for key, value in manifest["hardware"].items()),
        *([key, value] for key, value in manifest["versions"].items()),
    ]
    return Table("The run", ["", ""], rows, words=True)


def _duration(seconds: float | None) -> str:
    """Return a time as a person says it.

    >>> _duration(3725.2)
    '1 h 2 min 5 s'
    """
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min {rest} s" if hours else f"{minutes} min {rest} s"
