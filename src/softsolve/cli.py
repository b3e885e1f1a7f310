"""The ``softsolve`` command: the paper's experiments.

Results go to standard output, progress and errors to standard error. Exit codes are
those of :data:`softsolve.experiments.errors.EXIT_CODES`.
"""

import io
import json
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

try:
    import click
    from rich.console import Console
    from rich.table import Table

    from softsolve.experiments.catalogue import CATALOGUE, status
    from softsolve.experiments.errors import (
        EXIT_CODES,
        DataError,
        ExperimentError,
        OutputError,
        SettingError,
    )
    from softsolve.experiments.progress import ProgressBar
    from softsolve.experiments.registry import EXPERIMENTS, get_experiment
    from softsolve.experiments.report import write_report
    from softsolve.experiments.runner import Order, execute
    from softsolve.experiments.settings import override
    from softsolve.experiments.shortest_path.maps import save as save_maps
    from softsolve.experiments.shortest_path.terrain import generate
except ImportError as error:
    message = (
        f"The softsolve command needs {error.name}, which is not installed. "
        "Install what it needs with: pip install 'softsolve[experiments]'"
    )
    raise ImportError(message) from error

CODES = "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())
EPILOG = f"\b\nExit codes:\n{CODES}"

PRESETS = ("quick", "paper")
DIRECTORY = click.Path(file_okay=False, path_type=Path)


class Commands(click.Group):
    """Commands whose expected errors are told in a line, with an exit code each."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except ExperimentError as error:
            click.echo(f"softsolve: {error}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            again = "Interrupted. Run the same command, with this --out, to continue."
            click.echo(f"softsolve: {again}", err=True)
            ctx.exit(130)


@click.group(
    cls=Commands,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="softsolve")
def main() -> None:
    """Run the experiments of "Learning with Differentiable Perturbed Optimizers"."""


@main.command(name="list")
def list_experiments() -> None:
    """List the experiments and their settings, as quick and paper have them.

    Any of them is changed by `softsolve run NAME --set KEY=VALUE`.
    """
    for experiment in EXPERIMENTS.values():
        _print(f"{experiment.name}: {experiment.summary}")
        quick, paper = (vars(experiment.presets[name]) for name in PRESETS)
        rows = [(key, _shown(quick[key]), _shown(paper[key])) for key in quick]
        _print_table(("setting", *PRESETS), rows)
        _print("")


@main.command(short_help="Run an experiment, or continue a run.", epilog=EPILOG)
@click.argument("name")
@click.option(
    "--preset",
    type=click.Choice(PRESETS),
    default="quick",
    show_default=True,
    help="A few minutes without a download, or the paper's setting.",
)
@click.option(
    "--data", type=DIRECTORY, help="Directory of data sets; see `softsolve data`."
)
@click.option(
    "--out", type=DIRECTORY, help="Where the run goes. [default: runs/NAME-PRESET]"
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Of weights, minibatches and noise.",
)
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a setting, once for each; entries of a list are separated by commas.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def run(
    name: str,
    preset: str,
    data: Path | None,
    out: Path | None,
    seed: int,
    assignments: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run the experiment NAME, or continue it where --out holds an interrupted run.

    `softsolve list` says which experiments and settings there are.
    """
    experiment = get_experiment(name)
    order = Order(
        experiment=experiment,
        preset=preset,
        config=override(experiment.presets[preset], assignments),
        data=data,
        out=out or Path("runs") / f"{name}-{preset}",
        seed=seed,
        command=shlex.join(["softsolve", *sys.argv[1:]]),
    )
    with ProgressBar(Console(stderr=True)) as bar:
        results = execute(order, bar)
    if as_json:
        _print(json.dumps(results))
        return
    for key, numbers in experiment.headline(results).items():
        _print(f"{key}: {numbers}")
    _print(f"Report: softsolve report {shlex.quote(str(order.out))}")


@main.command()
@click.argument("directory", type=DIRECTORY)
@click.option(
    "--markdown",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.md",
    help="Write it here too, with PNG figures beside it and without your directories. "
    "A section Remarks in FILE.md is kept.",
)
def report(directory: Path, markdown: Path | None) -> None:
    """Write the page of the run in DIRECTORY, finished or not.

    It goes to DIRECTORY/report: index.html, one file with all figures in it, index.md,
    and the figures as PNG and SVG.
    """
    if markdown is not None and markdown.suffix != ".md":
        msg = f"--markdown must name a file that ends in .md; got {markdown}."
        raise SettingError(msg)
    _print(write_report(directory, markdown))
    if markdown is not None:
        _print(markdown)


@main.command(short_help="List the data sets, and verify those at hand.")
@click.option("--data", type=DIRECTORY, help="Look here, and verify what is there.")
def data(data: Path | None) -> None:
    """Say which data sets there are, where to get them, and verify those at hand."""
    if data is not None and not data.is_dir():
        msg = f"there is no directory {data}. Pass one that holds data sets."
        raise DataError(msg)
    wrong = []
    for data_set in CATALOGUE:
        _print(f"{data_set.name}, for {', '.join(data_set.experiments)}")
        _print(f"  published: {data_set.published}")
        _print(f"  without it: {data_set.without}")
        names = " or ".join(f"NAME{suffix}" for suffix in data_set.suffixes)
        folder = Path("DIR") / data_set.folder
        _print(f"  put into: {folder}/, files {names}")
        if data is None:
            continue
        rows = [(name, status(data, data_set, name)) for name in data_set.checksums]
        wrong += [name for name, found in rows if found in ("corrupt", "differs")]
        _print_table(("file", "status"), rows)
    if wrong:
        msg = f"not as published: {', '.join(wrong)}. Get these files again."
        raise DataError(msg)


@main.command(short_help="Generate terrain maps as files.")
@click.argument("directory", type=DIRECTORY)
@click.option("--train", type=click.IntRange(min=1), default=10_000, show_default=True)
@click.option("--test", type=click.IntRange(min=1), default=1000, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
def maps(directory: Path, train: int, test: int, seed: int) -> None:
    """Generate terrain maps, and write them to DIRECTORY as the published ones are."""
    for place, (split, count) in enumerate((("train", train), ("test", test))):
        save_maps(generate(count, seed=2 * seed + place), directory, split)
    _print(directory)


def _print(text: object) -> None:
    """Write a line to standard output."""
    try:
        click.echo(text)
    except OSError as error:
        # Else Python would try again at its end, and change the exit code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return  # the reader, such as `head`, has had enough
        msg = f"cannot write to standard output: {error.strerror}."
        raise OutputError(msg) from error


def _print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a table to standard output, as wide as the terminal."""
    table = Table(*header, box=None, padding=(0, 1))
    for row in rows:
        table.add_row(*row)
    text = io.StringIO()
    Console(file=text, width=Console().width).print(table)
    _print("\n".join(line.rstrip() for line in text.getvalue().splitlines()))


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(str(entry) for entry in value)
    return str(value)


if __name__ == "__main__":
    main()
