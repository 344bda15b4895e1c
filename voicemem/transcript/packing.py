"""Very many records, most of them packed in blocks of consecutive ones, each of which is unpacked on demand.

A call of a hundred thousand messages takes a fifth of its memory this way. Few records stay in plain lists and dicts.
"""

import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")
BLOCK = 128
"""Items of a block."""
MANY, FEW = 49_152, 8_192
"""The number of parts from which on a call is packed, and the number of the newest that are not packed."""
KEPT_BLOCKS = 4
"""The number of blocks that stay unpacked while others are read."""
HEAVY = 1_024
"""A record with more parts is a block of its own; one of these at a time is unpacked."""


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
    """Records by number. A record that is read is unpacked, and stays so until `pack` or `release`.

    The number of a block is that of its first record divided by the span; for the block of a heavy record it is the
    complement of the record's number, which is negative.
    """

    __slots__ = ("blocks", "decoder", "heavy", "note_released", "span", "unpacked", "waiting", "weigh")

    def __init__(
        self,
        kind: type[T],
        span: int,
        records: dict[int, T],
        blocks: dict[int, bytes],
        note_released: Callable[[list[int]], None],
        weigh: Callable[[T], int] = lambda record: 1,
        heavy: int = HEAVY,
    ) -> None:
        """Create the records of a kind from unpacked ones, and from blocks that span `span` numbers each."""
        super().__init__(records)
        self.decoder = decoder_of(dict[int, kind])  # type: ignore[valid-type]
        self.span = span
        self.blocks = blocks
        self.unpacked: dict[int, list[int]] = {}
        """By block: the numbers that were unpacked from it."""
        self.waiting: dict[int, int] = {}
        """Blocks of heavy records that stay unpacked, with the number of calls of `pack` for which they do."""
        self.note_released = note_released
        """Called with the numbers of released objects; equal ones will replace them."""
        self.weigh = weigh
        self.heavy = heavy

    def __missing__(self, number: int) -> T:
        self.unpack(~number if ~number in self.blocks else number // self.span)
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

    def release(self, is_over: bool = False) -> None:
        """Release unpacked records, except the last few blocks. None of them may have changed since `pack`.

        The last heavy record stays unpacked as well, unless the reading `is_over`.
        """
        for block in [*self.unpacked][: len(self.unpacked) - (not is_over)]:
            if block not in self.waiting and (block < 0 or len(self.unpacked) > KEPT_BLOCKS):
                numbers = self.unpacked.pop(block)
                for number in numbers:
                    del self[number]
                self.note_released(numbers)

    def oldest(self, few: int) -> Iterator[int]:
        """Yield the numbers of the oldest records, leaving the newest one and others that weigh `few` together."""
        weights = [*map(self.weigh, self.values())]
        left, most = sum(weights) - few, len(self) - (few > 0)
        for number, weight in islice(zip(self, weights, strict=True), max(0, min(FEW, most))):  # the rest waits
            if left <= 0:
                return
            left -= weight
            yield number

    def pack(self, stays: Callable[[T], bool], few: int = FEW, waits: bool = True) -> list[T]:
        """Pack the oldest records, except those that `stays` names and the newest `few`. Return the packed ones."""
        newest = next(reversed(self), None) if few else None
        self.waiting = self.still_waiting() if few and waits else {}
        kept = {newest, *(~block for block in self.waiting)}
        numbers = {*self.oldest(few), *chain.from_iterable(self.unpacked.values())} - kept
        heavy = {~number for number in numbers if self.weigh(self[number]) > self.heavy}
        gone: list[T] = []
        light = {number // self.span for number in numbers if ~number not in heavy}
        for block in (heavy | light | {*self.unpacked}) - {*self.waiting}:
            packed = {number: one for number, one in self.members(block) if number not in kept and not stays(one)}
            self.unpacked.pop(block, None)
            for number in packed:
                self.blocks.pop(~number, None)
                del self[number]
            if packed:
                self.blocks[block] = pack(packed)
            else:
                self.blocks.pop(block, None)
            gone += packed.values()
        return gone

    def still_waiting(self) -> dict[int, int]:
        """Return the last two heavy records that were unpacked: they stay so, the heavier the longer.

        Events that alternate between two of them would otherwise pack and unpack both again and again.
        """
        heavy = [block for block in self.unpacked if block < 0][-2:]
        calls = {block: self.waiting.get(block, self.weigh(self[~block]) // self.heavy) for block in heavy}
        return {block: left - 1 for block, left in calls.items() if left > 0}

    def members(self, block: int) -> list[tuple[int, T]]:
        """Return the records that belong in a block now, unpacked."""
        self.unpack(block)
        numbers = range(block * self.span, (block + 1) * self.span) if block >= 0 else (~block,)
        known = ((number, self[number]) for number in numbers if self.is_unpacked(number))
        return [(number, record) for number, record in known if (self.weigh(record) > self.heavy) == (block < 0)]


class Items(Sequence[T]):
    """A sequence of items, all but the last of which are packed. A copy takes almost no memory."""

    __slots__ = ("blocks", "decoder", "last", "rest", "shown")

    def __init__(self, kind: Any, items: Iterable[T] = ()) -> None:
        self.decoder = decoder_of(list[kind])
        self.blocks: list[bytes] = []
        self.rest: list[T] = []
        self.shown: range | None = None
        """The items that a copy has, if not all."""
        self.last: tuple[int, list[T]] = -1, self.rest
        """The place of the block that was read last, and its items."""
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
        """Keep only the first `count` items."""
        full = min(len(self.blocks), count // BLOCK)
        if full < len(self.blocks):
            self.rest = list(self[full * BLOCK : count])
            del self.blocks[full:]
            self.last = -1, self.rest
        del self.rest[count - full * BLOCK :]

    def as_list(self) -> Sequence[T]:
        """Return the items as a list, unless they are very many."""
        return self if self.blocks else self.rest
