"""`measure.work`: the operations that a compiled program runs, and what each moves.

The input is the optimised HLO, after fusion: an operation here is one kernel, and its
bytes are those that it reads from and writes to the device's memory.
"""

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeAlias

import jax

from frugax.targets import CompiledAnswer

from ._hlo import Computation, Instruction, Module
from ._protobuf import Message

Kind: TypeAlias = Literal[
    "product",
    "convolution",
    "kernel_gradient",
    "reduction",
    "scatter",
    "sort",
    "transpose",
    "pass",
]

# The scope of a conditional that a plan puts around what it computes again, so that the
# compiler neither merges it nor leaves it out. Its other branch, of zeros, never runs.
GATE_SCOPE = "frugax_gate"

_COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)
# These name values that exist already, or only wait for another operation.
_NO_WORK = frozenset(
    {
        *("parameter", "constant", "tuple", "get-tuple-element", "bitcast"),
        *("optimization-barrier", "add-dependency", "domain", "after-all"),
        *("partition-id", "replica-id"),
    }
)
# These move elements, and compute nothing.
_MOVES = frozenset(
    {
        *("broadcast", "reshape", "transpose", "copy", "slice", "pad", "concatenate"),
        *("reverse", "dynamic-slice", "dynamic-update-slice", "gather", "iota"),
        *("bitcast-convert", "copy-start"),
    }
)
# These read only a part of their first operand.
_PARTIAL_READS = frozenset({"dynamic-slice", "slice", "gather"})
# Evaluated as a polynomial with a division or a table: tens of instructions an element.
_TRANSCENDENTALS = {
    "exponential": 1.0,
    "exponential-minus-one": 1.0,
    "log": 1.0,
    "log-plus-one": 1.0,
    "tanh": 1.0,
    "logistic": 1.0,
    "cosine": 1.0,
    "sine": 1.0,
    "tan": 2.0,
    "erf": 1.0,
    "power": 2.0,
    "atan2": 2.0,
    "cbrt": 1.0,
}
# Simple instructions of one element.
_ARITHMETIC = {"divide": 4.0, "sqrt": 4.0, "rsqrt": 4.0, "remainder": 8.0}
# Custom calls that take no time of their own.
_MARKERS = frozenset(
    {
        *("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"),
        *("AllocateBuffer", "MoveToHost", "MoveToDevice", "PinToHost"),
    }
)
# Field numbers of hlo.proto, which are fixed once published.
_DIMENSIONS, _WINDOW, _CONVOLUTION, _CALL_TARGET, _DOT = 14, 15, 16, 28, 30
_BATCH_GROUPS = 58
_KERNEL_INPUT, _KERNEL_OUTPUT = 3, 4
_INPUT_BATCH, _INPUT_SPATIAL, _OUTPUT_SPATIAL = 7, 11, 12
_TRIP_COUNT = re.compile(r'"known_trip_count":\{[^}]*"n":"?(\d+)')
_PARTITIONS = re.compile(r'"outer_dimension_partitions":\[([^\]]*)\]')


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One kernel, or one collective.

    Attributes:
        name: the opcode, or for a fusion the traced operation.
        kind: of the work that dominates it.
        flops: of matrix products and convolutions.
        dtype: of the operands of these.
        arithmetic: simple instructions on elements, without those of `flops`.
        transcendentals: exponentials, logarithms and the like.
        serial: elements that are handled one at a time.
        bytes: read and written.
        moved_bytes: sent or received in a collective: the larger of its operand and its
            result.
        collective: the kind of collective; "" for a kernel.
        partitions: parts that run on threads of their own, where the compiler says so.
        problem: why its work is not known; "" if it is.
    """

    name: str
    kind: Kind = "pass"
    flops: float = 0.0
    dtype: str = ""
    arithmetic: float = 0.0
    transcendentals: float = 0.0
    serial: float = 0.0
    bytes: int = 0
    moved_bytes: int = 0
    collective: str = ""
    partitions: int = 1
    problem: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Loop:
    """A loop: `body` runs `count` times; None where the compiler does not know."""

    body: "Work"
    count: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Branches:
    """A conditional: one of these runs.

    Attributes:
        choices: its branches.
        is_gate: whether the branch with the most work always runs, see `GATE_SCOPE`.
    """

    choices: "tuple[Work, ...]"
    is_gate: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """The operations of a compiled program on one device, in their order.

    Attributes:
        parts: operations, loops and conditionals.
    """

    parts: "tuple[Operation | Loop | Branches, ...]"

    def operations(self, times: int = 1) -> Iterator[tuple[Operation, int]]:
        """Each operation and how often it runs; all branches of a conditional.

        The body of a loop whose count is not known counts once.
        """
        for part in self.parts:
            if isinstance(part, Operation):
                yield part, times
            elif isinstance(part, Loop):
                count = 1 if part.count is None else part.count
                yield from part.body.operations(times * count)
            else:
                for choice in part.choices:
                    yield from choice.operations(times)

    def total(
        self, value: Callable[[Operation, bool], float], *, in_loop: bool = False
    ) -> tuple[float, float]:
        """The sum of a value with the least and with the most of each conditional.

        The body of a loop whose count is not known counts once.

        Args:
            value: of an operation, which is told whether it is in the body of a loop.
            in_loop: whether all of these operations are.
        """
        least = most = 0.0
        for part in self.parts:
            if isinstance(part, Operation):
                low = high = value(part, in_loop)
            elif isinstance(part, Loop):
                count = 1 if part.count is None else part.count
                low, high = (count * n for n in part.body.total(value, in_loop=True))
            else:
                choices = [c.total(value, in_loop=in_loop) for c in part.choices]
                lows, highs = zip(*choices, strict=True)
                high = max(highs)
                low = max(lows) if part.is_gate else min(lows)
            least, most = least + low, most + high
        return least, most

    @property
    def moved_bytes(self) -> int:
        """Bytes of all collectives."""
        return sum(o.moved_bytes * times for o, times in self.operations())


def work(compiled: "jax.stages.Compiled | CompiledAnswer") -> Work:
    """Read the operations of a compiled program.

    Args:
        compiled: `jax.jit(f).lower(*args).compile()`, or the answer of a target.
    """
    module = Module.of(compiled)
    return _Reader(module).work_of(module.entry)


def count_operations(compiled: "jax.stages.Compiled") -> tuple[int, int]:
    """Count the operations that one run of a compiled program starts.

    The body of a loop counts as often as it runs, or once if the compiler does not know
    how often; of a conditional the branch with the most operations counts.

    Args:
        compiled: `jax.jit(f).lower(*args).compile()`.

    Returns:
        The operations outside of loops, and those inside.
    """
    module = Module.of(compiled)
    done = _Reader(module, is_detailed=False).work_of(module.entry)
    _, outside = done.total(lambda _, in_loop: not in_loop)
    _, inside = done.total(lambda _, in_loop: in_loop)
    return int(outside), int(inside)


class _Reader:
    """Reads the work of a module's computations; in detail or only their names."""

    def __init__(self, module: Module, *, is_detailed: bool = True) -> None:
        self._module = module
        self._is_detailed = is_detailed
        self._works: dict[int, Work] = {}

    def work_of(self, number: int) -> Work:
        if number not in self._works:
            computation = self._module.computation(number)
            parts: list[Operation | Loop | Branches] = []
            for instruction in computation:
                parts += self._parts_of(computation, instruction)
            self._works[number] = Work(tuple(parts))
        return self._works[number]

    def _parts_of(
        self, computation: Computation, instruction: Instruction
    ) -> "Sequence[Operation | Loop | Branches]":
        opcode = instruction.opcode
        if opcode in _NO_WORK or opcode.endswith(("-done", "-update")):
            return ()
        if opcode == "while":
            body, condition = map(self.work_of, instruction.called)
            found = _TRIP_COUNT.search(instruction.config)
            count = int(found[1]) if found else None
            return (Loop(Work(condition.parts + body.parts), count),)
        if opcode == "conditional":
            choices = tuple(map(self.work_of, instruction.called))
            is_gate = instruction.path.endswith(f"{GATE_SCOPE}/cond")
            return (Branches(choices, is_gate),)
        if opcode in ("call", "async-start"):
            return [p for n in instruction.called for p in self.work_of(n).parts]
        if opcode.removesuffix("-start") in _COLLECTIVES:
            return (_read_collective(computation, instruction),)
        if not self._is_detailed:
            return (Operation(name=opcode),)
        return (self._read_kernel(computation, instruction),)

    def _read_kernel(
        self, computation: Computation, instruction: Instruction
    ) -> Operation:
        counts = _Counts()
        partitions = 1
        if instruction.opcode == "fusion":
            inner = self._module.computation(instruction.called[0])
            for each in inner:
                self._count(inner, each, counts)
            size = _fused_bytes(inner)
            if "__ynn_fusion" in instruction.config:
                counts.serial += max(map(_scalar_elements, inner))
            if found := _PARTITIONS.search(instruction.config):
                sides = re.findall(r"\d+", found[1])
                partitions = math.prod(map(int, sides))
        else:
            self._count(computation, instruction, counts)
            size = _moved_by(computation, instruction)
        return Operation(
            name=instruction.path.rpartition("/")[2] or instruction.opcode,
            kind=counts.kind,
            flops=counts.flops,
            dtype=counts.dtype,
            arithmetic=counts.arithmetic,
            transcendentals=counts.transcendentals,
            serial=counts.serial,
            bytes=size,
            partitions=partitions,
            problem=counts.problem,
        )

    def _count(
        self, computation: Computation, instruction: Instruction, counts: "_Counts"
    ) -> None:
        """Add the work of one instruction, which may be part of a fusion."""
        opcode = instruction.opcode
        operands = computation.operands(instruction)
        moves = opcode in ("copy", "transpose")
        if moves and counts.kind == "pass" and _transposes(instruction, operands[0]):
            counts.kind = "transpose"
        if opcode in _NO_WORK | _MOVES:
            return
        if opcode in _TRANSCENDENTALS:
            counts.transcendentals += _TRANSCENDENTALS[opcode] * instruction.elements
        elif opcode == "dot":
            counts.add_product("product", _dot_flops(instruction, operands), operands)
        elif opcode == "convolution":
            flops = _convolution_flops(instruction, operands)
            kind = "kernel_gradient" if _slides_little(instruction) else "convolution"
            counts.add_product(kind, flops, operands)
        elif opcode == "custom-call":
            self._count_call(instruction, operands, counts)
        elif opcode in ("reduce", "reduce-window", "select-and-scatter", "map"):
            count = operands[0].elements
            if counts.kind == "pass":
                counts.kind = "reduction"
            if opcode == "reduce-window":
                sides = instruction.message.message(_WINDOW).messages(1)
                count = instruction.elements * math.prod(s.number(1) for s in sides)
            counts.arithmetic += count * self._applied_arithmetic(instruction)
        elif opcode == "scatter":
            counts.kind = "scatter"
            counts.arithmetic += operands[-1].elements
        elif opcode == "sort":
            counts.kind = "sort"
            length = _sorted_length(instruction)
            levels = math.log2(max(length, 2))
            counts.serial += instruction.elements * levels
        elif opcode == "fft":
            length = operands[0].arrays[0].dims[-1]
            levels = math.log2(max(length, 2))
            counts.arithmetic += 5 * operands[0].elements * levels
        elif opcode == "fusion":  # nested, as on TPUs
            inner = self._module.computation(instruction.called[0])
            for each in inner:
                self._count(inner, each, counts)
        elif opcode in ("send", "recv"):  # TPUs call back to Python by messages
            counts.problem = _CALLS_BACK
        elif opcode in ("triangular-solve", "cholesky", "infeed", "outfeed", "while"):
            counts.problem = f"the time of {opcode} is not known"
        else:
            counts.arithmetic += _ARITHMETIC.get(opcode, 1.0) * instruction.elements

    def _applied_arithmetic(self, instruction: Instruction) -> float:
        """Instructions that a reduction applies to each element."""
        inner = self._module.computation(instruction.called[0])
        return sum(i.opcode not in _NO_WORK | _MOVES for i in inner)

    def _count_call(
        self,
        instruction: Instruction,
        operands: Sequence[Instruction],
        counts: "_Counts",
    ) -> None:
        target = instruction.message.text(_CALL_TARGET)
        if target in _MARKERS:
            return
        if target == "TopK":
            counts.kind = "sort"
            counts.arithmetic += operands[0].elements
        elif target.startswith(("__cublas$", "__onednn$matmul")):
            flops = _gemm_flops(instruction, operands)
            if flops is not None:
                counts.add_product("product", flops, operands)
            else:
                counts.problem = f"the work of {target} is not known"
        elif target.startswith("__cudnn$conv"):
            flops = _convolution_flops(instruction, operands, target)
            counts.add_product("convolution", flops, operands)
        elif target.startswith("xla_ffi_python_"):
            counts.problem = _CALLS_BACK
        else:
            counts.problem = f"the work of the custom call {target} is not known"


_CALLS_BACK = "it calls back to Python, whose time is not known"


@dataclasses.dataclass(slots=True)
class _Counts:
    """The sums of one kernel."""

    kind: Kind = "pass"
    flops: float = 0.0
    dtype: str = ""
    arithmetic: float = 0.0
    transcendentals: float = 0.0
    serial: float = 0.0
    problem: str = ""

    def add_product(
        self, kind: Kind, flops: float, operands: Sequence[Instruction]
    ) -> None:
        self.kind = kind
        self.flops += flops
        # The wider operand sets the unit that multiplies.
        arrays = [o.arrays[0] for o in operands[:2]]
        self.dtype = max(arrays, key=lambda a: _width(a.dtype)).dtype


def _scalar_elements(instruction: Instruction) -> int:
    """Elements that XNNPACK's successor on CPUs, YNN, computes one at a time.

    It does where the side next to the last is 1, as derivatives of a batch of scalars
    have it (jaxlib 0.10.2: 10 ns an element, 0.4 where the side is 4).
    """
    (array, *_) = instruction.arrays
    if instruction.opcode != "multiply" or len(array.dims) < 3 or array.dims[-2] != 1:
        return 0
    return array.elements


def _transposes(instruction: Instruction, operand: Instruction) -> bool:
    """Whether neighbours in memory are not neighbours in the memory of the operand."""
    after, before = instruction.arrays[0], operand.arrays[0]
    permutation = instruction.message.numbers(_DIMENSIONS) or range(len(after.dims))
    old = next((d for d in before.order if before.dims[d] > 1), None)
    new = next((permutation[d] for d in after.order if after.dims[d] > 1), None)
    return old != new


def _width(dtype: str) -> int:
    return int((re.findall(r"\d+", dtype) or ["8"])[0])


def _read_collective(computation: Computation, instruction: Instruction) -> Operation:
    operands = sum(o.bytes for o in computation.operands(instruction))
    result = instruction.bytes
    # A "-start" returns its operands beside its results.
    if instruction.opcode.endswith("-start"):
        result -= operands
    kind = instruction.opcode.removesuffix("-start")
    return Operation(name=kind, moved_bytes=max(operands, result), collective=kind)


def _moved_by(computation: Computation, instruction: Instruction) -> int:
    """Bytes that an unfused operation reads and writes."""
    operands = computation.operands(instruction)
    if instruction.opcode in _PARTIAL_READS:
        return 2 * instruction.bytes
    if instruction.opcode == "dynamic-update-slice":
        return 2 * operands[1].bytes
    if instruction.opcode == "scatter":
        return 2 * operands[-1].bytes + operands[1].bytes
    return instruction.bytes + sum(o.bytes for o in operands)


def _fused_bytes(inner: Computation) -> int:
    """Bytes that a fusion reads from its parameters and writes to its results."""
    users: dict[int, list[Instruction]] = {}
    for each in inner:
        for n in dict.fromkeys(each.operands):
            users.setdefault(n, []).append(each)

    def read(each: Instruction) -> int:
        """Bytes of a value that its users need."""
        needed = 0
        for user in users.get(each.number, []):
            is_first = user.operands[0] == each.number
            if user.opcode in _PARTIAL_READS and is_first:
                needed += user.bytes
            elif user.opcode == "dynamic-update-slice" and is_first:
                pass  # it is written over in place
            elif user.opcode == "scatter" and is_first:
                needed += inner.operands(user)[-1].bytes
            elif user.opcode in ("bitcast", "reshape"):
                needed += read(user)
            else:
                return each.bytes
        return min(needed, each.bytes)

    parameters = [i for i in inner if i.opcode == "parameter"]
    written = sum(_written(inner, root) for root in inner.outputs().values())
    return sum(map(read, parameters)) + written


def _source(computation: Computation, instruction: Instruction) -> Instruction:
    """The instruction whose value this one only shows in another shape."""
    while instruction.opcode in ("bitcast", "copy", "reshape", "convert"):
        instruction = computation.operand(instruction)
    return instruction


def _written(inner: Computation, root: Instruction) -> int:
    at = _source(inner, root)
    if at.opcode == "dynamic-update-slice":
        return inner.operands(at)[1].bytes
    if at.opcode == "scatter":
        return inner.operands(at)[-1].bytes
    return root.bytes


def _dot_flops(instruction: Instruction, operands: Sequence[Instruction]) -> float:
    dims = operands[0].arrays[0].dims
    contracted = instruction.message.message(_DOT).numbers(1)
    return 2.0 * instruction.elements * math.prod(dims[n] for n in contracted)


def _gemm_flops(
    instruction: Instruction, operands: Sequence[Instruction]
) -> float | None:
    """Flops of a matrix product that a library computes; None where it is unclear."""
    try:
        config = json.loads(instruction.config)
        found = config.get("gemm_backend_config") or config["onednn_matmul_config"]
        contracted = found["dot_dimension_numbers"]["lhs_contracting_dimensions"]
    except (ValueError, KeyError):
        return None
    dims = operands[0].arrays[0].dims
    depth = math.prod(dims[int(n)] for n in contracted)
    return 2.0 * instruction.arrays[0].elements * depth


def _convolution_flops(
    instruction: Instruction, operands: Sequence[Instruction], target: str = ""
) -> float:
    """Flops of the pairs of an input and a weight that are not padding."""
    left, kernel = operands[0].arrays[0].dims, operands[1].arrays[0].dims
    out = instruction.arrays[0].dims
    # The gradients of cuDNN name the arrays by their part in the forward convolution.
    if "BackwardInput" in target:
        left, out = out, left
    elif "BackwardFilter" in target:
        kernel, out = out, kernel
    numbers = instruction.message.message(_CONVOLUTION)
    window = instruction.message.message(_WINDOW).messages(1)
    spatial = zip(
        numbers.numbers(_INPUT_SPATIAL),
        numbers.numbers(_OUTPUT_SPATIAL),
        window,
        strict=True,
    )
    pairs = 1
    for place, place_out, side in spatial:
        pairs *= _valid_pairs(side, left[place], out[place_out])
    batch = left[numbers.number(_INPUT_BATCH)]
    batch //= max(instruction.message.number(_BATCH_GROUPS), 1)
    channels = (
        kernel[numbers.number(_KERNEL_INPUT)] * kernel[numbers.number(_KERNEL_OUTPUT)]
    )
    return 2.0 * batch * channels * pairs


def _slides_little(instruction: Instruction) -> bool:
    """Whether the window has more places than it slides to.

    So has the gradient of a kernel, whose window is the gradient of the outputs.
    """
    numbers = instruction.message.message(_CONVOLUTION)
    window = instruction.message.message(_WINDOW).messages(1)
    out = instruction.arrays[0].dims
    slides = math.prod(out[place] for place in numbers.numbers(_OUTPUT_SPATIAL))
    return math.prod(side.number(1) for side in window) > slides


def _valid_pairs(side: Message, size: int, size_out: int) -> int:
    """Pairs of an output and a weight along one side that meet an input."""
    stride, low = max(side.number(2), 1), _signed(side.number(3))
    apart, apart_in = max(side.number(5), 1), max(side.number(6), 1)
    count = 0
    for k in range(side.number(1)):
        # o * stride + k * apart - low must be a multiple of apart_in below its end.
        begin = k * apart - low
        if apart_in == 1:
            first = max(0, -(begin // stride))
            last = min(size_out - 1, (size - 1 - begin) // stride)
            count += max(0, last - first + 1)
        else:
            end = (size - 1) * apart_in
            ats = range(begin, begin + size_out * stride, stride)
            count += sum(0 <= at <= end and at % apart_in == 0 for at in ats)
    return count


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _sorted_length(instruction: Instruction) -> int:
    dims = instruction.arrays[0].dims
    (axis,) = instruction.message.numbers(_DIMENSIONS) or (0,)
    return dims[axis] if dims else 1
