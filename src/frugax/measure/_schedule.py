"""List the operations of a compiled program in the order in which they run.

The input is an HLO module as XLA serialises it (`xla/service/hlo.proto`). The bodies of
loops and branches are listed in the place where they run, each once. The buffers of
each operation follow XLA's own analysis of live ranges
(`xla/hlo/utils/hlo_live_range.cc`), so that they can be looked up in XLA's buffer
assignment.
"""

import dataclasses
from collections.abc import Mapping

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
_COMPUTATION_INSTRUCTIONS, _COMPUTATION_ID, _COMPUTATION_ROOT_ID = 2, 5, 6
_NAME, _OPCODE, _METADATA, _PARAMETER_NUMBER = 1, 2, 7, 9
_TUPLE_INDEX, _ID, _OPERAND_IDS, _CALLED_IDS = 13, 35, 36, 38
_METADATA_OP_NAME = 2


@dataclasses.dataclass(frozen=True, slots=True)
class ScheduledOperation:
    """One instruction at the moment at which it runs.

    Attributes:
        name: the traced operation that it was compiled from.
        works: whether it computes or moves anything.
        defines: buffers that begin to exist.
        touches: buffers that must still exist, including those it defines.
    """

    name: str
    works: bool
    defines: frozenset[int]
    touches: frozenset[int]


@dataclasses.dataclass(frozen=True, slots=True)
class _Instruction:
    number: int
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


class Schedule:
    """The computations of one module, in their order in time."""

    def __init__(self, module: bytes, definitions: Definitions) -> None:
        """Read a module.

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
        self._definitions = definitions
        self._operations: list[ScheduledOperation] = []

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
            defined = self._definitions.get(instruction.number, {})
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
                )
            )
        return trees[computation.root]

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
        # Asynchronous operations: the "-start" holds both ends until the "-done".
        if opcode.endswith("-done"):
            return {(): _all_buffers(operands[0])}
        if opcode.endswith("-start"):
            return {(i,): _all_buffers(operand) for i, operand in enumerate(operands)}
        return {}


def _read_computation(message: Message, order: tuple[int, ...]) -> _Computation:
    instructions: dict[int, _Instruction] = {}
    for m in message.messages(_COMPUTATION_INSTRUCTIONS):
        number, opcode = m.number(_ID), m.text(_OPCODE)
        # JAX writes the path of the traced operation, "jit(f)/sin", in the metadata.
        traced_name = m.message(_METADATA).text(_METADATA_OP_NAME)
        instructions[number] = _Instruction(
            number=number,
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
