"""Making a solver of a user's function."""

import functools
from collections.abc import Callable
from typing import Any, Literal, overload

from softsolve.solvers.black_box import FunctionSolver

__all__ = ["FunctionSolver", "solver"]

Function = Callable[..., Any]


@overload
def solver(
    function: Function,
    *,
    batched: bool = True,
    linear: bool = False,
    workers: int | None = None,
    executor: Any = None,
    processes: int | None = None,
    time_limit: float | None = None,
    on_failure: Literal["raise", "drop"] = "raise",
    event_ndim: int = 1,
    out_shape: tuple[int, ...] | None = None,
    native: bool = False,
) -> FunctionSolver: ...


@overload
def solver(
    function: None = None,
    *,
    batched: bool = True,
    linear: bool = False,
    workers: int | None = None,
    executor: Any = None,
    processes: int | None = None,
    time_limit: float | None = None,
    on_failure: Literal["raise", "drop"] = "raise",
    event_ndim: int = 1,
    out_shape: tuple[int, ...] | None = None,
    native: bool = False,
) -> Callable[[Function], FunctionSolver]: ...


def solver(
    function: Function | None = None,
    *,
    batched: bool = True,
    linear: bool = False,
    workers: int | None = None,
    executor: Any = None,
    processes: int | None = None,
    time_limit: float | None = None,
    on_failure: Literal["raise", "drop"] = "raise",
    event_ndim: int = 1,
    out_shape: tuple[int, ...] | None = None,
    native: bool = False,
) -> FunctionSolver | Callable[[Function], FunctionSolver]:
    r"""Make a solver of a function, as a call or as a decorator.

    The function gets NumPy arrays and returns NumPy arrays, in every framework. It
    must be pure and deterministic, row by row.

    Parameters
    ----------
    function
        ``function(theta, *context)``: solutions for scores, a batch of them (rows
        first) or, with ``batched=False``, one instance.
    batched
        Whether the function takes a batch of instances.
    linear
        Declare that it maximises :math:`\langle y, \theta\rangle` over a fixed set,
        exactly. Then the perturbed maximum and Fenchel-Young losses are available.
    workers
        Solve with this many threads: for functions that release the GIL. With
        ``executor``, how many workers it has (default: as many as this machine has
        CPUs), from which the size of the pieces follows that it is given.
    executor
        Solve with an executor of yours: one with ``map`` or ``submit`` as in
        :mod:`concurrent.futures` (or :mod:`multiprocessing`'s pools, loky's, Ray's
        ``Pool``), a :class:`joblib.Parallel`, a Dask ``Client`` or its
        ``get_executor()``, or the module ``ray``. See Notes.
    processes
        Solve one instance at a time in this many processes, which start at the first
        call and stay. For functions that hold the GIL, that may crash, or that need a
        time limit.
    time_limit
        Seconds that one solve may take, with ``processes``: a process that takes longer
        is killed, and another one started in its place, which takes as long as
        importing the function's module. Such a solve has failed.
    on_failure
        What becomes of a solve that fails: that raises, takes too long, or whose
        process dies. ``"raise"`` a :class:`SolverError` that names the row, with the
        function's exception as its cause; or ``"drop"`` the draw. See Notes.
    event_ndim
        Number of axes of one instance's scores.
    out_shape
        Shape of one instance's output, if it is not that of the scores: JAX and
        torch.compile must know it beforehand.
    native
        Hand the framework's own arrays to the function instead of NumPy's (a batch of
        them): for functions written in torch or jax.numpy, to declare facts of them.

    Notes
    -----
    **Executors.** Results, their order and exceptions are those of a loop, whatever the
    executor. ``benchmarks/executor_checks.py`` tries those of
    :mod:`concurrent.futures`, joblib, Dask and Ray; the tests have stand-ins for the
    last two. Functions that go to other processes must be picklable: defined at the top
    level of a module, where the decorator may be used (joblib, Dask and Ray take others
    too). softsolve must be installed where they run.

    **Dropped draws** change what is estimated: no longer :math:`E[y^*(\theta +
    \varepsilon Z)]` but this expectation *given that the solve succeeds*. If solves
    fail for reasons of their own, as a machine that is busy, both are the same; if
    success depends on the scores, they are not. Averages, and the leave-one-out
    baseline, run over the draws of a row that are left, M' of M, for which the Jacobian

    .. math:: \frac{1}{\varepsilon (M'-1)} \sum_m (y_m - \bar y)\, s_m^\top

    is an unbiased estimate of the derivative of that expectation; second derivatives
    are not available. (Gradients of the perturbed maximum and of Fenchel-Young losses
    are averages of the solutions that are left; these are derivatives of the averaged
    values where success does not depend on the scores.) A row all of whose draws failed
    is an error, and so are derivatives from a single one. The first failure is
    announced by a warning, and the attribute ``dropped`` of the solver counts them
    all. Called by itself, the solver returns NaN in rows that failed; a function of
    batches, or of one instance, may do so as well to say that it failed.

    Examples
    --------
    >>> import numpy as np
    >>> @solver(batched=False, linear=True)
    ... def argmax(theta):
    ...     return np.eye(len(theta))[theta.argmax()]
    >>> argmax(np.array([[1.0, 3.0, 2.0]]))
    array([[0., 1., 0.]])

    With processes of your own, for which the function must be in a module::

        with concurrent.futures.ProcessPoolExecutor() as pool:
            layer = Perturbed(solver(my_module.route, batched=False, executor=pool))

    On a cluster::

        client = dask.distributed.Client("tcp://...")  # or ray.init(), and executor=ray
        route = solver(my_module.route, batched=False, executor=client, workers=64)
    """
    options: dict[str, Any] = {
        "batched": batched,
        "linear": linear,
        "workers": workers,
        "executor": executor,
        "processes": processes,
        "time_limit": time_limit,
        "on_failure": on_failure,
        "event_ndim": event_ndim,
        "out_shape": out_shape,
        "native": native,
    }
    if function is None:
        return functools.partial(FunctionSolver, **options)
    return FunctionSolver(function, **options)
