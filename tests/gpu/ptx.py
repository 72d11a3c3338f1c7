"""Runs a kernel's text (PTX), thread by thread: the few instructions that the library's kernel is made of."""

from __future__ import annotations

import re
from collections.abc import Iterator

Memory = dict[int, int]
"""Bytes by address."""

_MASKS = {"32": 0xFFFFFFFF, "64": (1 << 64) - 1}


class Kernel:
    """A kernel, from the text of a module with one entry.

    Attributes:
        name: That of its entry.
        parameter_size: How many bytes it is given.
    """

    def __init__(self, text: str) -> None:
        entry = re.search(r"\.entry (\w+)\(\.param \.align 8 \.b8 (\w+)\[(\d+)\]\)\s*\{(.*)\}", text, re.S)
        assert entry is not None
        self.name, self._parameter, self.parameter_size = entry[1], entry[2], int(entry[3])
        self._code: list[str] = []
        self._labels: dict[str, int] = {}
        for line in filter(None, (line.split("//")[0].strip() for line in entry[4].splitlines())):
            if line.endswith(":"):
                self._labels[line[:-1]] = len(self._code)
            elif not line.startswith(".reg"):
                self._code.append(line.removesuffix(";"))

    def run(self, parameters: bytes, memory: Memory, threads: int) -> list[list[tuple[int, int]]]:
        """Runs all threads of one block. Returns what was written before each barrier, and behind the last one, as
        (address, byte)."""
        assert len(parameters) == self.parameter_size
        running = [self._thread(parameters, memory, thread, threads) for thread in range(threads)]
        written: list[list[tuple[int, int]]] = []
        while running:
            writes: list[tuple[int, int]] = []
            ended = []
            for thread in running:  # to the next barrier
                for write in thread:
                    if write is None:
                        break
                    writes.append(write)
                else:
                    ended.append(thread)
            assert len(ended) in (0, len(running)), "Some threads have ended where others wait for them."
            for address, byte in writes:
                memory[address] = byte
            written.append(writes)
            running = [] if ended else running
        return written

    def _thread(self, parameters: bytes, memory: Memory, thread: int, threads: int) -> Iterator[tuple[int, int] | None]:
        values: dict[str, int] = {"%tid.x": thread, "%ntid.x": threads, self._parameter: 0}
        fenced = True  # whether what it has written is seen by all

        def read(name: str) -> int:
            return int(name) if name.isdigit() else values[name]

        at = 0
        while True:
            line = self._code[at]
            at += 1
            if guarded := re.match(r"@(%p\d+) (.*)", line):
                if not values[guarded[1]]:
                    continue
                line = guarded[2]
            name, _, rest = line.partition(" ")
            operands = re.findall(r"\[[^\]]*\]|[^,\s]+", rest)
            kind = name.split(".")
            if kind[0] == "ret":
                return
            if kind[0] == "bra":
                at = self._labels[operands[0]]
            elif kind[0] == "bar":
                assert fenced, "A thread waits for the others, and what it has written may not be there."
                yield None
            elif kind[0] == "membar":
                assert name == "membar.sys", "What it has written need not be there for the host."
                fenced = True
            elif kind[0] in ("ld", "st"):
                place = re.match(r"\[([%\w.]+)(?:\+(\d+))?\]", operands[kind[0] == "ld"])
                assert place is not None
                address, size = read(place[1]) + int(place[2] or 0), int(kind[-1][1:]) // 8
                if kind[0] == "st":
                    if "volatile" in kind:
                        assert fenced, "The flag may be there before what the thread has written."
                    fenced = False
                    for i in range(size):
                        yield address + i, read(operands[1]) >> 8 * i & 0xFF
                elif kind[1] == "param":
                    values[operands[0]] = int.from_bytes(parameters[address : address + size], "little")
                else:
                    assert address % size == 0, "A load that is not aligned."
                    values[operands[0]] = int.from_bytes(bytes(memory[address + i] for i in range(size)), "little")
            else:
                first, *others = operands
                values[first] = self._computed(kind, [read(x) for x in others])

    @staticmethod
    def _computed(kind: list[str], x: list[int]) -> int:
        if kind[0] == "setp":
            return int({"ge": x[0] >= x[1], "ne": x[0] != x[1]}[kind[1]] if len(x) == 2 else False)
        compute = {
            "mov": lambda: x[0],
            "cvt": lambda: x[0],
            "add": lambda: x[0] + x[1],
            "shl": lambda: x[0] << x[1],
            "or": lambda: x[0] | x[1],
            "and": lambda: x[0] & x[1],
        }[kind[0]]
        return compute() & _MASKS[kind[1][1:]]
