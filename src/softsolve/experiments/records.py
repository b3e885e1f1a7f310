"""What a run leaves in its directory, so that it can be killed at any moment.

================== ==================================================================
``manifest.json``  the command, configuration, versions, hardware, seed and seconds
``metrics.jsonl``  a line for each round of training and each finished trial
``checkpoint.pt``  where training is; replaced as a whole, never changed
``artifacts/``     arrays for pictures, one file a trial
``lock``           held by the process that runs; it may stay, it means nothing then
================== ==================================================================

A checkpoint says how long ``metrics.jsonl`` was when it was written. To resume, the
lines after that are dropped and written again by the training that continues from the
checkpoint: no line is there twice, and none is missing.
"""

import contextlib
import io
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from softsolve.experiments.errors import OutputError

try:
    import fcntl
except ImportError:  # pragma: no cover  # Windows: two runs are not told apart
    fcntl = None  # type: ignore[assignment]

Record = dict[str, Any]


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of the file system into an :class:`OutputError`."""
    try:
        yield
    except OSError as error:
        msg = (
            f"cannot write {path}: {error.strerror or error}. What is in "
            f"{path.parent} is whole; make room or choose another directory, and run "
            "again."
        )
        raise OutputError(msg) from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Write a file as a whole: until the end, the old one stays."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with unfinished.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


class RunDirectory:
    """The files of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest_path = path / "manifest.json"
        self.metrics_path = path / "metrics.jsonl"
        self.checkpoint_path = path / "checkpoint.pt"
        self.lock_path = path / "lock"
        self._metrics: IO[bytes] | None = None
        self._lock: IO[bytes] | None = None

    def lock(self) -> None:
        """Keep other processes out, until :meth:`close` or the end of this one."""
        with writing(self.lock_path):
            self._lock = self.lock_path.open("wb")
        try:
            if fcntl is not None:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            msg = (
                f"another process is running in {self.path}. Wait for its end, stop "
                "it, or pass another --out."
            )
            raise OutputError(msg) from None
        except OSError:
            pass  # a file system without locks

    def read_manifest(self) -> Record | None:
        """Return the manifest, or None where there is no run."""
        try:
            return json.loads(self.manifest_path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            msg = f"{self.manifest_path} is not a run's manifest: {error}."
            raise OutputError(msg) from error

    def write_manifest(self, manifest: Record) -> None:
        """Write the manifest."""
        with replacing(self.manifest_path) as file:
            file.write((json.dumps(manifest, indent=2) + "\n").encode())

    def read_metrics(self) -> list[Record]:
        """Return the whole lines of the metrics."""
        if not self.metrics_path.exists():
            return []
        lines = self.metrics_path.read_bytes().split(b"\n")
        return [json.loads(line) for line in lines[:-1]]

    def read_checkpoint(self) -> Record | None:
        """Return the last checkpoint, or None."""
        if not self.checkpoint_path.exists():
            return None
        try:
            return torch.load(self.checkpoint_path, weights_only=True)
        except (OSError, RuntimeError, ValueError, EOFError) as error:
            msg = (
                f"{self.checkpoint_path} cannot be read: {error}. Pass another --out, "
                "or remove it to start the run again."
            )
            raise OutputError(msg) from error

    def open_metrics(self, size: int) -> None:
        """Open the metrics to append to their first ``size`` bytes."""
        with writing(self.metrics_path):
            self._metrics = self.metrics_path.open("ab")
            self._metrics.truncate(size)

    def append(self, record: Mapping[str, Any]) -> None:
        """Append a line to the metrics, and see it on the disk."""
        file = self._open_file()
        with writing(self.metrics_path):
            file.write((json.dumps(record) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())

    def write_checkpoint(self, state: Record) -> None:
        """Write a checkpoint that goes with the metrics so far."""
        size = os.fstat(self._open_file().fileno()).st_size
        buffer = io.BytesIO()  # torch.save hides the errors of a file
        torch.save({**state, "metrics_size": size}, buffer)
        with replacing(self.checkpoint_path) as file:
            file.write(buffer.getbuffer())

    def write_artifacts(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Write a trial's arrays."""
        with replacing(self.path / "artifacts" / f"{name}.npz") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

    def read_artifacts(self, name: str) -> dict[str, np.ndarray]:
        """Return a trial's arrays; none where it left none."""
        path = self.path / "artifacts" / f"{name}.npz"
        if not path.exists():
            return {}
        with np.load(path) as arrays:
            return dict(arrays)

    def close(self) -> None:
        """Close the metrics, and let other processes in."""
        for file in (self._metrics, self._lock):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()
        self._metrics = self._lock = None

    def _open_file(self) -> IO[bytes]:
        if self._metrics is None:
            msg = "open_metrics comes before append and write_checkpoint"
            raise RuntimeError(msg)
        return self._metrics
