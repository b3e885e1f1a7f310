"""Writing the report of a run."""

from pathlib import Path

from softsolve.experiments.errors import OutputError
from softsolve.experiments.page import Command, Page, Table
from softsolve.experiments.records import Record, RunDirectory
from softsolve.experiments.registry import get_experiment


def write_report(path: Path) -> Path:
    """Write the page of the run in ``path``; return where its HTML is."""
    directory = RunDirectory(path)
    manifest = directory.read_manifest()
    if manifest is None:
        msg = f"{path} holds no run: there is no manifest.json. Pass a run's --out."
        raise OutputError(msg)
    experiment = get_experiment(manifest["experiment"])
    kind = type(next(iter(experiment.presets.values())))
    settings = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in manifest["config"].items()
    }
    page = experiment.page(kind(**settings), directory)
    blocks = [Command(manifest["command"]), *page.blocks, *_about(manifest)]
    return Page(page.title, blocks).write(path / "report")


def _about(manifest: Record) -> list[Table]:
    rows = [
        ["status", manifest["status"]],
        ["started", manifest["started"]],
        ["seconds", str(manifest.get("seconds", "–"))],
        ["seed", str(manifest["seed"])],
        *([key, _shown(value)] for key, value in manifest["config"].items()),
        *([key, str(value)] for key, value in manifest["hardware"].items()),
        *([key, value] for key, value in manifest["versions"].items()),
    ]
    return [Table("The run", ["", ""], rows)]


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(str(entry) for entry in value)
    return str(value)
