"""`measure.step_time`: how long a compiled program should take on a device.

Each operation of the optimised program takes the time of its flops at the device's rate
or of its bytes at the memory's, whichever is longer, and a moment to start. On GPUs and
TPUs the sum at the published rates is a limit that no program passes; twice that is the
other end. On a processor the rates are measured, and the range lies around what ten
programs took of them (benchmarks/step_time.py).
"""

import dataclasses

import jax

from frugax.budget import format_seconds
from frugax.targets import AcceleratorRates, CompiledAnswer, CpuRates, Target

from ._program_costs import program
from ._work import Loop, Operation, Work, work

# Parts of the measured rates that programs reach, chosen on ten of them on two cores of
# an EPYC (benchmarks/step_time_programs.py, CHOSEN_ON), which took 0.70 to 1.33 of the
# sum in three runs.
_DENSE = 1.1
# The gradients of a convolution run side by side, and are measured alone.
_CONVOLUTION, _KERNEL_GRADIENT = 1.2, 1.4
_ARITHMETIC = 1 / 12  # of the flops of products
_CACHED_BYTES = 100_000
_CACHED, _PASSED, _REDUCED = 1.2, 0.5, 0.24  # of the memory's rate
# Of the time of a tiny product; the bodies of loops run without a scheduler.
_START, _START_IN_LOOP, _SERIAL, _LAUNCH = 0.3, 0.12, 1 / 70, 20.0
# Smaller products run on one core: 8.4e6 flops do, 3.4e7 run on all.
_ONE_CORE_FLOPS = 2e7
_CPU_RANGE = (0.7, 1.4)
# Larger blocks are taken from the system anew by each run, which fills them with zeros
# page by page (glibc's largest threshold).
_FRESH_BYTES = 32 * 2**20
_ACCELERATOR_RANGE = 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class StepTime:
    """A range of seconds in which one run of a program is expected to lie.

    Attributes:
        low: on an accelerator the physical limit.
        high: at most twice as long.
        problem: why the time cannot be told; "" if it can.
    """

    low: float = 0.0
    high: float = 0.0
    problem: str = ""

    def judge(self, measured: float) -> str:
        """The verdict on a measured time: "kept", "broken" or "cannot tell"."""
        if self.problem or not 0 < measured < float("inf"):
            return "cannot tell"
        return "kept" if self.low <= measured <= self.high else "broken"

    def __str__(self) -> str:
        if self.problem:
            return "cannot tell"
        return f"{format_seconds(self.low)} to {format_seconds(self.high)}"


def step_time(
    compiled: "jax.stages.Compiled | CompiledAnswer", target: Target
) -> StepTime:
    """Predict how long a compiled program takes on the devices of a target.

    Args:
        compiled: `jax.jit(f).lower(*args).compile()`, or the answer of a target.
        target: the device it was compiled for.

    Several devices of a processor are counted one after the other.

    Returns:
        A range; without one the problem says why: a device without rates, processors of
        several processes, a loop without a count, an operation whose work is not known.
    """
    if target.platform == "cpu" and target.num_hosts > 1:
        problem = "how fast its processes exchange numbers is not known"
        return StepTime(problem=problem)
    rates = target.rates
    if rates is None:
        return StepTime(problem=f"the rates of {target.name} are not known")
    done = work(compiled)
    if problem := _find_problem(done):
        return StepTime(problem=problem)
    if isinstance(rates, CpuRates):
        costs = program(compiled)
        fresh = [n for n in (costs.temp_bytes, costs.output_bytes) if n > _FRESH_BYTES]
        once = sum(fresh) / rates.fresh_memory + _LAUNCH * rates.start_seconds
        least, most = done.total(
            lambda o, in_loop: _on_processor(o, rates, in_loop=in_loop)
        )
        # Several devices share the cores.
        low, high = (target.num_devices * each for each in _CPU_RANGE)
        return StepTime(low * (least + once), high * (most + once))
    if dtype := _find_unpriced(done, rates):
        return StepTime(problem=f"the rate of {target.name} in {dtype} is not known")
    least, most = done.total(lambda o, _: _on_accelerator(o, rates))
    # Transfers may be hidden behind computation.
    sent = done.moved_bytes / rates.link
    return StepTime(max(least, sent), _ACCELERATOR_RANGE * max(most, sent))


def _find_problem(work: Work) -> str:
    """Why the work of a program is not known; "" if it is."""
    for part in work.parts:
        if isinstance(part, Operation):
            found = part.problem
        elif isinstance(part, Loop):
            unknown = "how often a loop runs is not known"
            found = unknown if part.count is None else _find_problem(part.body)
        else:
            found = next(filter(None, map(_find_problem, part.choices)), "")
        if found:
            return found
    return ""


def _find_unpriced(work: Work, rates: AcceleratorRates) -> str:
    """A dtype of a product whose rate is not known; "" if there is none."""
    dtypes = {o.dtype for o, _ in work.operations() if o.flops}
    return min(dtypes - rates.products.keys(), default="")


def _on_accelerator(operation: Operation, rates: AcceleratorRates) -> float:
    if operation.collective:
        return 0.0
    compute = operation.flops / rates.products[operation.dtype or "f32"]
    if rates.arithmetic:
        simple = operation.arithmetic + operation.transcendentals
        compute = max(compute, simple / rates.arithmetic)
    return max(compute, operation.bytes / rates.memory) + rates.start_seconds


def _on_processor(operation: Operation, rates: CpuRates, *, in_loop: bool) -> float:
    if operation.collective:
        return operation.moved_bytes / (_PASSED * rates.memory)
    # Half as many float64 as float32 fit into one instruction.
    width = 2 if operation.dtype in ("f64", "c64", "c128") else 1
    return (
        (_START_IN_LOOP if in_loop else _START) * rates.start_seconds
        + width * operation.flops / _dense_rate(operation, rates)
        + operation.bytes / _memory_rate(operation, rates)
        + operation.arithmetic / (_ARITHMETIC * rates.products)
        + operation.transcendentals / rates.transcendentals
        + _SERIAL * operation.serial * rates.start_seconds
    )


def _dense_rate(operation: Operation, rates: CpuRates) -> float:
    if operation.kind == "convolution":
        return _CONVOLUTION * rates.convolutions
    if operation.kind == "kernel_gradient":
        return _KERNEL_GRADIENT * rates.kernel_gradients
    if operation.flops < _ONE_CORE_FLOPS:
        return rates.small_products
    return _DENSE * rates.products


def _memory_rate(operation: Operation, rates: CpuRates) -> float:
    if operation.kind == "transpose":
        return rates.transposes
    if operation.kind in ("reduction", "scatter"):
        return _REDUCED * rates.memory
    part = _CACHED if operation.bytes < _CACHED_BYTES else _PASSED
    return part * rates.memory
