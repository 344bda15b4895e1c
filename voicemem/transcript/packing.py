"""Very many records, most of them packed: blocks of some that follow each other, each unpacked when it is asked for.

A call of a hundred thousand messages takes a fifth of its memory so. Few records stay in plain lists and dicts.
"""

import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")
BLOCK = 128
"""Items of a block."""
MANY, FEW = 12_288, 2_048
"""How many there must be before any are packed, and how many of the newest are not packed then."""
KEPT_BLOCKS = 4
"""Blocks that stay unpacked while others are read."""


def column_to_bytes(column: Any) -> bytes:
    if isinstance(column, array):
        return column.typecode.encode() + column.tobytes()
    raise NotImplementedError  # so msgspec refuses the value


def decoder_of(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind, dec_hook=lambda kind, value: array(chr(value[0]), value[1:]))


ENCODER = msgspec.msgpack.Encoder(enc_hook=column_to_bytes)


def pack(value: Any) -> bytes:
    return zlib.compress(ENCODER.encode(value), 1)


class Records(dict[int, T]):
    """Records by number. What is asked for is unpacked, and stays so until `pack`, or until `release`."""

    __slots__ = ("blocks", "decoder", "note_unpacked", "span", "unpacked")

    def __init__(
        self,
        kind: type[T],
        span: int,
        records: dict[int, T],
        blocks: dict[int, bytes],
        note_unpacked: Callable[[list[int]], None],
    ) -> None:
        """Create the records of a kind from those that are not packed, and blocks that span so many numbers each."""
        super().__init__(records)
        self.decoder = decoder_of(dict[int, kind])  # type: ignore[valid-type]
        self.span = span
        self.blocks = blocks
        self.unpacked: dict[int, list[int]] = {}
        """By block: the numbers that were unpacked of it."""
        self.note_unpacked = note_unpacked
        """Called with the numbers of objects that are new, and equal to those before."""

    def __missing__(self, number: int) -> T:
        self.unpack(number // self.span)
        if self.is_unpacked(number):
            return self[number]
        raise KeyError(number)

    def is_unpacked(self, number: object) -> bool:
        return super().__contains__(number)

    def __contains__(self, number: object) -> bool:
        return self.is_unpacked(number) or (isinstance(number, int) and self.get(number) is not None)

    def get(self, number: int, otherwise: Any = None) -> Any:
        try:
            return self[number]
        except KeyError:
            return otherwise

    def unpack(self, block: int) -> None:
        packed = None if block in self.unpacked else self.blocks.get(block)
        if packed is not None:
            turns = self.decoder.decode(zlib.decompress(packed))
            numbers = self.unpacked[block] = [number for number in turns if not self.is_unpacked(number)]
            self.update((number, turns[number]) for number in numbers)
            self.note_unpacked(numbers)

    def release(self) -> None:
        """Release what was unpacked, but for the last few blocks. Nothing of it may have changed since `pack`."""
        while len(self.unpacked) > KEPT_BLOCKS:
            for number in self.unpacked.pop(next(iter(self.unpacked))):
                del self[number]

    def pack(self, stays: Callable[[T], bool], few: int = FEW) -> list[T]:
        """Pack the oldest records, but for those that stay; the ones that were packed. The newest few are not."""
        oldest = islice(self, min(FEW, max(0, len(self) - few)))  # some at a time: others wait
        gone: list[T] = []
        for block in {*(number // self.span for number in oldest), *self.unpacked}:
            self.unpack(block)
            numbers = range(block * self.span, (block + 1) * self.span)
            known = {number: self[number] for number in numbers if self.is_unpacked(number)}
            packed = {number: record for number, record in known.items() if not stays(record)}
            self.blocks[block] = pack(packed)
            self.unpacked.pop(block, None)
            for number in packed:
                del self[number]
            gone += packed.values()
        return gone


class Items(Sequence[T]):
    """Items in a row, of which all but the last ones are packed. A copy takes next to nothing."""

    __slots__ = ("blocks", "decoder", "last", "rest", "shown")

    def __init__(self, kind: Any, items: Iterable[T] = ()) -> None:
        self.decoder = decoder_of(list[kind])
        self.blocks: list[bytes] = []
        self.rest: list[T] = []
        self.shown: range | None = None
        """Which of them a copy has, if not all."""
        self.last: tuple[int, list[T]] = -1, self.rest
        """The block that was read last, by its place."""
        self.extend(items)

    def __len__(self) -> int:
        return len(self.blocks) * BLOCK + len(self.rest) if self.shown is None else len(self.shown)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        places = range(len(self)) if self.shown is None else self.shown
        if isinstance(index, slice):
            return self.copy(None if places[index] == range(len(self)) else places[index])
        place = places[index]
        number = place // BLOCK
        if number >= len(self.blocks):
            return self.rest[place - len(self.blocks) * BLOCK]
        last, items = self.last
        if last != number:
            items = self.decoder.decode(zlib.decompress(self.blocks[number]))
            self.last = number, items
        return items[place % BLOCK]

    def __iter__(self) -> Iterator[T]:
        if self.shown is not None:
            yield from super().__iter__()
            return
        for block in self.blocks:
            yield from self.decoder.decode(zlib.decompress(block))
        yield from self.rest

    def copy(self, shown: range | None = None) -> "Items[T]":
        copied = Items[T].__new__(Items)
        copied.decoder, copied.blocks, copied.rest = self.decoder, self.blocks.copy(), self.rest.copy()
        copied.shown, copied.last = self.shown if shown is None else shown, self.last
        return copied

    def append(self, item: T) -> None:
        self.rest.append(item)
        if len(self.rest) >= FEW + BLOCK:
            self.blocks.append(pack(self.rest[:BLOCK]))
            del self.rest[:BLOCK]

    def extend(self, items: Iterable[T]) -> None:
        for item in items:
            self.append(item)

    def cut(self, count: int) -> None:
        """Keep the first ones only."""
        full = min(len(self.blocks), count // BLOCK)
        if full < len(self.blocks):
            self.rest = list(self[full * BLOCK : count])
            del self.blocks[full:]
            self.last = -1, self.rest
        del self.rest[count - full * BLOCK :]

    def as_list(self) -> Sequence[T]:
        """The items as a list, unless they are very many."""
        return self if self.blocks else self.rest
