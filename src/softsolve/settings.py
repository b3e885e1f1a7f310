"""The settings of a layer, checked."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from softsolve.estimators import Baseline, best_baseline
from softsolve.noise import Noise, get_noise
from softsolve.perturbation import Perturbation, get_perturbation
from softsolve.solvers.base import Array, Shape, Solver

Route = Literal["fused", "array", "host"]
DEFAULT_MEMORY_BUDGET = 2**28


@dataclass(frozen=True)
class Settings:
    """The hyperparameters of a perturbed solver, checked; see ``Perturbed``."""

    solver: Callable[..., Any]
    num_samples: int
    noise: Noise
    perturbation: Perturbation
    baseline: Baseline
    form: Literal["solution", "maximum"]
    independent_backward: bool
    symmetric: bool
    route: Route | None
    memory_budget: int

    @classmethod
    def create(
        cls,
        solver: object,
        *,
        num_samples: object,
        noise: object,
        perturbation: str,
        baseline: str,
        form: str,
        backward: str,
        symmetric: object,
        route: str,
        memory_budget: object,
    ) -> "Settings":
        """Check the hyperparameters and resolve names and defaults."""
        if not callable(solver):
            msg = (
                f"Perturbed(solver) needs a function of scores; got {solver!r}. Pass "
                "one of softsolve.solvers, or any callable theta -> y."
            )
            raise TypeError(msg)
        if isinstance(solver, type):
            msg = (
                f"Perturbed(solver) needs a solver, got the class {solver.__name__}. "
                f"Make one: {solver.__name__}(...)."
            )
            raise TypeError(msg)
        num_samples = _whole_number("num_samples", num_samples)
        memory_budget = _whole_number("memory_budget", memory_budget)
        if not isinstance(symmetric, bool):
            msg = f"symmetric must be True or False; got {symmetric!r}."
            raise TypeError(msg)
        check_choice("baseline", baseline, ("auto", "none", "point", "leave_one_out"))
        check_choice("form", form, ("solution", "maximum"))
        check_choice("backward", backward, ("shared", "independent"))
        check_choice("route", route, ("auto", "fused", "array", "host"))
        noise = get_noise(noise)
        settings = cls(
            solver=solver,
            num_samples=num_samples,
            noise=noise,
            perturbation=get_perturbation(perturbation, noise),
            baseline=_resolve_baseline(baseline, num_samples),
            form=form,  # type: ignore[arg-type]
            independent_backward=backward == "independent",
            symmetric=symmetric,
            route=None if route == "auto" else route,  # type: ignore[arg-type]
            memory_budget=memory_budget,
        )
        if form == "maximum":
            settings.require_linear('form="maximum"')
            settings._require_plain_gradient()
        if symmetric:
            settings.require_linear("symmetric=True")
            settings._require_symmetry()
        if settings.drops:
            settings._require_retained_draws()
        return settings

    def __hash__(self) -> int:
        # Compiled passes are looked up by it in every call: that of all fields takes
        # longer than a small solve.
        return hash((self.solver, self.num_samples))

    def with_form(self, form: Literal["solution", "maximum"]) -> "Settings":
        """Return these settings with another form."""
        return replace(self, form=form)

    @property
    def event_ndim(self) -> int:
        """Number of trailing axes of the scores that belong to one instance."""
        return getattr(self.solver, "event_ndim", 1)

    @property
    def linear(self) -> bool:
        """Whether the solver says that it maximises ⟨y, θ⟩ exactly."""
        return getattr(self.solver, "linear", False)

    @property
    def exact(self) -> bool:
        """Whether the solver finds the maximum, and not only something close to it."""
        return getattr(self.solver, "exact", True)

    @property
    def host(self) -> bool:
        """Whether the solver takes NumPy arrays only."""
        return getattr(self.solver, "host", False)

    @property
    def clips(self) -> bool:
        """Whether the solver maximises ⟨y, min(θ, 0)⟩ instead of ⟨y, θ⟩."""
        return getattr(self.solver, "clips_scores", False)

    @property
    def drops(self) -> bool:
        """Whether the solver returns NaN for draws that are to be left out."""
        return getattr(self.solver, "drops", False)

    def out_shape(self, event_shape: Shape) -> Shape:
        """Return the shape of one solution, as declared, for frameworks that trace."""
        declared: Shape | None = getattr(self.solver, "out_shape", None)
        return event_shape if declared is None else tuple(declared)

    @property
    def name(self) -> str:
        """What the solver is called in messages."""
        if isinstance(self.solver, Solver):
            return repr(self.solver)
        return getattr(self.solver, "__name__", type(self.solver).__name__)

    def project(self, x: Array) -> Array:
        """Project (..., *event) on the directions of the polytope."""
        solver = self.solver
        return solver.project(x) if isinstance(solver, Solver) else x

    def describe(self, temperature: Any, route: Route) -> str:
        """Return what a layer shows of itself."""
        facts = [
            self.name,
            f"temperature={temperature}",
            f"num_samples={self.num_samples}",
            f'noise="{self.noise.name}"',
        ]
        if self.perturbation.name != "additive":
            facts.append(f'perturbation="{self.perturbation.name}"')
        facts.append(f'baseline="{self.baseline}"')
        if self.form != "solution":
            facts.append(f'form="{self.form}"')
        if self.independent_backward:
            facts.append('backward="independent"')
        if self.symmetric:
            facts.append("symmetric=True")
        facts.append(f'route="{route}"')
        return ", ".join(facts)

    def require_linear(self, what: str) -> None:
        """Raise unless the solver is declared to maximise ⟨y, θ⟩ exactly."""
        if not self.linear:
            msg = (
                f"{what} needs a linear solver, one that maximises ⟨y, θ⟩ over a fixed "
                f"set; {self.name} is not declared as one. If it is, say so: "
                "softsolve.solver(function, linear=True) for functions of NumPy "
                "arrays, with native=True for functions of the framework's arrays."
            )
            raise TypeError(msg)

    def _require_symmetry(self) -> None:
        reasons = {
            "multiplicative perturbation": self.perturbation.name != "additive",
            "a solver that clips costs": self.clips,
            f"{self.name}, which is not exact": not self.exact,
            'form="maximum"': self.form != "solution",
        }
        for reason, holds in reasons.items():
            if holds:
                msg = (
                    "symmetric=True needs the Jacobian of an exact linear solver under "
                    f"additive noise; it does not go with {reason}."
                )
                raise ValueError(msg)

    def _require_retained_draws(self) -> None:
        reasons = {
            "num_samples=1": self.num_samples == 1,
            f'baseline="{self.baseline}"': self.baseline != "leave_one_out",
            'form="maximum"': self.form != "solution",
            "symmetric=True": self.symmetric,
        }
        for reason, holds in reasons.items():
            if holds:
                msg = (
                    f"{self.name} drops failed draws, after which averages are over "
                    "those left and their derivative needs leave-one-out; it does not "
                    f'go with {reason}. Use baseline="auto" and two samples or more, '
                    'or on_failure="raise".'
                )
                raise ValueError(msg)

    def _require_plain_gradient(self) -> None:
        if self.perturbation.name != "additive" or self.clips:
            msg = (
                'form="maximum" estimates the solution as the gradient of the maximum, '
                "which it is under additive noise for solvers that do not clip costs "
                'only. Use form="solution".'
            )
            raise ValueError(msg)

    def split_shape(self, shape: Shape) -> tuple[Shape, Shape]:
        """Split the shape of the scores into batch and event, and check the event."""
        if len(shape) < self.event_ndim:
            msg = (
                f"theta must have at least {self.event_ndim} axes for {self.name} (the "
                f"last {self.event_ndim} are one instance); got shape {tuple(shape)}."
            )
            raise ValueError(msg)
        split = len(shape) - self.event_ndim
        return tuple(shape[:split]), tuple(shape[split:])

    def check_instances(self, event_shape: Shape, context: tuple[Array, ...]) -> None:
        """Let a solver of ours check the shape of the instances and the context."""
        if isinstance(self.solver, Solver):
            self.solver.check(event_shape, context)

    def check_vector_output(self, out_shape: Shape, event_shape: Shape) -> None:
        """Raise unless solutions have the shape of the scores."""
        if out_shape != event_shape:
            msg = (
                f"BlackBox steps from scores along solutions, so those of {self.name} "
                f"must have the shape of the scores, {event_shape}; got {out_shape}."
            )
            raise ValueError(msg)

    def check_solutions(self, y_shape: Shape, rows: int, event_shape: Shape) -> None:
        """Raise unless a solver returned one solution for each row."""
        got = tuple(y_shape)
        if len(got) == 0 or got[0] != rows:
            msg = (
                f"{self.name} must return one solution for each of the {rows} rows of "
                f"scores it is given, shape ({rows}, …); it returned shape {got}. A "
                "function of one instance is made into a solver by "
                "softsolve.solver(function, batched=False)."
            )
            raise ValueError(msg)
        if self.linear and got[1:] != event_shape:
            msg = (
                f"{self.name} is linear, so its solutions must have the shape of the "
                f"scores, {event_shape}; it returned {got[1:]} in each row."
            )
            raise ValueError(msg)

    def chunk(self, rows: int, size: int, itemsize: int) -> int:
        """Return how many of the samples to solve at a time within the budget."""
        if self.drops:  # which draws are left is known when all are solved
            return self.num_samples
        # Noise, perturbed scores, solutions and the solver's own scratch.
        each = 4 * max(1, rows * size * itemsize)
        return max(1, min(self.num_samples, self.memory_budget // each))


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise unless an option is one of its choices."""
    if value not in choices:
        listed = ", ".join(f'"{choice}"' for choice in choices)
        msg = f"{name}= must be one of {listed}; got {value!r}."
        raise ValueError(msg)


def _whole_number(name: str, value: object) -> int:
    """Return a whole number from 1 on, NumPy's included, as an int."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        msg = f"{name} must be a whole number ≥ 1; got {value!r}."
        raise TypeError(msg)
    if value < 1:
        msg = f"{name} must be at least 1; got {value}."
        raise ValueError(msg)
    return int(value)


def _resolve_baseline(baseline: str, num_samples: int) -> Baseline:
    if baseline == "auto":
        return best_baseline(num_samples)
    if baseline == "leave_one_out" and num_samples < 2:
        msg = (
            'baseline="leave_one_out" needs num_samples ≥ 2; got 1. Use '
            'baseline="point" or more samples.'
        )
        raise ValueError(msg)
    return baseline  # type: ignore[return-value]
