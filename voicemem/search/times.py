"""Times that a question names, such as `last summer` or `去年夏天`, as spans of Unix ms, relative to the day of asking.

It knows English, German, Chinese, Japanese and Korean. A span consists of calendar days in UTC.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import date
from typing import NamedTuple, TypeVar

from voicemem.protocol.memories import date_of
from voicemem.search.words import plain

DAY_MS = 86_400_000
MAX_QUESTION = 4_000
"""The first characters of a question, which are searched for times."""
MAX_YEARS = 1_000
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
"""The days of the years 1 to 9999."""
Meaning = TypeVar("Meaning")


def by_word(words: Mapping[Meaning, str]) -> dict[str, Meaning]:
    return {word: meaning for meaning, some in words.items() for word in some.split()}


MONTHS = by_word(
    {
        1: "january januar",
        2: "february februar",
        3: "march marz",
        4: "april",
        5: "may mai",
        6: "june juni",
        7: "july juli",
        8: "august",
        9: "september",
        10: "october oktober",
        11: "november",
        12: "december dezember",
    }
)
SEASONS = by_word(
    {
        3: "spring fruhling fruhjahr 春天 春季 春に の春 봄",
        6: "summer sommer 夏天 夏季 夏に の夏 여름",
        9: "autumn fall herbst 秋天 秋季 秋に の秋 가을",
        12: "winter 冬天 冬季 冬に の冬 겨울",
    }
)
"""The first month of each season."""
NUMBERS = by_word(
    {
        1: "a an one ein einem einer 一",
        2: "two couple zwei 二 两",
        3: "three few drei 三",
        4: "four vier 四",
        5: "five funf 五",
        6: "six sechs 六",
        7: "seven sieben 七",
        8: "eight acht 八",
        9: "nine neun 九",
        10: "ten zehn 十",
        11: "eleven elf",
        12: "twelve zwolf",
    }
)
UNITS = by_word(
    {
        "day": "day days tag tagen 天 日 일",
        "week": "week weeks woche wochen 周 星期 礼拜 週間 週 주",
        "month": "month months monat monaten 月 개월 달",
        "year": "year years jahr jahren 年 년",
    }
)
DAYS_AGO = by_word(
    {
        0: "today tonight heute 今天 今日 오늘",
        1: "yesterday gestern 昨天 昨日 어제",
        2: "vorgestern 前天 一昨日 おととい 그저께",
    }
)
UNITS_AGO = by_word(
    {
        ("week", 1): "上周 上星期 上个星期 上礼拜 先週 지난주",
        ("week", 0): "这周 这个星期 本周 今週 이번주",
        ("month", 1): "上个月 上月 先月 지난달",
        ("month", 0): "这个月 本月 今月 이번달",
        ("year", 2): "前年 一昨年 재작년",
        ("year", 1): "去年 昨年 작년",
        ("year", 0): "今年 올해",
    }
)


def either(words: Iterable[str]) -> str:
    """Return a pattern for any of the words; they must be whole words, except in scripts without spaces."""
    longest = sorted(words, key=len, reverse=True)
    spaced = "|".join(word for word in longest if word.isascii())
    return "|".join([*([rf"\b(?:{spaced})\b"] if spaced else []), *(word for word in longest if not word.isascii())])


LAST, THIS = r"last|past|previous|letzte[nmrs]?|vergangene[nmrs]?|vorige[nmrs]?", r"this|diese[nmrs]?"
COUNT, ONE_OF_UNITS = rf"\d{{1,4}}|{either(NUMBERS)}", either(UNITS)
AGO = re.compile(
    rf"({COUNT})(?: of)?\s+({ONE_OF_UNITS})\s+ago\b|\bvor\s+({COUNT})\s+({ONE_OF_UNITS})"
    rf"|({COUNT})\s*[个個かカヵヶ]?({ONE_OF_UNITS})\s*(?:以?前|전)"
)
DAY = re.compile(either(DAYS_AGO))
UNIT = re.compile(rf"\b(?:(?P<last>{LAST})|{THIS})\s+(?P<unit>{ONE_OF_UNITS})|(?P<whole>{either(UNITS_AGO)})")
PERIOD = re.compile(
    rf"(?:\b(?:(?P<last>{LAST})|{THIS}|in|im|since|seit|of|the|during)\s+)?"
    rf"(?P<name>{either(MONTHS)}|{either(SEASONS)}|(?P<number>1[0-2]|[1-9])\s*(?:月(?!前|以前)|월))"
    r"(?:[\s,]+(?:of\s+)?(?P<year>(?:19|20)\d\d)\b)?"
)
NUMBERED = re.compile("(十[一二]?|[一二三四五六七八九])(?=月(?!前|以前))")
YEAR = re.compile(r"(?<!\d)(?:19|20)\d\d(?!\d)")
AMBIGUOUS = frozenset(["may", "march", "fall", "spring"])
"""Months and seasons that count only with a word before them or a year, since they have another meaning too."""


class Day(NamedTuple):
    year: int
    month: int
    number: int
    """Days since 1970."""


def span_in(text: str, now_ms: int) -> tuple[int, int] | None:
    """Return the first and the last moment, in Unix ms, of the time that a question names; None if it names none."""
    try:
        days = days_in_question(plain(text[:MAX_QUESTION]), day_of(now_ms))
    except ValueError:  # beyond these years
        return None
    if days is None or not FIRST_DAY <= days[0] <= days[1] <= LAST_DAY:
        return None
    return days[0] * DAY_MS, days[1] * DAY_MS - 1


def day_of(now_ms: int) -> Day:
    number = max(FIRST_DAY, min(LAST_DAY, now_ms // DAY_MS))
    of_number = date_of(number)
    return Day(of_number.year, of_number.month, number)


def days_before(year: int, month: int) -> int:
    """The days from 1970 to the first of a month. Raises `ValueError` for another year than 1 to 9999."""
    return date(year, month, 1).toordinal() + FIRST_DAY - 1


def days_in_question(text: str, today: Day) -> tuple[int, int] | None:
    """Return the days of the most exact time in a text, the last one excluded; None if it names none."""
    if match := AGO.search(text):
        parts = [part for part in match.groups() if part]
        count = NUMBERS.get(parts[0]) or int(parts[0])
        return days_of_unit(UNITS[parts[1]], min(count, MAX_YEARS), today, counted=True)
    if match := DAY.search(text):
        return days_of_unit("day", DAYS_AGO[match[0]], today)
    if (days := days_of_period(text, today)) is not None:
        return days
    if match := UNIT.search(text):
        unit, ago = UNITS_AGO[match["whole"]] if match["whole"] else (UNITS[match["unit"]], int(bool(match["last"])))
        return days_of_unit(unit, ago, today)
    if match := YEAR.search(text):
        return days_before(int(match[0]), 1), days_before(int(match[0]) + 1, 1)
    return None


def days_of_period(text: str, today: Day) -> tuple[int, int] | None:
    """Return the days of a month or a season, in the named year, else the newest."""
    text = NUMBERED.sub(lambda match: str(sum(NUMBERS[one] for one in match[0])), text)
    for match in PERIOD.finditer(text):
        name = match["name"]
        if name in AMBIGUOUS and match[0] == name:
            continue
        months = 3 if name in SEASONS else 1
        month = int(match["number"]) if match["number"] else MONTHS.get(name) or SEASONS[name]
        year = named_year(match["year"], text, today)
        if year is None:
            begun = 12 * today.year + today.month - 1
            newest = 12 * today.year + month - 1 + (months if match["last"] else 0)
            year = today.year if newest <= begun else today.year - 1
        end = 12 * year + month - 1 + months
        return days_before(year, month), days_before(end // 12, end % 12 + 1)
    return None


def named_year(year: str | None, text: str, today: Day) -> int | None:
    if year or (match := YEAR.search(text)):
        return int(year or match[0])  # type: ignore[index]
    for match in UNIT.finditer(text):
        unit, ago = UNITS_AGO[match["whole"]] if match["whole"] else (UNITS[match["unit"]], int(bool(match["last"])))
        if unit == "year":
            return today.year - ago
    return None


def days_of_unit(unit: str, ago: int, today: Day, counted: bool = False) -> tuple[int, int]:
    """Return the days of a day, week, month or year so long ago; for a `counted` week, the seven days around it."""
    if unit == "day":
        return today.number - ago, today.number - ago + 1
    if unit == "week":
        begin = today.number - 7 * ago - (3 if counted else (today.number + 3) % 7)
        return begin, begin + 7
    if unit == "year":
        return days_before(today.year - ago, 1), days_before(today.year - ago + 1, 1)
    month = 12 * today.year + today.month - 1 - ago
    return days_before(month // 12, month % 12 + 1), days_before((month + 1) // 12, (month + 1) % 12 + 1)
