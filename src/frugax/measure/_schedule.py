"""The schedule of a compiled program: its HLO operations in execution order.

The bodies of loops and branches are listed in the place where they run, each once. The
buffers of each operation follow XLA's own analysis of live ranges
(`xla/hlo/utils/hlo_live_range.cc`), so that they can be looked up in XLA's buffer
assignment.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ._arrays import Array
from ._hlo import Instruction, Module

# Buffers that an instruction holds, by their index in its result: () is an array, or a
# tuple's own list of pointers; (1,) is the second element of a tuple.
BufferTree = dict[tuple[int, ...], frozenset[int]]
# Buffers that an instruction defines: instruction number -> index in its result ->
# buffer.
Definitions = Mapping[int, Mapping[tuple[int, ...], int]]

# These name buffers that exist already, and take no time.
_NO_WORK = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "bitcast"})
_ALIASES = frozenset({"bitcast", "optimization-barrier", "add-dependency", "domain"})
_CALLS = frozenset({"call", "while", "conditional"})

# These change the form or the type of a value only.
_MOVES = frozenset(
    {"bitcast", "copy", "reshape", "transpose", "convert", "reduce-precision"}
)
# These write their result over an operand. XLA copies it first where that is not safe.
_UPDATES = frozenset({"dynamic-update-slice", "scatter"})
# Files that are not the user's own: installed packages, this one, and Python itself.
_LIBRARIES = (
    *("/site-packages/", "/dist-packages/", "/lib/python", "<"),
    f"{Path(__file__).parents[1]}{os.sep}",
)


@dataclasses.dataclass(frozen=True, slots=True)
class ScheduledOperation:
    """One instruction at the moment at which it runs.

    Attributes:
        name: the traced operation that it was compiled from.
        works: whether it computes or moves anything.
        defines: buffers that begin to exist.
        touches: buffers that must still exist, including those it defines.
        number: of the instruction, in `Schedule.details`; -1 for the end.
    """

    name: str
    works: bool
    defines: frozenset[int]
    touches: frozenset[int]
    number: int = -1


class Schedule:
    """The computations of one module, in their order in time.

    Attributes:
        definitions: buffers, by the instruction that defines them and the index there.
        last_writer: the last instruction that updates a buffer in place, with the index
            in its result, by buffer.
    """

    def __init__(self, module: Module, definitions: Definitions | None = None) -> None:
        """Order a module.

        Args:
            module: the compiled program.
            definitions: buffers, by the number of the instruction that defines them and
                their index in its result; None gives each new array its own buffer.

        Raises:
            ValueError: the module has no schedule.
        """
        self._module = module
        if module.entry not in module.orders:
            raise ValueError("this program is not scheduled: it has no order in time.")
        # Fusions, reductions and the like run as one operation.
        self._computations = {n: module.computation(n) for n in module.orders}
        self._home = {i.number: c for c in self._computations.values() for i in c}
        if definitions is None:
            definitions = self._define_each_array()
        self.definitions = definitions
        self._operations: list[ScheduledOperation] = []
        self.last_writer: dict[int, tuple[int, tuple[int, ...]]] = {}

    def operations(self) -> tuple[ScheduledOperation, ...]:
        """Every instruction in order; the results are touched at the end."""
        self._operations = []
        result = self._walk(self._module.entry, ())
        end = ScheduledOperation("result", False, frozenset(), _all_buffers(result))
        return (*self._operations, end)

    def _walk(self, number: int, arguments: tuple[BufferTree, ...]) -> BufferTree:
        computation = self._computations[number]
        trees: dict[int, BufferTree] = {}
        for place in self._module.orders[number]:
            instruction = computation.instructions[place]
            operands = [trees[i] for i in instruction.operands]
            if instruction.opcode != "parameter":
                passed = self._forward_buffers(instruction, operands)
            elif arguments:
                passed = arguments[instruction.parameter]
            else:
                passed = {}  # an argument of the whole program
            defined = self.definitions.get(instruction.number, {})
            own = {i: frozenset({b}) for i, b in defined.items()}
            trees[place] = passed | own
            touched = _all_buffers(trees[place])
            # Taking one element of a tuple does not read the others.
            if instruction.opcode != "get-tuple-element":
                touched = touched.union(*map(_all_buffers, operands))
            self._operations.append(
                ScheduledOperation(
                    instruction.name,
                    instruction.opcode not in _NO_WORK,
                    _all_buffers(own),
                    touched,
                    instruction.number,
                )
            )
        return trees[computation.root.number]

    def array_at(self, number: int, index: tuple[int, ...]) -> Array:
        """The array in the result of an instruction."""
        arrays = self._module.instructions[number].leaves
        return arrays.get(index) or Array("tuple", 0)

    def traced_name(self, number: int) -> str:
        """The path of the traced operation, such as `jit(f)/jvp()/dot_general`."""
        return self._module.instructions[number].path

    def source_line(self, number: int) -> str:
        """`file.py:line` in the user's own code; empty if the compiler kept none.

        Files below the current folder are named from there.
        """
        frame = self._module.instructions[number].frame
        while frame in self._module.frames:
            place, frame = self._module.frames[frame]
            # A command that started Python, such as bin/frugax, does not end in .py.
            is_module = place.rpartition(":")[0].endswith(".py")
            if is_module and not any(part in place for part in _LIBRARIES):
                return place.removeprefix(f"{Path.cwd()}{os.sep}")
        return ""

    def origin(self, number: int, index: tuple[int, ...]) -> int:
        """The instruction whose value a scan stores by another one.

        A scan stacks values by operations of its own, which know the line of the scan
        only. Any other instruction is its own origin.

        Args:
            number: of the instruction.
            index: of the array in its result.
        """
        written = self._written_value(number, index)
        seen: set[int] = set()
        while written in self._home and written not in seen:
            seen.add(written)
            body = self._home[written]
            instruction = body.instructions[written]
            if instruction.opcode in _MOVES:
                written = instruction.operands[0]
            elif instruction.opcode == "get-tuple-element":
                # A value that the loop carries was computed by the step before.
                is_carried = body.operand(instruction).opcode == "parameter"
                if body.root.opcode != "tuple" or not is_carried:
                    break
                written = body.root.operands[instruction.tuple_index]
            else:
                break
        return written if self._module.instructions[written].path else number

    def _written_value(self, number: int, index: tuple[int, ...]) -> int:
        """The instruction, perhaps within a fusion, whose value is written in place."""
        instruction = self._module.instructions[number]
        if instruction.opcode == "dynamic-update-slice":
            return instruction.operands[1]
        if instruction.opcode != "fusion":
            return number
        fused = self._module.computation(instruction.called[0])
        at = fused.outputs().get(index, fused.root)
        while at.opcode in _MOVES:
            at = fused.operand(at)
        if at.opcode != "dynamic-update-slice":
            return number
        at = fused.operand(at, 1)
        while at.opcode in _MOVES:
            at = fused.operand(at)
        if at.opcode == "parameter":
            return instruction.operands[at.parameter]
        return at.number

    def parameters(self) -> list[tuple[str, Array]]:
        """The arguments of the program with their names."""
        entry = self._computations[self._module.entry]
        found = [i for i in entry if i.opcode == "parameter"]
        return [
            # The whole path: keys of a dict may have slashes, as haiku's.
            (self.traced_name(i.number) or i.name, array)
            for i in sorted(found, key=lambda i: i.parameter)
            for array in i.arrays
        ]

    def _define_each_array(self) -> Definitions:
        found: dict[int, dict[tuple[int, ...], int]] = {}
        for instruction in (i for c in self._computations.values() for i in c):
            if (
                instruction.opcode in _NO_WORK | _ALIASES | _CALLS
                or instruction.opcode.endswith("-done")
            ):
                continue
            in_place = self._overwritten_operands(instruction)
            for index, array in instruction.leaves.items():
                if array.bytes and index not in in_place:
                    at = found.setdefault(instruction.number, {})
                    at[index] = sum(map(len, found.values()))
        return found

    def _overwritten_operands(
        self, instruction: Instruction
    ) -> dict[tuple[int, ...], int]:
        """The operands that are updated in place, by the index of the result."""
        if instruction.opcode in _UPDATES:
            return {(): 0}
        found: dict[tuple[int, ...], int] = {}
        if instruction.opcode != "fusion":
            return found
        fused = self._module.computation(instruction.called[0])
        for index, at in fused.outputs().items():
            if at.opcode == "bitcast":
                at = fused.operand(at)
            if at.opcode not in _UPDATES:
                continue
            while at.opcode in _UPDATES | {"bitcast", "copy"}:
                at = fused.operand(at)
            if at.opcode == "parameter":
                found[index] = at.parameter
        return found

    def _forward_buffers(
        self, instruction: Instruction, operands: list[BufferTree]
    ) -> BufferTree:
        """The buffers of the operands that the result consists of."""
        opcode = instruction.opcode
        if opcode == "tuple":
            return {
                (i, *at): buffers
                for i, operand in enumerate(operands)
                for at, buffers in operand.items()
            }
        if opcode == "get-tuple-element":
            return {
                at[1:]: buffers
                for at, buffers in operands[0].items()
                if at[:1] == (instruction.tuple_index,)
            }
        if opcode in _ALIASES:
            return operands[0]
        if opcode == "while":
            body, condition = instruction.called
            self._walk(condition, (operands[0],))
            self._walk(body, (operands[0],))
            # The carry keeps its place in memory: its first buffers stand for the
            # values that each iteration writes there.
            return operands[0]
        if opcode == "call":
            return self._walk(instruction.called[0], tuple(operands))
        if opcode == "conditional":
            branches = zip(instruction.called, operands[1:], strict=True)
            return _join(*(self._walk(c, (operand,)) for c, operand in branches))
        if in_place := self._overwritten_operands(instruction):
            passed = {i: _all_buffers(operands[n]) for i, n in in_place.items()}
            for index, buffers in passed.items():
                self.last_writer |= dict.fromkeys(buffers, (instruction.number, index))
            return passed
        # Asynchronous operations: the "-start" holds both ends until the "-done".
        if opcode.endswith("-done"):
            return {(): _all_buffers(operands[0])}
        if opcode.endswith("-start"):
            return {(i,): _all_buffers(operand) for i, operand in enumerate(operands)}
        return {}


def live_ranges(
    operations: Sequence[ScheduledOperation],
) -> dict[int, tuple[int, int]]:
    """The first and the last operation at which each buffer exists."""
    born: dict[int, int] = {}
    last: dict[int, int] = {}
    for t, op in enumerate(operations):
        for buffer in op.defines:
            born.setdefault(buffer, t)
        last |= dict.fromkeys(op.touches, t)
    return {buffer: (t, last[buffer]) for buffer, t in born.items()}


def _all_buffers(tree: BufferTree) -> frozenset[int]:
    return frozenset().union(*tree.values())


def _join(*trees: BufferTree) -> BufferTree:
    found: BufferTree = {}
    for tree in trees:
        for at, buffers in tree.items():
            found[at] = found.get(at, frozenset()) | buffers
    return found
