"""The report of a run: what is other than in the paper, and pages to be kept."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure
from PIL import Image

from softsolve.cli import main
from softsolve.experiments.page import Page, Picture, Table, Text
from softsolve.experiments.records import RunDirectory
from softsolve.experiments.registry import EXPERIMENTS
from softsolve.experiments.report import _duration, without_directories

SHORT = {
    "ranking": ["data_sets=iris", "losses=fenchel-young,squared", "steps=10"],
    "synthetic-ranking": ["labels=4", "epochs=10", "train_size=32", "runs=1"],
    "shortest-path": ["train_size=8", "test_size=4", "epochs=1", "channels=2"],
    "classification": ["train_size=32", "epochs=1", "sweep_temperatures="],
}
OTHERS = {
    "ranking": [
        "Other than in the paper (in brackets): data_sets iris (21 data sets);",
        "Where the paper says nothing, other than in the preset paper: steps 10 (2000)",
        "Of scikit-learn's data, by the construction of Cheng et al. (2009): iris.",
    ],
    "synthetic-ranking": [
        "labels 4 (100)",
        "epochs 10 (2000)",
        "train_size 32 (16000)",
    ],
    "shortest-path": ["epochs 1 (50)", "test_size 4 (1000)", "The maps are generated"],
    "classification": [
        "data_set digits (CIFAR-10)",
        "epochs 1 (600)",
        "sweep_temperatures none (0.001,",
    ],
}
PICTURES = {
    "ranking": ["curves", "predictions", "scatter"],
    "synthetic-ranking": ["epochs", "noise"],
    "shortest-path": ["curves", "maps"],
    "classification": ["accuracy", "images"],
}


def softsolve(*arguments: str) -> str:
    ended = CliRunner().invoke(main, list(arguments))
    assert ended.exit_code == 0, ended.output
    return ended.stdout


def run(name: str, settings: Sequence[str], out: Path) -> Path:
    assignments = [f"--set={text}" for text in settings]
    softsolve("run", name, *assignments, "--out", str(out))
    return out


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_pages_to_be_kept(tmp_path: Path, name: str) -> None:
    out = run(name, SHORT[name], tmp_path / "run")
    manifest = RunDirectory(out).read_manifest()
    assert manifest is not None
    command = f"softsolve run {name} --data {tmp_path} --out {out} --seed 0"
    RunDirectory(out).write_manifest({**manifest, "command": command})
    kept = tmp_path / "docs" / "kept.md"
    printed = softsolve("report", str(out), "--markdown", str(kept)).split()
    assert printed == [str(out / "report" / "index.html"), str(kept)]
    text = kept.read_text()
    assert f"softsolve run {name} --data DIR --seed 0\n" in text
    assert str(tmp_path) not in text
    for sentence in OTHERS[name]:
        assert sentence in text
    names = [f"kept-{picture}.png" for picture in PICTURES[name]]
    assert sorted(path.name for path in kept.parent.glob("*.png")) == names
    for picture in names:
        assert f"]({picture})" in text
        with Image.open(kept.parent / picture) as image:
            assert image.width > 400
            assert len(image.getcolors()) <= 256
    whole = (out / "report" / "index.html").read_text()
    assert command in whole
    for picture in PICTURES[name]:
        for kind in ("png", "svg"):
            assert (out / "report" / f"{name}-{picture}.{kind}").stat().st_size > 1000


def test_settings_are_beside_the_papers(tmp_path: Path) -> None:
    out = run("shortest-path", SHORT["shortest-path"], tmp_path)
    softsolve("report", str(out))
    text = (out / "report" / "index.md").read_text()
    assert "| epochs | 1 | 50 | 50 |\n" in text
    assert "| batch_size | 70 | the same | 70 |\n" in text
    assert "| squared_samples | 10 | the same | – |\n" in text
    assert "| wall time | " in text
    files = {path: path.read_bytes() for path in (out / "report").iterdir()}
    softsolve("report", str(out))
    assert {path: path.read_bytes() for path in files} == files


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_what_the_paper_states_are_settings(name: str) -> None:
    experiment = EXPERIMENTS[name]
    assert set(experiment.stated) <= set(vars(experiment.presets["paper"]))


def test_remarks_are_kept(tmp_path: Path) -> None:
    page = Page("Title", [Text("First."), Table("Numbers", ["a"], [["1"]])])
    target = tmp_path / "page.md"
    page.write_markdown(target, tmp_path / "page")
    assert (
        target.read_text()
        == "# Title\n\nFirst.\n\n## Numbers\n\n| a |\n| --- |\n| 1 |\n"
    )
    remarks = "## Remarks\n\nBy hand.\n\n### More\n\n- of it"
    target.write_text(f"# Old\n\n{remarks}\n\n## Older\n\ntable\n")
    for _ in range(2):
        page.write_markdown(target, tmp_path / "page")
        assert target.read_text() == (
            f"# Title\n\nFirst.\n\n{remarks}\n\n## Numbers\n\n| a |\n| --- |\n| 1 |\n"
        )


def test_remarks_end_where_the_pictures_of_a_page_begin(tmp_path: Path) -> None:
    page = Page("Title", [Text("First."), Picture("dots", "Dots.", Figure())])
    target = tmp_path / "page.md"
    target.write_text("## Remarks\n\nBy hand.\n\n![A picture](of-mine.png)\n")
    for _ in range(2):
        page.write_markdown(target, tmp_path / "page")
        assert target.read_text() == (
            "# Title\n\nFirst.\n\n## Remarks\n\nBy hand.\n\n"
            "![A picture](of-mine.png)\n\n![Dots.](page-dots.png)\n\n*Dots.*\n"
        )


@pytest.mark.parametrize(
    ("command", "kept"),
    [
        (
            "softsolve run a --data 'my data' --seed 1",
            "softsolve run a --data DIR --seed 1",
        ),
        ("softsolve run a --out=b --set c='d e'", "softsolve run a --set 'c=d e'"),
        ("softsolve run a --out b", "softsolve run a"),
    ],
)
def test_commands_without_directories(command: str, kept: str) -> None:
    assert without_directories(command) == kept


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (1.26, "1.3 s"), (61, "1 min 1 s"), (3725.2, "1 h 2 min 5 s")],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert _duration(seconds) == text
