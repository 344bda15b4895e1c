"""Stores with some of everything in them, and all that the port answers about one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.stores.contract import (
    HOOK,
    NOW,
    ODD_NAMES,
    OPERATOR,
    REOPEN_MS,
    append_batch,
    append_offers,
    attempt_of,
    endpoint_of,
    offer,
    offers,
)
from tests.support.stores.memories import memory_of
from voicemem.config.session import validate_config
from voicemem.errors import Refused
from voicemem.search.words import query_words
from voicemem.store.deliveries import DeliveryFilter
from voicemem.store.directory import AgoraApp, ApiKey, InboundSecret, KeyLimits
from voicemem.store.memories import tombstone
from voicemem.store.memory_filters import MemoryFilter
from voicemem.store.port import Store
from voicemem.store.quarantine import QuarantineEntry
from voicemem.store.records import DisconnectedProducer, Node, SavedFigures, Snapshot
from voicemem.store.session_filters import SessionFilter
from voicemem.store.streams import SessionEnding

PROJECTS = ("p", "p", "q")
LINKED = "🦩 too"
"""A user who is linked with another one."""
PRODUCERS = ("main", "asr", *ODD_NAMES)
LATER = NOW + 10**9
CONFIGS: tuple[dict[str, Any], ...] = (
    {},
    {"name": "desk", "labels": {"a": "b", "": "ключ"}, "user_id": "ann", "channel": "one"},
    {"name": "nul\x01", "labels": {"nul\x01": "\x01"}, "user_id": "🦩", "ttl_seconds": 60, "idle_timeout": 5},
    {"webhook": {"url": HOOK, "secret": "whsec_AAAA"}, "llm": {"url": "https://llm.example/", "api_key": "sk-1"}},
    {"name": "desk", "labels": {"a": "x" * 3000}, "reopen_window": 0},
)


class FullStore:
    """Does this and that to a store; what cannot be done then is left out."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.now = NOW
        self.ids: list[tuple[str, str]] = []
        self.users: list[tuple[str, str]] = []
        self.epochs: dict[tuple[str, str, str], int] = {}
        self.seqs: dict[tuple[int, str], int] = {}
        """The next of each producer that has sent some."""

    async def do(self, acts: list[tuple[str, int, int]]) -> None:
        for act, choice, amount in acts:
            self.now += 1 + amount
            what: Callable[[int, int], Awaitable[None]] = getattr(self, act)
            await what(choice, amount)

    def chosen(self, choice: int) -> tuple[str, str] | None:
        return self.ids[choice % len(self.ids)] if self.ids else None

    async def key(self, choice: int) -> int | None:
        """Of a session that is not erased."""
        chosen = self.chosen(choice)
        found = None if chosen is None else await self.store.journal.find_session(*chosen)
        return None if found is None else found.key

    async def create(self, choice: int, amount: int) -> None:
        project, session_id = PROJECTS[choice % 3], f"s{len(self.ids)} {ODD_NAMES[amount % len(ODD_NAMES)]}"
        config = validate_config(CONFIGS[choice % len(CONFIGS)])
        await self.store.journal.create_session(project, session_id, config, self.now, f"k{amount % 3}")
        self.ids.append((project, session_id))

    async def open(self, choice: int, amount: int) -> None:
        if chosen := self.chosen(choice):
            name = PRODUCERS[amount % len(PRODUCERS)]
            if await self.store.journal.find_session(*chosen) is not None:
                gap = amount if amount % 7 == 6 else None
                opened = await self.store.journal.open_producer(
                    *chosen, name, validate_config({}), gap, self.now, node="" if amount % 2 else "gone"
                )
                self.epochs[*chosen, name] = opened.epoch

    async def send(self, choice: int, amount: int) -> None:
        key = await self.key(choice)
        if key is None:
            return
        name = PRODUCERS[amount % 3]
        first = self.seqs.get((key, name), 1)
        if amount % 5 == 4:
            first = max(1, first - 2)  # some of it again
        appended = await append_batch(self.store.journal, key, name, None, offers(first, first + amount), self.now)
        self.seqs[key, name] = appended.next_seq

    async def send_single(self, choice: int, amount: int) -> None:
        """Without seq, and of another size each."""
        if (key := await self.key(choice)) is not None:
            single = offer(None, self.now, text="x" * (amount * 997))
            await append_offers(self.store, key, single, producer="api", now_ms=self.now)

    async def tell(self, choice: int, amount: int) -> None:
        """An event of the server's own."""
        if (key := await self.key(choice)) is not None:
            end = (await self.store.nodes.read_positions([key]))[key]
            await self.store.journal.append_server_event(
                key, b'{"type":"memory.data","data":{"n":%d}}' % amount, end, self.now
            )

    async def leave(self, choice: int, amount: int) -> None:
        key, chosen = await self.key(choice), self.chosen(choice)
        for (*of, name), epoch in list(self.epochs.items()):
            if key is not None and tuple(of) == chosen:
                until = self.now + amount if amount % 2 else None
                await self.store.journal.leave([DisconnectedProducer(key, name, epoch, until)], self.now)

    async def close(self, choice: int, amount: int) -> None:
        if (key := await self.key(choice)) is not None:
            ending = SessionEnding(self.now, "idle" if amount % 2 else "left", provisional=bool(amount % 2))
            await self.store.journal.close_session(key, ending, f"n{self.now}", self.now)

    async def change(self, choice: int, amount: int) -> None:
        key = await self.key(choice)
        found = (
            [] if key is None else await self.store.journal.find_sessions(self.ids[choice % len(self.ids)][0], [key])
        )
        if key is not None and found[0].state == "running":
            patch = validate_config({"labels": {"changed": str(amount)}, "llm": {"api_key": f"sk-{amount}"}})
            await self.store.journal.change_config(key, patch, b'{"type":"session.update"}', self.now)
        elif key is not None and found[0].state == "ended":
            patch = validate_config({"labels": {"outcome": str(amount)}})
            await self.store.journal.change_config(key, patch, b'{"type":"session.update"}', self.now, after_end=True)

    async def erase(self, choice: int, amount: int) -> None:
        if amount % 3 == 0 and (key := await self.key(choice)) is not None:
            await self.store.retention.erase(key, self.now)

    async def clean(self, choice: int, amount: int) -> None:
        keys = await self.store.retention.claim_erased("", self.now, 0, 10)
        while amount % 2 and await self.store.retention.delete_erased(keys):
            pass

    async def compact(self, choice: int, amount: int) -> None:
        """Some of the steps."""
        for key in await self.store.compaction.claim_compactable("", self.now + REOPEN_MS + 1, 0, 10):
            for _ in range(amount % 4):
                await self.store.compaction.compact(key)

    async def user(self, choice: int, amount: int) -> None:
        project, user_id = PROJECTS[choice % 3], ODD_NAMES[amount % len(ODD_NAMES)] or "u"
        made = await self.store.journal.ensure_user(project, user_id, self.now)
        await self.store.journal.append_server_event(
            made.key, b'{"type":"memory.data","data":{}}', made.position, self.now
        )
        self.users.append((project, user_id))
        if amount % 5 in (2, 4):
            with suppress(Refused):
                await self.store.users.link(project, user_id, LINKED, f"link {self.now}", self.now)
            self.users.append((project, LINKED))
        if amount % 5 == 4:
            await self.store.retention.erase(made.key, self.now)

    async def remember(self, choice: int, amount: int) -> None:
        """A memory of a session, which may be another one's heir, or be removed."""
        chosen = self.chosen(choice)
        stream = None if chosen is None else await self.store.journal.find_session(*chosen)
        if stream is None:
            return
        odd = ODD_NAMES[amount % len(ODD_NAMES)]
        row = memory_of(
            stream,
            f"{stream.key} {odd}",
            f"{odd} walnuts {amount}",
            user_id=odd or None,
            created_ms=self.now,
            updated_ms=self.now,
            topics=("a", odd.split("\n")[0]),
            supersedes=(f"{stream.key} {ODD_NAMES[amount % 5]}",) if amount % 3 else (),
            event_at="2026-05-03" if amount % 2 else None,
            expires_ms=self.now if amount % 7 else None,
            pinned=bool(amount % 2),
        )
        rows = [tombstone(row, row.position, self.now) if amount % 4 == 3 else row]
        end = (await self.store.nodes.read_positions([stream.key]))[stream.key]
        await self.store.memories.write_memories(stream.key, [b'{"type":"memory.added"}'], end, rows, self.now)
        await self.store.memories.touch_memories(stream.project, [row.id], self.now)

    async def add_key(self, choice: int, amount: int) -> None:
        key = ApiKey(f"k{self.now}", PROJECTS[choice % 3], ODD_NAMES[amount % 20], bytes([amount]) * 32, (), self.now)
        await self.store.directory.add_key(
            replace(key, scopes=("read", "ingest")[: amount % 3], limits=KeyLimits(1, 2, amount))
        )
        if amount % 2:
            await self.store.directory.revoke_key(key.id, self.now)

    async def add_app(self, choice: int, amount: int) -> None:
        await self.store.directory.add_agora_app(AgoraApp(f"a{self.now}", "p", "first", ("read",), self.now))
        await self.store.directory.change_agora_app(f"a{self.now}", lambda app: replace(app, old_certificate="old"))
        if amount % 2:
            await self.store.directory.remove_agora_app(f"a{self.now}")
        secret = InboundSecret("p", f"d{choice}", "secret", self.now, "old" if amount % 3 else None, self.now)
        await self.store.directory.change_inbound_secret("p", secret.dialect, lambda known: secret)
        await self.store.directory.add_caller_secret("p", bytes([choice]) * 32, self.now, is_first=amount % 2 == 0)

    async def add_receiver(self, choice: int, amount: int) -> None:
        given = endpoint_of(f"e{self.now}", 101, 102, 103, project=PROJECTS[choice % 3], description="ours\x01")
        added = await self.store.endpoints.add_endpoint(given, 100)
        assert added is not None
        if amount % 3 == 0:
            await self.store.endpoints.change_endpoint(
                given.project or "", f"e{self.now}", lambda old: replace(old, secret="new", old_secret="old")
            )
        if amount % 5 == 0:
            await self.store.endpoints.delete_endpoint(given.project or "", f"e{self.now}")

    async def set_operator(self, choice: int, amount: int) -> None:
        if amount % 4 == 3:
            await self.store.directory.turn_off_operator_endpoint()
        else:
            await self.store.directory.set_operator_endpoint(OPERATOR, f"secret {amount % 2}", now_ms=self.now)

    async def deliver(self, choice: int, amount: int) -> None:
        """Claim, freeze, and finish, postpone or keep the lease."""
        for number, one in enumerate(
            await self.store.outbox.claim_deliveries(self.now, 30_000, {}, 1 + choice, "gone")
        ):
            if amount % 2:
                await self.store.outbox.freeze_payload(one, b'{"frozen":%d}' % amount)
            if (amount + number) % 4 == 0:
                await self.store.outbox.postpone_delivery(one, "session_set_aside", self.now + 5)
            elif (amount + number) % 4 < 3:
                state, due = ("delivered", None) if amount % 3 else ("pending", self.now + 60_000)
                await self.store.outbox.finish_delivery(one, attempt_of(200, "\x01 odd", self.now), state, due)  # type: ignore[arg-type]

    async def quarantine(self, choice: int, amount: int) -> None:
        if (key := await self.key(choice)) is not None:
            await self.store.quarantine.add(key, QuarantineEntry("failed", self.now, f"v{amount % 2}"))

    async def figure(self, choice: int, amount: int) -> None:
        if (key := await self.key(choice)) is not None:
            await self.store.overviews.save_figures(
                [SavedFigures(key, amount, b'{"n":%d}' % amount, amount, amount, f"{amount}")]
            )
            await self.store.journal.save_snapshot(key, Snapshot(1, 1, b"state"))


ACTS = st.lists(
    st.tuples(
        st.sampled_from(
            [name for name in vars(FullStore) if not name.startswith("_") and name not in ("do", "chosen", "key")]
            + ["create", "open", "send", "send", "send", "close"]
        ),
        st.integers(0, 9),
        st.integers(0, 40),
    ),
    max_size=60,
)
"""What is done to a store: an act, which of the sessions, and how much or in which way."""


async def answers(full: FullStore, store: Store) -> dict[str, Any]:
    """What the port answers to every read, about all that was done."""
    found: dict[str, Any] = {"identity": (store.directory.incarnation, store.directory.cursor_secret)}
    for project in sorted({*PROJECTS}):
        found[project] = await of_project(store, project)
    keys = {stream.key for project in PROJECTS for stream in found[project]["all"]}
    for key in sorted(keys):
        found[f"stream {key}"] = await of_stream(store, key)
    users = [await store.journal.find_user(*user) for user in full.users]
    found["users"] = users
    found["journals of users"] = [await store.journal.read_rows(user.key, 0, 100) for user in users if user is not None]
    found["sessions"] = [await store.journal.find_session(*one) for one in full.ids]
    found["keys"] = (
        await store.directory.list_keys(),
        await store.directory.has_keys(),
        await store.directory.revoked_keys([f"k{NOW}"]),
    )
    found["apps"] = (
        await store.directory.list_agora_apps(),
        [await store.directory.find_agora_app(f"a{NOW + n}") for n in range(100)],
    )
    found["hooks"] = await store.directory.list_inbound_secrets("p")
    found["callers"] = await store.directory.list_caller_secrets("p")
    found["operator"] = await store.endpoints.find_operator_endpoint()
    found["due"] = sorted(await store.journal.find_due(LATER, 1000)), await store.outbox.next_delivery_ms()
    for version in ("v0", "v1"):
        found[version] = (
            await store.quarantine.count_quarantined(version),
            await store.quarantine.list_quarantined(version, 100),
        )
    found["running"] = (await store.read_figures(LATER)).running
    return found


async def of_project(store: Store, project: str) -> dict[str, Any]:
    """Its lists, by everything that they may be asked for, and its receivers with their deliveries."""
    keys = await store.journal.list_keys_after(project, 0, 1000)
    filters: list[dict[str, Any]] = [
        {},
        {"state": "running"},
        {"state": "ended"},
        {"user_id": "ann"},
        {"user_id": "🦩"},
        {"label": ("a", "b")},
        {"label": ("nul\x01", "\x01")},
        {"label": ("changed", "1")},
        {"channel": "one"},
        {"started_after": NOW + 50, "started_before": NOW + 500},
    ]
    wanted = [SessionFilter(**{"project": project, "limit": 1000, **one}) for one in filters]
    endpoints = await store.endpoints.list_endpoints(project)
    every = MemoryFilter(project=project, with_superseded=True, limit=1000)
    memories = await store.memories.list_memories(every)
    ids = [f"{key} {odd}" for key in keys for odd in ODD_NAMES]
    words = query_words("walnuts ключ May 3")
    return {
        "all": await store.journal.find_sessions(project, keys),
        "newest": await store.journal.list_newest_keys(project, 1000),
        "lists": [(await store.journal.list_sessions(one), await store.journal.count_sessions(one)) for one in wanted],
        "overviews": [await store.overviews.list_overviews(one) for one in wanted],
        "page": await store.journal.list_page(wanted[0], 1000),
        "endpoints": endpoints,
        "memories": memories,
        "not superseded": await store.memories.list_memories(replace(every, with_superseded=False)),
        "by id": sorted(await store.memories.find_memories(project, ids), key=lambda row: row.id),
        "by words": {row.id for row, _ in await store.memories.find_memories_by_words(every, words, 1000)},
        "deliveries": [await store.deliveries.list_endpoint_deliveries(one.key, DeliveryFilter()) for one in endpoints],
    }


async def of_stream(store: Store, key: int) -> dict[str, Any]:
    return {
        "rows": await store.journal.read_rows(key, 0, 100_000),
        "page": await store.journal.read_rows(key, 3, 5),
        "position": await store.nodes.read_positions([key]),
        "secrets": await store.journal.load_secrets(key),
        "deliveries": await store.deliveries.list_deliveries(key),
        "set aside": [await store.quarantine.find_quarantined(key, version) for version in ("v0", "v1")],
        "superseded": sorted(await store.nodes.find_superseded([(key, name, 0) for name in PRODUCERS])),
    }


async def outcomes(full: FullStore, store: Store) -> list[Any]:
    """What becomes of the same writes: a start, resends, opens, names, sweeps and claims."""
    await store.nodes.start_node(Node(token="n", started_ms=LATER, expires_ms=LATER + 10_000), LATER)
    found = await claimed(store)
    for (key, name), following in full.seqs.items():
        for first in sorted({1, max(1, following - 3)}):
            batch = offers(first, following + 1)
            found.append(await append_batch(store.journal, key, name, None, batch, LATER))
    for project, session_id in full.ids:
        if await store.journal.find_session(project, session_id) is not None:
            found.append(
                await store.journal.open_producer(project, session_id, "main", validate_config({}), None, LATER)
            )
        else:
            with pytest.raises(Refused) as refused:
                await store.journal.open_producer(project, session_id, "main", validate_config({}), None, LATER)
            found.append(refused.value.code)
    found.append(await store.journal.find_due(LATER * 2, 1000))
    found.append(sorted(await store.retention.claim_expired("n", LATER * 2, 1000, 100)))
    found.append(sorted(await store.compaction.claim_compactable("n", LATER * 2, 1000, 100)))
    try:
        made, what = await store.journal.create_session(
            "p", "new", validate_config({"name": "desk"}), LATER, "k1", True
        )
        found.append((made.config, what))
    except Refused as refused:
        found.append(refused.code)
    return found


async def claimed(store: Store) -> list[Any]:
    """Deliveries that are due, in an order of their own: engines may order those of one time differently."""
    claims = await store.outbox.claim_deliveries(LATER * 2, 1000, {}, 1000, "n")
    return sorted(claims, key=lambda claim: claim.key)
