"""The command as a user types it."""

import gzip
import json
import re
import resource
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
    assert re.search(r"setting +quick +paper\n", listed)
    assert re.search(r"learning_rates +0.001, 0.01, 0.1 +0.001, 0.01, 0.1\n", listed)
    assert re.search(r"steps +600 +2000\n", listed)


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
        (["run", "ranking", "--set", "temperatures=inf"], 2, "must be finite"),
        (["run", "shortest-path", "--set", "losses="], 2, "losses must be one or more"),
        (["data", "--data", "/nowhere"], 3, "there is no directory /nowhere"),
        (["report", "/nowhere"], 4, "holds no run"),
        (["report", "/nowhere", "--markdown", "page"], 2, "that ends in .md; got page"),
        ([*RANKING, "--out", "/proc/run"], 4, "cannot write /proc/run"),
    ],
)
def test_exit_codes(arguments: list[str], code: int, message: str) -> None:
    ended = softsolve(*arguments)
    assert message in ended.stderr
    assert ended.exit_code == code
    assert ended.stdout == ""
    assert not ended.stderr.startswith("\n")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("iris.csv.gz", gzip.compress(b"x1,y1,y2\n" + b"1,1,2\n" * 99)[:-9], "be read"),
        ("iris.csv", b"x1,y1,y2\n1,1,2\n1,2", r"line 3: must be 3 numbers; got '1,2'"),
        ("iris.csv", b"\x00\xff" * 99, "must start with the header"),
    ],
    ids=["truncated archive", "truncated line", "not a table"],
)
def test_data_that_is_wrong(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / "label_ranking").mkdir()
    path = tmp_path / "label_ranking" / name
    path.write_bytes(content)
    out = tmp_path / "run"
    ended = softsolve(*RANKING, "--data", str(tmp_path), "--out", str(out))
    assert str(path) in ended.stderr
    assert re.search(message, ended.stderr)
    assert ended.exit_code == 3
    assert not out.exists()


def test_another_run_in_the_directory(tmp_path: Path) -> None:
    assert softsolve(*RANKING, "--out", str(tmp_path)).exit_code == 0
    ended = softsolve(*RANKING, "--out", str(tmp_path), "--seed", "1")
    assert "holds another run: its seed is 0, not 1" in ended.stderr
    assert ended.exit_code == 4


def test_a_full_disk_is_told_and_the_run_continues(tmp_path: Path) -> None:
    whole = softsolve(*RANKING, "--json", "--out", str(tmp_path / "whole"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, hard))  # no file is larger
    try:
        full = softsolve(*RANKING, "--json", "--out", str(tmp_path / "full"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "cannot write" in full.stderr
    assert "make room" in full.stderr
    assert full.exit_code == 4
    again = softsolve(*RANKING, "--json", "--out", str(tmp_path / "full"))
    assert json.loads(again.stdout) == json.loads(whole.stdout)


COMMAND = [sys.executable, "-m", "softsolve.cli"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_standard_output_that_cannot_be_written() -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [*COMMAND, "list"],
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert ended.stderr == (
        "softsolve: cannot write to standard output: No space left on device.\n"
    )
    assert ended.returncode == 4


def test_a_reader_that_has_had_enough_is_no_error() -> None:
    process = subprocess.Popen(
        [*COMMAND, "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()  # before the command writes: importing takes longer
    _, errors = process.communicate()
    assert errors == ""
    assert process.returncode == 0


LONG = [
    "run",
    "ranking",
    "--set=data_sets=iris,wine",
    "--set=losses=squared",
    "--set=steps=2000",
    "--set=rounds=100",
]


def start(out: Path, *, lines: int) -> subprocess.Popen[str]:
    """Start a run, and return when its metrics have so many lines."""
    script = (
        "from softsolve.experiments import runner; "
        "runner.SECONDS_BETWEEN_CHECKPOINTS = 0.1; "
        "from softsolve.cli import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, *LONG, "--out", str(out)],
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = out / "metrics.jsonl"
    while not metrics.exists() or len(metrics.read_bytes().splitlines()) < lines:
        assert process.poll() is None
        time.sleep(0.01)
    return process


def test_ctrl_c_says_how_to_continue(tmp_path: Path) -> None:
    process = start(tmp_path, lines=3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert "Interrupted. Run the same command, with this --out, to continue" in errors
    assert "Traceback" not in errors
    assert process.returncode == 130
    again = softsolve(*LONG, "--out", str(tmp_path))
    assert again.exit_code == 0
    assert "Traceback" not in again.stderr


def test_a_killed_run_continues_to_the_same_numbers(tmp_path: Path) -> None:
    process = start(tmp_path / "killed", lines=30)
    beside = softsolve(*LONG, "--out", str(tmp_path / "killed"))
    assert "another process is running" in beside.stderr
    assert beside.exit_code == 4
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert softsolve("report", str(tmp_path / "killed")).exit_code == 0
    again = softsolve(*LONG, "--json", "--out", str(tmp_path / "killed"))
    whole = softsolve(*LONG, "--json", "--out", str(tmp_path / "whole"))
    assert json.loads(again.stdout) == json.loads(whole.stdout)
    assert "results" in RunDirectory(tmp_path / "killed").read_manifest()
