"""The ``softsolve`` command: the paper's experiments.

Results go to standard output, progress and errors to standard error. Exit codes are
those of :data:`softsolve.experiments.errors.EXIT_CODES`.
"""

import json
import os
import shlex
import sys
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
    """List the experiments and their settings."""
    for experiment in EXPERIMENTS.values():
        _print(f"{experiment.name}: {experiment.summary}")
        for preset, config in experiment.presets.items():
            settings = " ".join(
                f"{key}={_shown(value)}" for key, value in vars(config).items()
            )
            _print(f"  --preset {preset}: {settings}")


@main.command(short_help="Run an experiment, or continue a run.")
@click.argument("name")
@click.option("--preset", type=click.Choice(["quick", "paper"]), default="quick")
@click.option(
    "--data", type=DIRECTORY, help="Directory of data sets; see `softsolve data`."
)
@click.option(
    "--out", type=DIRECTORY, help="Where the run goes. [default: runs/NAME-PRESET]"
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Change a setting."
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
    """Run the experiment NAME, or continue it where --out holds an interrupted run."""
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
def report(directory: Path) -> None:
    """Write the page of the run in DIRECTORY, finished or not."""
    _print(write_report(directory))


@main.command(short_help="List the data sets, and verify those at hand.")
@click.option("--data", type=DIRECTORY, help="Look here, and verify what is there.")
def data(data: Path | None) -> None:
    """Say which data sets there are, where to get them, and verify those at hand."""
    console = Console()
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
        table = Table("file", "status", box=None)
        for name in data_set.checksums:
            found = status(data, data_set, name)
            table.add_row(name, found)
            if found in ("corrupt", "differs"):
                wrong.append(name)
        console.print(table)
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
    except BrokenPipeError:
        raise  # the reader has had enough: click ends in silence
    except OSError as error:
        # Else Python would try again at its end, and change the exit code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        msg = f"cannot write to standard output: {error.strerror}."
        raise OutputError(msg) from error


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(str(entry) for entry in value)
    return str(value)


if __name__ == "__main__":
    main()
