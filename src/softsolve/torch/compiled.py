"""What a layer computes under torch.compile.

Autograd functions with a jvp cannot be traced there. Instead: the operators of
:mod:`softsolve.torch.compiled_fused` on the fused route, else plain operations whose
derivatives, of any order, are those of the surrogate of the estimators.
"""

import torch

from softsolve import estimators
from softsolve.estimators import Samples, Surrogate, best_baseline
from softsolve.layer import column_projector
from softsolve.torch import compiled_fused
from softsolve.torch.operators import checked_point, checked_target
from softsolve.torch.rows import Rows
from softsolve.torch.sampling import Call, sampled_maxima

Tensor = torch.Tensor


def refuse_compilation(what: str) -> None:
    """Raise in code that is being compiled."""
    if torch.compiler.is_compiling():
        msg = f"{what} cannot be compiled. Call it outside of torch.compile."
        raise RuntimeError(msg)


def smoothed_solution(call: Call, rows: Rows) -> Tensor:
    """Return the smoothed solution (B, k), with derivatives."""
    if compiled_fused.takes_operators(call, rows, maximum=False):
        return compiled_fused.smoothed_solution(call, rows)
    settings = call.settings
    theta, temperature = checked_point(*rows.fixed, call.multiplicative)
    z = call.noise(theta, settings.num_samples)
    values = call.samples(call.perturb(theta, temperature, z), rows.context)
    mean = values.mean(dim=1)
    if settings.independent_backward:
        z = call.noise(theta, settings.num_samples)
        values = call.samples(call.perturb(theta, temperature, z), rows.context)
    at_point = None
    if settings.baseline == "point":
        at_point = call.at_point(theta, rows.context)
    samples = Samples(values, settings.baseline, at_point)
    surrogate = _surrogate(call, rows, z)
    if settings.form == "maximum":
        return surrogate.gradient(settings.noise, samples)
    zeros = surrogate.expectation(samples)
    if settings.symmetric:
        zeros = zeros + _symmetric_less_plain(call, samples, surrogate, z)
    return mean + zeros


def smoothed_maximum(call: Call, rows: Rows, target: Tensor | None) -> Tensor:
    """Return the perturbed maximum (B,) relative to a target, with derivatives."""
    if compiled_fused.takes_operators(call, rows, maximum=True):
        return compiled_fused.smoothed_maximum(call, rows, target)
    theta, temperature = checked_point(*rows.fixed, call.multiplicative)
    if target is not None:
        target = checked_target(target)
    z = call.noise(theta, call.settings.num_samples)
    values, gradients, moment = sampled_maxima(
        call, theta, temperature, target, rows.context, z
    )
    baseline = best_baseline(call.settings.num_samples)
    higher = _surrogate(call, rows, z).maximum(
        Samples(values[..., None], baseline),
        call.derivatives(temperature, z),
        (gradients.mean(dim=1), moment),
    )
    return values.mean(dim=1) + higher


def _surrogate(call: Call, rows: Rows, z: Tensor) -> Surrogate:
    settings = call.settings
    if not settings.noise.smooth:
        msg = (
            f"noise {settings.noise.name!r} cannot be compiled: ν has no second "
            "derivative, and compiled code would not notice. Call the layer outside of "
            "torch.compile, or use a smooth noise."
        )
        raise ValueError(msg)
    return Surrogate(
        settings.perturbation,
        z,
        (settings.perturbation.coordinates(rows.theta), rows.temperature),
        nu=settings.noise.nu,
        stop_gradient=torch.Tensor.detach,
    )


def _symmetric_less_plain(
    call: Call, samples: Samples, surrogate: Surrogate, z: Tensor
) -> Tensor:
    """Return zeros (B, d) that turn first derivatives into those known of them.

    They are linear in the scores: second derivatives stay those of the surrogate.
    """
    tau0, temperature = surrogate.start
    step = (surrogate.point[0] - tau0)[..., None]
    derivatives = call.derivatives(temperature, z)

    def push(v: Tensor) -> Tensor:
        direction = (v, torch.zeros_like(v[:, 0]))
        return estimators.jvp(derivatives, samples, temperature, direction)

    def pull(g: Tensor) -> Tensor:
        return estimators.vjp(derivatives, samples, temperature, g)[0]

    project = column_projector(call.settings, call.event_shape)
    known = estimators.symmetric_projection(push, pull, project, step)
    return (known - push(step))[..., 0]
