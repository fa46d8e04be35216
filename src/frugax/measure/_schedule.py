"""The schedule of a compiled program: its HLO operations in execution order.

The input is an HLO module as XLA serialises it (`xla/service/hlo.proto`). The bodies of
loops and branches are listed in the place where they run, each once. The buffers of
each operation follow XLA's own analysis of live ranges
(`xla/hlo/utils/hlo_live_range.cc`), so that they can be looked up in XLA's buffer
assignment.
"""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frugax.targets import CompiledAnswer

from ._arrays import Array, array_leaves
from ._protobuf import Message

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

# Field numbers of hlo.proto, which are fixed once published.
_MODULE_COMPUTATIONS, _MODULE_ENTRY_ID, _MODULE_SCHEDULE = 3, 6, 7
_MODULE_STACK_FRAMES = 17
_COMPUTATION_INSTRUCTIONS, _COMPUTATION_ID, _COMPUTATION_ROOT_ID = 2, 5, 6
_NAME, _OPCODE, _METADATA, _PARAMETER_NUMBER = 1, 2, 7, 9
_TUPLE_INDEX, _ID, _OPERAND_IDS, _CALLED_IDS = 13, 35, 36, 38
_METADATA_OP_NAME, _METADATA_FRAME = 2, 15
_SHAPE = 3
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


@dataclasses.dataclass(frozen=True, slots=True)
class _Instruction:
    number: int
    details: Message
    name: str
    opcode: str
    operands: tuple[int, ...]
    calls: tuple[int, ...]
    tuple_index: int
    parameter: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Computation:
    instructions: dict[int, _Instruction]
    order: tuple[int, ...]
    root: int

    @property
    def parameters(self) -> set[int]:
        return {n for n, i in self.instructions.items() if i.opcode == "parameter"}


@dataclasses.dataclass(frozen=True, slots=True)
class _Fused:
    """A computation that runs as one operation.

    Attributes:
        instructions: by their numbers.
        root: computes the result.
    """

    instructions: dict[int, Message]
    root: Message

    def operand(self, of: Message, place: int = 0) -> Message:
        return self.instructions[of.numbers(_OPERAND_IDS)[place]]

    def outputs(self) -> dict[tuple[int, ...], Message]:
        """The operations that compute the results, by the index of each."""
        if self.root.text(_OPCODE) != "tuple":
            return {(): self.root}
        count = len(self.root.numbers(_OPERAND_IDS))
        return {(i,): self.operand(self.root, i) for i in range(count)}

    def updated_parameters(self) -> dict[tuple[int, ...], int]:
        """The parameters that results are written over, by the index of the result."""
        found: dict[tuple[int, ...], int] = {}
        for index, at in self.outputs().items():
            if at.text(_OPCODE) == "bitcast":
                at = self.operand(at)
            if at.text(_OPCODE) not in _UPDATES:
                continue
            while at.text(_OPCODE) in _UPDATES | {"bitcast", "copy"}:
                at = self.operand(at)
            if at.text(_OPCODE) == "parameter":
                found[index] = at.number(_PARAMETER_NUMBER)
        return found


class Schedule:
    """The computations of one module, in their order in time.

    Attributes:
        definitions: buffers, by the instruction that defines them and the index there.
        last_writer: the last instruction that updates a buffer in place, with the index
            in its result, by buffer.
    """

    def __init__(self, module: bytes, definitions: Definitions | None = None) -> None:
        """Read a module.

        Args:
            module: an `HloModuleProto`.
            definitions: buffers, by the number of the instruction that defines them and
                their index in its result; None gives each new array its own buffer.

        Raises:
            ValueError: the module has no schedule.
        """
        proto = Message(module)
        orders = {
            entry.number(1): entry.message(2).numbers(1)
            for entry in proto.message(_MODULE_SCHEDULE).messages(1)
        }
        self._entry = proto.number(_MODULE_ENTRY_ID)
        if self._entry not in orders:
            raise ValueError("this program is not scheduled: it has no order in time.")
        self._computations = {
            c.number(_COMPUTATION_ID): _read_computation(
                c, orders[c.number(_COMPUTATION_ID)]
            )
            for c in proto.messages(_MODULE_COMPUTATIONS)
            if c.number(_COMPUTATION_ID) in orders
        }
        self._frames = proto.message(_MODULE_STACK_FRAMES)
        # Those of fusions, reductions and the like, which run as one operation.
        self._fused = {
            c.number(_COMPUTATION_ID): _read_fused(c)
            for c in proto.messages(_MODULE_COMPUTATIONS)
            if c.number(_COMPUTATION_ID) not in orders
        }
        self._instructions = {
            number: instruction
            for computation in self._computations.values()
            for number, instruction in computation.instructions.items()
        }
        self._home = {
            number: computation
            for computation in self._computations.values()
            for number in computation.instructions
        }
        if definitions is None:
            definitions = self._define_each_array()
        self.definitions = definitions
        self._operations: list[ScheduledOperation] = []
        self.last_writer: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._frame_table: dict[int, tuple[str, int]] | None = None

    def operations(self) -> tuple[ScheduledOperation, ...]:
        """Every instruction in order; the results are touched at the end."""
        self._operations = []
        result = self._walk(self._entry, ())
        end = ScheduledOperation("result", False, frozenset(), _all_buffers(result))
        return (*self._operations, end)

    def _walk(self, number: int, arguments: tuple[BufferTree, ...]) -> BufferTree:
        computation = self._computations[number]
        trees: dict[int, BufferTree] = {}
        for place in computation.order:
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
        return trees[computation.root]

    def array_at(self, number: int, index: tuple[int, ...]) -> Array:
        """The array in the result of an instruction."""
        arrays = array_leaves(self._instructions[number].details.message(_SHAPE))
        return arrays.get(index) or Array("tuple", 0)

    def traced_name(self, number: int) -> str:
        """The path of the traced operation, such as `jit(f)/jvp()/dot_general`."""
        metadata = self._details(number).message(_METADATA)
        return metadata.text(_METADATA_OP_NAME)

    def source_line(self, number: int) -> str:
        """`file.py:line` in the user's own code; empty if the compiler kept none.

        Files below the current folder are named from there.
        """
        metadata = self._details(number).message(_METADATA)
        if self._frame_table is None:
            self._frame_table = _read_frames(self._frames)
        frame, places = metadata.number(_METADATA_FRAME), self._frame_table
        while frame in places:
            place, frame = places[frame]
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
        while written in self._instructions and written not in seen:
            seen.add(written)
            instruction = self._instructions[written]
            if instruction.opcode in _MOVES:
                written = instruction.operands[0]
            elif instruction.opcode == "get-tuple-element":
                # A value that the loop carries was computed by the step before.
                body = self._home[written]
                root = body.instructions[body.root]
                is_carried = instruction.operands[0] in body.parameters
                if root.opcode != "tuple" or not is_carried:
                    break
                written = root.operands[instruction.tuple_index]
            else:
                break
        has_place = self._details(written).message(_METADATA).text(_METADATA_OP_NAME)
        return written if has_place else number

    def _written_value(self, number: int, index: tuple[int, ...]) -> int:
        """The instruction, perhaps within a fusion, whose value is written in place."""
        instruction = self._instructions[number]
        if instruction.opcode == "dynamic-update-slice":
            return instruction.operands[1]
        if instruction.opcode != "fusion":
            return number
        fused = self._fused[instruction.details.numbers(_CALLED_IDS)[0]]
        at = fused.outputs().get(index, fused.root)
        while at.text(_OPCODE) in _MOVES:
            at = fused.operand(at)
        if at.text(_OPCODE) != "dynamic-update-slice":
            return number
        at = fused.operand(at, 1)
        while at.text(_OPCODE) in _MOVES:
            at = fused.operand(at)
        if at.text(_OPCODE) == "parameter":
            return instruction.operands[at.number(_PARAMETER_NUMBER)]
        return at.number(_ID)

    def _details(self, number: int) -> Message:
        if number in self._instructions:
            return self._instructions[number].details
        found = (f.instructions.get(number) for f in self._fused.values())
        return next(m for m in found if m is not None)

    def parameters(self) -> list[tuple[str, Array]]:
        """The arguments of the program with their names."""
        entry = self._computations[self._entry]
        found = [i for i in entry.instructions.values() if i.opcode == "parameter"]
        return [
            (i.name, array)
            for i in sorted(found, key=lambda i: i.parameter)
            for array in array_leaves(i.details.message(_SHAPE)).values()
        ]

    def _define_each_array(self) -> Definitions:
        found: dict[int, dict[tuple[int, ...], int]] = {}
        for number, instruction in self._instructions.items():
            if (
                instruction.opcode in _NO_WORK | _ALIASES | _CALLS
                or instruction.opcode.endswith("-done")
            ):
                continue
            in_place = self._overwritten_operands(instruction)
            for index, array in array_leaves(
                instruction.details.message(_SHAPE)
            ).items():
                if array.bytes and index not in in_place:
                    at = found.setdefault(number, {})
                    at[index] = sum(map(len, found.values()))
        return found

    def _overwritten_operands(
        self, instruction: _Instruction
    ) -> dict[tuple[int, ...], int]:
        """The operands that are updated in place, by the index of the result."""
        if instruction.opcode in _UPDATES:
            return {(): 0}
        if instruction.opcode == "fusion":
            (called,) = instruction.details.numbers(_CALLED_IDS)
            if called in self._fused:
                return self._fused[called].updated_parameters()
        return {}

    def _forward_buffers(
        self, instruction: _Instruction, operands: list[BufferTree]
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
            body, condition = instruction.calls
            self._walk(condition, (operands[0],))
            self._walk(body, (operands[0],))
            # The carry keeps its place in memory: its first buffers stand for the
            # values that each iteration writes there.
            return operands[0]
        if opcode == "call":
            return self._walk(instruction.calls[0], tuple(operands))
        if opcode == "conditional":
            branches = zip(instruction.calls, operands[1:], strict=True)
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


def module_of(compiled: Any) -> bytes:
    """The optimised program, an `HloModuleProto`."""
    if isinstance(compiled, CompiledAnswer):
        return compiled.hlo_module
    (module,) = compiled.runtime_executable().hlo_modules()
    return module.as_serialized_hlo_module_proto()


def _read_fused(message: Message) -> _Fused:
    by_number = {m.number(_ID): m for m in message.messages(_COMPUTATION_INSTRUCTIONS)}
    return _Fused(by_number, by_number[message.number(_COMPUTATION_ROOT_ID)])


def _read_frames(index: Message) -> dict[int, tuple[str, int]]:
    """Stack frames by their number: `file:line`, and the number of the caller."""
    files = [v.decode() for v in index.values(1)]
    lines = [
        f"{files[m.number(1) - 1]}:{m.number(3)}" if m.number(1) else ""
        for m in index.messages(3)
    ]
    frames: dict[int, tuple[str, int]] = {}
    for i, m in enumerate(index.messages(4), start=1):
        caller = m.number(2)
        # The outermost frame names itself as its caller.
        frames[i] = lines[m.number(1) - 1], caller if caller != i else 0
    return frames


def _read_computation(message: Message, order: tuple[int, ...]) -> _Computation:
    instructions: dict[int, _Instruction] = {}
    for m in message.messages(_COMPUTATION_INSTRUCTIONS):
        number, opcode = m.number(_ID), m.text(_OPCODE)
        # JAX writes the path of the traced operation, "jit(f)/sin", in the metadata.
        traced_name = m.message(_METADATA).text(_METADATA_OP_NAME)
        instructions[number] = _Instruction(
            number=number,
            details=m,
            name=traced_name.rpartition("/")[2] or m.text(_NAME),
            opcode=opcode,
            operands=m.numbers(_OPERAND_IDS),
            # A fusion or a reduction calls computations as well, but runs as one
            # operation.
            calls=m.numbers(_CALLED_IDS) if opcode in _CALLS else (),
            tuple_index=m.number(_TUPLE_INDEX),
            parameter=m.number(_PARAMETER_NUMBER),
        )
    return _Computation(instructions, order, message.number(_COMPUTATION_ROOT_ID))


def _all_buffers(tree: BufferTree) -> frozenset[int]:
    return frozenset().union(*tree.values())


def _join(*trees: BufferTree) -> BufferTree:
    found: BufferTree = {}
    for tree in trees:
        for at, buffers in tree.items():
            found[at] = found.get(at, frozenset()) | buffers
    return found
