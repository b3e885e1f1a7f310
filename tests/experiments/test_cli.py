"""The command as a user types it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from softsolve.cli import main
from softsolve.experiments.records import RunDirectory

TINY = ["data_sets=iris", "losses=fenchel-young,squared", "steps=10"]
SYNTHETIC = ["labels=4", "epochs=20", "train_size=32", "runs=1", "losses=squared"]
RANKING = ["run", "ranking", *(f"--set={text}" for text in TINY)]


def softsolve(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_run_and_report(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    ran = softsolve(*RANKING, "--out", out)
    assert ran.exit_code == 0, ran.output
    assert "table 2: Perturbed FY 0." in ran.stdout
    written = softsolve("report", out)
    assert written.exit_code == 0, written.output
    page = Path(written.stdout.strip())
    text = page.read_text()
    assert "data:image/png;base64," in text
    assert "http" not in text
    assert "src=" in text
    assert "Table 2: learning rate and temperature chosen" in text
    for kind in ("png", "svg"):
        assert (page.parent / f"ranking-scatter.{kind}").stat().st_size > 1000


def test_the_synthetic_ranking_page(tmp_path: Path) -> None:
    settings = [f"--set={text}" for text in SYNTHETIC]
    ran = softsolve("run", "synthetic-ranking", *settings, "--out", str(tmp_path))
    assert ran.exit_code == 0, ran.output
    assert "Squared: at σ = 0.01" in ran.stdout
    page = Path(softsolve("report", str(tmp_path)).stdout.strip())
    assert page.read_text().count("<img") == 2


def test_results_as_json_are_all_of_standard_output(tmp_path: Path) -> None:
    ran = softsolve(*RANKING, "--json", "--out", str(tmp_path))
    assert set(json.loads(ran.stdout)["means"]["table 2"]) == {
        "fenchel-young",
        "squared",
    }


def test_list_names_the_experiments_and_their_settings() -> None:
    listed = softsolve("list").stdout
    assert "ranking: label ranking on 21 data sets" in listed
    assert "learning_rates=0.001,0.01,0.1" in listed


def test_data_verifies_files(tmp_path: Path) -> None:
    assert "missing" in softsolve("data", "--data", str(tmp_path)).stdout
    (tmp_path / "iris.csv").write_text("x1,y1\n0,1\n")
    found = softsolve("data", "--data", str(tmp_path))
    assert found.exit_code == 3
    assert "not as published: iris" in found.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "ranking", "--epochs", "3"], 2, "No such option"),
        (["run", "sorting"], 2, "no experiment 'sorting'. There are ranking"),
        (["run", "ranking", "--set", "step=1"], 2, "no such setting. There are"),
        (["run", "ranking", "--preset", "long"], 2, "'long' is not one of"),
        (["run", "ranking", "--preset", "paper"], 3, "Pass --data DIR"),
        (["run", "ranking", "--data", "/nowhere"], 3, "/nowhere has no file"),
        (["report", "/nowhere"], 4, "holds no run"),
        ([*RANKING, "--out", "/proc/run"], 4, "cannot write /proc/run"),
    ],
)
def test_exit_codes(arguments: list[str], code: int, message: str) -> None:
    ended = softsolve(*arguments)
    assert message in ended.stderr
    assert ended.exit_code == code
    assert ended.stdout == ""


def test_a_killed_run_continues_to_the_same_numbers(tmp_path: Path) -> None:
    settings = ["data_sets=iris,wine", "losses=squared", "steps=1000", "rounds=100"]
    arguments = ["run", "ranking", *(f"--set={text}" for text in settings)]
    script = (
        "import sys; from softsolve.experiments import runner; "
        "runner.SECONDS_BETWEEN_CHECKPOINTS = 0.1; "
        "from softsolve.cli import main; main()"
    )
    command = [sys.executable, "-c", script, *arguments, "--json", "--out"]
    killed = subprocess.Popen([*command, str(tmp_path / "killed")], cwd=tmp_path)
    metrics = tmp_path / "killed" / "metrics.jsonl"
    while not metrics.exists() or len(metrics.read_bytes().splitlines()) < 40:
        assert killed.poll() is None
        time.sleep(0.01)
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    again = softsolve(*arguments, "--json", "--out", str(tmp_path / "killed"))
    whole = softsolve(*arguments, "--json", "--out", str(tmp_path / "whole"))
    assert json.loads(again.stdout) == json.loads(whole.stdout)
    assert "results" in RunDirectory(tmp_path / "killed").read_manifest()
