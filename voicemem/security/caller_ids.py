"""Callers by telephone: their numbers as E.164, and the user ids made of them (docs/privacy.md).

An id is the HMAC of a number with a secret of the project, so that no one who sees ids can find the numbers by brute
force.
"""

import hmac
import re
import secrets
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from voicemem.config.service import Settings
from voicemem.dialects.call_starts import CALL_STARTS
from voicemem.dialects.caller_fields import Caller
from voicemem.dialects.dialect import user_id_of
from voicemem.dialects.registry import DIALECTS, no_such_dialect
from voicemem.errors import CannotStart
from voicemem.protocol.telephone import MAX_NUMBER, NUMBER
from voicemem.runtime import Clock
from voicemem.store.port import Store
from voicemem.store.session_filters import SessionFilter

CALLER_ID = "tel_"
SECRET_BYTES = 32
MIN_DIGITS, MIN_NATIONAL = 7, 6
"""The shortest numbers with and without a country code; shorter ones are extensions of an exchange."""
KEYPAD = str.maketrans("abcdefghijklmnopqrstuvwxyz", "22233344455566677778889999")
PLACEHOLDERS = frozenset(
    word.translate(KEYPAD)
    for word in ("anonymous", "blocked", "private", "restricted", "unavailable", "unknown", "withheld")
)
"""Words that platforms send in place of an unknown number, as keypad digits: `anonymous` is 266696687."""


def e164(number: str, region: str | None = None) -> str | None:
    """Return a telephone number in any spelling as E.164; None if it is no number, or its country is not known.

    `region` is the country of national numbers (`DE`).
    """
    if len(number) > MAX_NUMBER:
        return None
    text = "".join(one for one in unicodedata.normalize("NFKC", number) if unicodedata.category(one) != "Cf")
    match = NUMBER.fullmatch(text)
    if match is None:
        return None
    written = match["number"]
    digits = re.sub(r"\D", "", written)
    is_international = "+" in written or digits.startswith("00")
    if is_international:  # in which a zero of national numbers may be in brackets
        digits = re.sub(r"\D", "", written.replace("(0)", "")).removeprefix("00")
    import phonenumbers  # here, since it takes long, and few starts need it

    try:
        parsed = phonenumbers.parse(f"+{digits}" if is_international else digits, region)
    except phonenumbers.NumberParseException:
        return None
    is_short = len(digits) < (MIN_DIGITS if is_international else MIN_NATIONAL)
    is_placeholder = digits in PLACEHOLDERS or len(set(str(parsed.national_number))) == 1
    if is_short or is_placeholder or not phonenumbers.is_possible_number(parsed):
        return None
    return phonenumbers.format_number(parsed, phonenumbers.PhoneNumberFormat.E164)


def is_region(region: str) -> bool:
    import phonenumbers

    return region in phonenumbers.SUPPORTED_REGIONS


def caller_id(number: str, secret: bytes) -> str:
    """Return the user id of a number in E.164."""
    return f"{CALLER_ID}{hmac.digest(secret, number.encode(), 'sha256').hex()}"


IDENTIFY = re.compile(r"(?:([A-Za-z0-9._:-]{1,128})/)?([a-z0-9-]{1,64})=([a-z, ]+)")
IDENTIFY_RULE = "Who calls is identified as DIALECT=user, DIALECT=number or DIALECT=user,number, or PROJECT/DIALECT=…"
Identification = frozenset[str]
"""The facts that identify a caller: `user` and `number`. Where a frame has both, `user` wins."""
Fact = Literal["user", "number"]
ALLOWED: tuple[Fact, ...] = ("user", "number")
OFF = "off"


def parse_facts(text: str) -> Identification:
    """Return the facts in a text such as `user,number`; none for `off`. Raises `ValueError`."""
    facts = frozenset(one.strip() for one in text.split(",")) - {OFF}
    if not facts <= set(ALLOWED):
        raise ValueError(f"What says who calls must be user, number, user,number or off, not {text!r}.")
    return facts


def parse_identify_rules(settings: Iterable[str]) -> dict[tuple[str | None, str], Identification]:
    """Parse the facts that identify callers, by project (None: all projects) and dialect. Raises `ValueError`."""
    identify: dict[tuple[str | None, str], Identification] = {}
    for one in settings:
        match = IDENTIFY.fullmatch(one)
        if match is None:
            raise ValueError(IDENTIFY_RULE)
        if match[2] not in DIALECTS and match[2] not in CALL_STARTS:
            raise ValueError(no_such_dialect(match[2]))
        identify[match[1], match[2]] = parse_facts(match[3])
    return identify


def check_callers(settings: Settings) -> None:
    """Check the settings about callers. Raises `CannotStart`."""
    if settings.phone_region is not None and not is_region(settings.phone_region):
        raise CannotStart("The region of telephone numbers must be a country's two letters, such as US or DE.")
    try:
        parse_identify_rules(settings.identify)
    except ValueError as error:
        raise CannotStart(str(error)) from None


@dataclass(eq=False)
class Callers:
    """Identifies callers by the facts that settings allow (`identify`); `region` is the country of national numbers."""

    store: Store
    clock: Clock
    region: str | None = None
    identify: Mapping[tuple[str | None, str], Identification] = field(default_factory=dict)

    async def user_of(self, project: str, dialect: str, caller: Caller) -> str | None:
        """Return the id of the user who calls, by the facts that the project allows; None if these are missing."""
        facts = await self.allowed(project, dialect) if caller.user or caller.number else Identification()
        if "user" in facts and caller.user is not None:
            return user_id_of(caller.user)
        if "number" in facts and caller.number is not None:
            return await self.find(project, caller.number)
        return None

    async def allowed(self, project: str, dialect: str) -> Identification:
        """Return the allowed facts: those that the project has set with the secret of its webhooks, or the settings."""
        kept = await self.store.directory.find_inbound_secret(project, dialect)
        if kept is not None and kept.identify is not None:
            return parse_facts(kept.identify)
        return self.identify.get((project, dialect), self.identify.get((None, dialect), Identification()))

    async def ids(self, project: str, number: str) -> list[str]:
        """Return all ids of a number, the newest secret's first; none for an invalid one. First use makes a secret."""
        written = e164(number, self.region)
        if written is None:
            return []
        known = await self.store.directory.list_caller_secrets(project)
        if not known:
            await self.add_secret(project, is_first=True)
            known = await self.store.directory.list_caller_secrets(project)
        return [caller_id(written, secret) for secret in known]

    async def find(self, project: str, number: str) -> str | None:
        """Return the id under which a caller is known: an older secret's, if they called before it was replaced."""
        ids = await self.ids(project, number)
        for id in ids if len(ids) > 1 else ():
            if await self.is_known(project, id):
                return id
        return ids[0] if ids else None

    async def is_known(self, project: str, user_id: str) -> bool:
        """Return whether a user has a session, a memory or a document."""
        journal = self.store.journal
        if await journal.find_user(project, user_id) is not None:
            return True
        return bool(await journal.count_sessions(SessionFilter(project=project, user_id=user_id), 1))

    async def add_secret(self, project: str, is_first: bool = False) -> None:
        """Make a secret for callers that are new from now on; with `is_first` only if there is none."""
        secret = secrets.token_bytes(SECRET_BYTES)
        await self.store.directory.add_caller_secret(project, secret, self.clock(), is_first)
