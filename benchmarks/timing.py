"""Medians of interleaved repeats: what disturbs one contender disturbs all."""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

# A timing is of as many calls in a row as last this long.
SHORTEST = 1e-2
# Threads of some libraries spin for a while after their work: time enough to stop.
PAUSE = 2e-2


@dataclass
class Times:
    """Seconds of a first call, compilation included, and of calls after it."""

    first: float
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The median of the calls after the first."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> tuple[float, float]:
        """The quartiles of the calls after the first."""
        if len(self.seconds) < 2:
            return self.median, self.median
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return low, high


def timed(call: Callable[[], object], count: int = 1) -> float:
    """Return the seconds of one of so many calls in a row."""
    began = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - began) / count


def interleaved(
    calls: dict[str, Callable[[], object]],
    *,
    rounds: int,
    budget: float,
    advance: Callable[[str], None] = lambda _: None,
    shortest: float = SHORTEST,
    pause: float = PAUSE,
) -> dict[str, Times]:
    """Time calls in turns, ``rounds`` times, each after a pause.

    A call that has taken ``budget`` seconds sits out the other rounds, after three.
    ``advance`` is told what is timed next. A timing is of as many calls in a row as
    last ``shortest`` seconds.
    """
    times, counts = {}, {}
    for name, call in calls.items():
        advance(name)
        times[name] = Times(timed(call))
        once = min(timed(call) for _ in range(2 if times[name].first < 1 else 1))
        counts[name] = max(1, round(shortest / once))
    gc.collect()
    gc.disable()
    try:
        for round_number in range(rounds):
            for name, call in calls.items():
                spent = sum(times[name].seconds) * counts[name]
                if round_number < 3 or spent < budget:
                    advance(name)
                    time.sleep(pause)
                    times[name].seconds.append(timed(call, counts[name]))
    finally:
        gc.enable()
    return times
