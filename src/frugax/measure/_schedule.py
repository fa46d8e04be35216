"""What a compiled program does in which order, and which arrays that touches.

Reads: an HLO module as XLA serialises it (`xla/service/hlo.proto`). Gives: a list of
`Step`, bodies of loops and branches in the place where they run, each written once.
It follows XLA's own analysis of live ranges (`xla/hlo/utils/hlo_live_range.cc`), so
that its buffers can be looked up in XLA's buffer assignment.
"""

import dataclasses
from collections.abc import Mapping

from ._wire import Message

# Buffers that an instruction holds, by their place in its result: () is an array or
# a tuple's own list of pointers, (1,) the tuple's second part.
Held = dict[tuple[int, ...], frozenset[int]]
# Which buffers an instruction makes.
Makes = Mapping[int, Mapping[tuple[int, ...], int]]

# They name what is there already, and take no time.
_NO_WORK = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "bitcast"})
_SAME = frozenset({"bitcast", "optimization-barrier", "add-dependency", "domain"})
_CALLS = frozenset({"call", "while", "conditional"})


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One instruction, when its turn has come.

    Attributes:
        name: of the operation it was compiled from.
        works: whether it computes or moves anything.
        makes: buffers that begin to exist.
        touches: buffers that must still be there, those that it makes included.
    """

    name: str
    works: bool
    makes: frozenset[int]
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
    """One module's computations, ready to be walked through."""

    def __init__(self, module: bytes, makes: Makes) -> None:
        """Read a module.

        Args:
            module: an `HloModuleProto`.
            makes: buffers, by the number of the instruction that makes them and their
                place in its result.

        Raises:
            ValueError: it is not scheduled.
        """
        read = Message(module)
        orders = {
            entry.number(1): entry.message(2).numbers(1)
            for entry in read.message(7).messages(1)
        }
        self._entry = read.number(6)
        if self._entry not in orders:
            raise ValueError("this program is not scheduled: it has no order in time.")
        self._computations = {
            c.number(5): _computation(c, orders[c.number(5)])
            for c in read.messages(3)
            if c.number(5) in orders
        }
        self._makes = makes
        self._steps: list[Step] = []

    def steps(self) -> tuple[Step, ...]:
        """Every instruction in order; what is returned is touched at the end."""
        self._steps = []
        result = self._walk(self._entry, ())
        self._steps.append(Step("result", False, frozenset(), _all(result)))
        return tuple(self._steps)

    def _walk(self, number: int, given: tuple[Held, ...]) -> Held:
        computation = self._computations[number]
        held: dict[int, Held] = {}
        for place in computation.order:
            instruction = computation.instructions[place]
            operands = [held[i] for i in instruction.operands]
            if instruction.opcode == "parameter":
                found = given[instruction.parameter] if given else {}
            else:
                found = self._result(instruction, operands)
            made = self._makes.get(instruction.number, {})
            own = {i: frozenset({b}) for i, b in made.items()}
            held[place] = found | own
            touched = _all(held[place])
            if instruction.opcode != "get-tuple-element":
                touched = touched.union(*map(_all, operands))
            self._steps.append(
                Step(
                    instruction.name,
                    instruction.opcode not in _NO_WORK,
                    _all(own),
                    touched,
                )
            )
        return held[computation.root]

    def _result(self, instruction: _Instruction, operands: list[Held]) -> Held:
        """What an instruction passes on of what it was given."""
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
        if opcode in _SAME:
            return operands[0]
        if opcode == "while":
            body, condition = instruction.calls
            self._walk(condition, (operands[0],))
            self._walk(body, (operands[0],))
            # What is carried keeps its place in memory: what stood there first stands
            # for what each round puts there.
            return operands[0]
        if opcode == "call":
            return self._walk(instruction.calls[0], tuple(operands))
        if opcode == "conditional":
            branches = zip(instruction.calls, operands[1:], strict=True)
            return _join(*(self._walk(c, (operand,)) for c, operand in branches))
        if opcode.endswith("-done"):  # of a pair of which "-start" gave both ends
            return {(): _all(operands[0])}
        if opcode.endswith("-start"):
            return {(i,): _all(operand) for i, operand in enumerate(operands)}
        return {}


def _computation(message: Message, order: tuple[int, ...]) -> _Computation:
    instructions = {
        i.number(35): _Instruction(
            number=i.number(35),
            name=i.message(7).text(2).rpartition("/")[2] or i.text(1),
            opcode=i.text(2),
            operands=i.numbers(36),
            calls=i.numbers(38) if i.text(2) in _CALLS else (),
            tuple_index=i.number(13),
            parameter=i.number(9),
        )
        for i in message.messages(2)
    }
    return _Computation(instructions, order, message.number(6))


def _all(held: Held) -> frozenset[int]:
    return frozenset().union(*held.values())


def _join(*held: Held) -> Held:
    found: Held = {}
    for one in held:
        for at, buffers in one.items():
            found[at] = found.get(at, frozenset()) | buffers
    return found
