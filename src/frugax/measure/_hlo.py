"""Read a compiled program: an HLO module, its computations and their instructions.

The input is an `HloModuleProto` (`xla/service/hlo.proto`), whose field numbers are
fixed once published.
"""

import functools
from collections.abc import Iterator
from typing import Any

from frugax.targets import CompiledAnswer

from ._arrays import Array, array_leaves
from ._protobuf import Message

_COMPUTATIONS, _ENTRY_ID, _SCHEDULE, _STACK_FRAMES = 3, 6, 7, 17
_INSTRUCTIONS, _COMPUTATION_ID, _ROOT_ID = 2, 5, 6
_NAME, _OPCODE, _SHAPE, _METADATA, _PARAMETER_NUMBER = 1, 2, 3, 7, 9
_TUPLE_INDEX, _ID, _OPERAND_IDS, _CALLED_IDS, _BACKEND_CONFIG = 13, 35, 36, 38, 43
_OP_NAME, _STACK_FRAME = 2, 15


class Instruction:
    """One instruction of a computation.

    Attributes:
        message: the instruction as it is stored.
        number: identifies it in the module.
        opcode: its operation.
        operands: the numbers of the instructions that it reads.
        called: the numbers of the computations that it calls.
    """

    def __init__(self, message: Message) -> None:
        self.message = message
        self.number = message.number(_ID)
        self.opcode = message.text(_OPCODE)
        self.operands = message.numbers(_OPERAND_IDS)
        self.called = message.numbers(_CALLED_IDS)

    @property
    def tuple_index(self) -> int:
        """Which element of a tuple it takes."""
        return self.message.number(_TUPLE_INDEX)

    @property
    def parameter(self) -> int:
        """Which parameter of its computation it is."""
        return self.message.number(_PARAMETER_NUMBER)

    @property
    def path(self) -> str:
        """The traced operation, such as `jit(f)/jvp()/dot_general`; or empty."""
        return self.message.message(_METADATA).text(_OP_NAME)

    @property
    def name(self) -> str:
        """The traced operation, such as `dot_general`, or the compiler's own name."""
        return self.path.rpartition("/")[2] or self.message.text(_NAME)

    @property
    def frame(self) -> int:
        """The number of the stack frame in which it was traced; 0 if unknown."""
        return self.message.message(_METADATA).number(_STACK_FRAME)

    @property
    def config(self) -> str:
        """The backend's configuration of the instruction."""
        return self.message.text(_BACKEND_CONFIG)

    @functools.cached_property
    def leaves(self) -> dict[tuple[int, ...], Array]:
        """The arrays of its result, by their index in it."""
        return array_leaves(self.message.message(_SHAPE))

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays of its result."""
        return tuple(self.leaves.values())

    @property
    def bytes(self) -> int:
        """Bytes of its result."""
        return sum(a.bytes for a in self.arrays)

    @property
    def elements(self) -> int:
        """Elements of its largest array."""
        return max((a.elements for a in self.arrays), default=0)


class Computation:
    """A computation: the program itself, the body of a loop, or a fusion.

    Attributes:
        instructions: by their numbers.
        root: computes the result.
    """

    def __init__(self, message: Message) -> None:
        found = map(Instruction, message.messages(_INSTRUCTIONS))
        self.instructions = {i.number: i for i in found}
        self.root = self.instructions[message.number(_ROOT_ID)]

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.instructions.values())

    def operand(self, of: Instruction, place: int = 0) -> Instruction:
        """The operand of an instruction at one place."""
        return self.instructions[of.operands[place]]

    def operands(self, of: Instruction) -> list[Instruction]:
        """The operands of an instruction."""
        return [self.instructions[n] for n in of.operands]

    def outputs(self) -> dict[tuple[int, ...], Instruction]:
        """The instructions that compute the results, by the index of each."""
        if self.root.opcode != "tuple":
            return {(): self.root}
        return {(i,): at for i, at in enumerate(self.operands(self.root))}


class Module:
    """A compiled program.

    Attributes:
        entry: the number of the computation that it starts with.
        orders: of each computation that runs step by step, its instructions in order;
            empty if the program is not scheduled. Others run as one operation.
    """

    def __init__(self, module: bytes) -> None:
        proto = Message(module)
        self.entry = proto.number(_ENTRY_ID)
        self.orders = {
            entry.number(1): entry.message(2).numbers(1)
            for entry in proto.message(_SCHEDULE).messages(1)
        }
        self._frames = proto.message(_STACK_FRAMES)
        self._messages = {
            c.number(_COMPUTATION_ID): c for c in proto.messages(_COMPUTATIONS)
        }
        self._computations: dict[int, Computation] = {}

    @classmethod
    def of(cls, compiled: Any) -> "Module":
        """The optimised program.

        Args:
            compiled: `jax.jit(f).lower(*args).compile()`, or the answer of a target.
        """
        if isinstance(compiled, CompiledAnswer):
            return cls(compiled.hlo_module)
        (module,) = compiled.runtime_executable().hlo_modules()
        return cls(module.as_serialized_hlo_module_proto())

    def computation(self, number: int) -> Computation:
        """One of its computations."""
        if number not in self._computations:
            self._computations[number] = Computation(self._messages[number])
        return self._computations[number]

    @functools.cached_property
    def instructions(self) -> dict[int, Instruction]:
        """All instructions, by their numbers."""
        return {i.number: i for n in self._messages for i in self.computation(n)}

    @functools.cached_property
    def frames(self) -> dict[int, tuple[str, int]]:
        """Stack frames by their number: `file:line`, and the number of the caller."""
        files = [v.decode() for v in self._frames.values(1)]
        lines = [
            f"{files[m.number(1) - 1]}:{m.number(3)}" if m.number(1) else ""
            for m in self._frames.messages(3)
        ]
        found: dict[int, tuple[str, int]] = {}
        for i, m in enumerate(self._frames.messages(4), start=1):
            caller = m.number(2)
            # The outermost frame names itself as its caller.
            found[i] = lines[m.number(1) - 1], caller if caller != i else 0
        return found
