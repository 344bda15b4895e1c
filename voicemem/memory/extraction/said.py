"""Classifies what was said in a line: a question, a greeting, an attempt to give the LLM orders.

Speech recognition often leaves out punctuation, so words count too: of English, German, French, Spanish and Chinese.
"""

import re
from collections.abc import Iterator
from itertools import pairwise

from voicemem.protocol.memories import date_of
from voicemem.redaction.digit_runs import START, Limit
from voicemem.redaction.number_words import DUTCH, DUTCH_TENS, GERMAN, GERMAN_TENS, ITALIAN, ITALIAN_TENS, find_number
from voicemem.redaction.texts import Rules, redact_text
from voicemem.search.passages import DAY_MS
from voicemem.search.times import NUMBERS, span_in
from voicemem.search.words import PAIRED, STOP_WORDS, words_of

CLAUSES = re.compile(r"(?<=[.!?,;。！？，；])\s*")
MARKS = ".!,;:。！，；… "
ASKS = re.compile(
    r"""
    (?:(?:and|so|but|okay|well|hey|sorry|excuse\ me|und|also|aber)\s+)*
    (?:
        (?:what|when|where|who|whom|whose|why|which|how)(?!\s+(?:i|we|he|she|they|you|my|his|her|our|the)\b)
        |(?:do|does|did|can|could|will|would|should|may|might|is|are|was|were|have|has|am|shall|don't|can't|isn't|aren't)
            \s(?:you|i|we|they|he|she|it|there|this|that|my|your|the|anyone|somebody)
        |(?:was|wann|wo|wohin|woher|wer|wem|wen|warum|wieso|weshalb|wie|welche[rsnm]?)
            (?!\s+(?:ich|wir|er|sie|mein|meine|der|die|das)\b)
        |(?:kann|können|könnten|hast|haben|habt|ist|sind|gibt|darf|würden|werden|machen)\s(?:ich|du|sie|ihr|wir|es|man)
        |qu[ei]|quand|où|pourquoi|comment|est-ce|combien|quel(?:le)?s?|qué|cuándo|dónde|quién|cómo|cuánt[oa]s?
    )\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
ASKS_CHINESE = re.compile(r"[吗呢么]$|什么|怎么|哪里|哪儿|哪个|多少|为什么|谁|是不是|有没有|能不能|可不可以")
GREETING_WORDS = frozenset(
    """
    hello hi hey hallo good morning afternoon evening day night thanks thank you bye goodbye welcome please there
    guten morgen tag abend danke vielen dank bitte tschuss wiedersehen auf wiederhoren servus gruss gott schon
    bonjour bonsoir salut merci beaucoup au revoir hola buenos buenas dias tardes noches gracias adios
    你好 您好 谢谢 再见 早上 晚上 上好 好 喂 拜拜 多谢 谢 谢您 谢你 见 拜 您 你
    very much so lot a again have nice everyone all
    """.split()  # noqa: SIM905 (a list would be a page long)
)
"""As `words_of` writes them."""
ORDERS = re.compile(
    r"""
    \b(?:ignore|disregard|override|bypass|overrule|neglect|disobey)\b .{0,60}?
        \b(?:instructions?|rules?|prompts?|guidelines?|restrictions?|guardrails?|programming|directives?|system
            |everything|all\ (?:previous|prior|above)|(?:your|previous|prior|above)\ \w+)\b
    |\b(?:forget|skip|drop|cancel|reset|discard|delete|erase|leave)\b .{0,30}?
        \b(?:your|all|any|previous|prior|above|these|those|system)\b .{0,20}?
        \b(?:instructions?|rules?|prompts?|guidelines?|restrictions?|guardrails?|programming|directives?)\b
    |\b(?:system|developer|assistant|admin|debug|god|sudo|root|maintenance)\s*(?:prompt|message|mode|override|access)\b
    |(?:^|\s)\W?(?:system|assistant|developer|tool)\W?\s*:
    |\b(?:you\ are\ now|from\ now\ on\ you|act\ as|pretend\ (?:to\ be|that|you)|role-?play\ as|jailbreak
        |new\ instructions?)\b
    |\b(?:i\ am|i'm|im|i\ was|caller\ is|user\ is|me\ as|as\ (?:an?|the)|like\ (?:an?|the))\s+
        (?:(?:the|an?|your|now|really|actually|system|site|super|real|new|verified|full)\s+)*
        (?:admin|root|superuser|super\ user|sysadmin|sudoer|developer\ of\ (?:this|you)|operator\ of\ (?:this|you)
            |administrator\ of\ (?:this|your|the)\ (?:system|service|agent|account|company))\b
    |\b(?:grant|give)\s+(?:me|the\ caller|the\ user)\b .{0,30} \b(?:admin|root|full\ access|privileges?|permissions?)\b
    |\b(?:has|have|with)\s+(?:admin|administrator|root|full|unlimited|superuser)\s+
        (?:access|rights|privileges|permissions)\b
    |\b(?:mark|classify|tag|label|count|log|record|rate)\b .{0,12}
        \b(?:call|conversation|outcome|disposition|transcript)\s+as\b
    |\b(?:outcome|disposition|verdict)\b (?:\ (?:of|for)\ (?:this|the)\ (?:call|conversation))?
        \s*(?:\bis\b|=|:|\b(?:should|must|shall|will)\ be\b|\bto\b)
    |\b(?:markier|vermerk|notier|werte)\w*\b .{0,20} \b(?:anruf|gespräch|ergebnis)\s+als\b
    |\b(?:store|save|write|add|put|insert|remember)\b .{0,20}
        \b(?:as\ a\ (?:fact|memory)|(?:in)?to\ (?:the|your)\ memory)\b
    |\b(?:ignorier\w*|vergiss|vergessen\ sie|missacht\w*|umgeh\w*|überschreib\w*)\b .{0,60}?
        \b(?:anweisung\w*|regel\w*|vorgabe\w*|prompt\w*|einschränkung\w*|richtlinie\w*|instruktion\w*)\b
    |\bich\s+bin\s+(?:jetzt\s+)?(?:der\s+|ein\s+)?(?:admin|root|superuser|systemadministrator)\b
    |\b(?:ignore[zr]?|oublie[zr]?|ignora|olvida)\b .{0,60}? \b(?:instruc\w+|consignes?|règles?|reglas?)\b
    |(?:忽略|无视|忘记|忘掉|不要理会|绕过).{0,30}(?:指令|指示|提示|规则|限制|设定|命令)
    |我(?:现在)?是(?:超级)?(?:系统)?(?:管理员|根用户)
    |\b(?:set[sz]?\w*|stell\w*|pon(?:e|ga|er)?|mets|mett\w*|imposta\w*|zet|put)\b .{0,25}?
        \b(?:outcome|ergebnis|resultado|résultat|risultato|uitkomst|resultaat)\W*(?:[:=]|\b(?:to|auf|en|a|à|sur|su|op)\b)
    |结果.{0,4}(?:设|改|标记|写)(?:置)?[为成]
    |\b(?:set|make|mark|put)\b .{0,25}? \b(?:to|as)\s+(?:true|false)\b
    |\b(?:write|note|put|enter|record)\b .{0,20}? \bin(?:to)?\s+your\s+(?:analysis|assessment)\b
    |["']\w+["']\s*:
    """,
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
"""Text that tries to tell the agent, or the LLM that reads it, what to do or to believe."""
NEGATIONS = frozenset(
    """
    no not never none without nor neither cannot nothing nobody dont doesnt didnt wont wouldnt cant isnt wasnt
    nicht kein keine keinen keiner keines keinem nie niemals niemand ohne nichts
    ne pas jamais sans rien aucun aucune no nunca jamás sin nada nadie ni tampoco ningún ningun ninguno ninguna
    non niente nulla nessuno nessuna nemmeno neanche neppure senza niet geen nooit niets zonder
    não nao nem nenhum nenhuma ninguém sem inte ikke ingen inget aldrig aldri hardly barely
    nigdy żaden żadne nic bez не нет ни ні никогда ничего без لا لم لن ليس لست לא אין δεν όχι नहीं मत
    değil yok không chưa tidak bukan jangan
    """.split()  # noqa: SIM905
)
REFUSES = frozenset(
    "refuse refuses refused refusing decline declines declined declining reject rejects rejected rejecting".split()  # noqa: SIM905
)
DENY_BEFORE = frozenset(
    """
    nicht kein keine keinen keiner keines keinem nie niemals niet geen nooit inte ikke aldrig değil
    nothing nobody nichts niemand nada nadie rien niente nulla nessuno niets
    """.split()  # noqa: SIM905
)
"""Negations that may also follow the words that they deny: "Buchen Sie das nicht", "cancel nothing"."""
NEGATED_VERB = re.compile("m[ıiuü]yor")
"""The negation in a Turkish verb, which follows the words that it denies."""
TAKEN_BACK = re.compile(
    r"""
    \b(?:no|nein|non|nee|não|нет)\W+(?:wait|hold\ on|stop|actually|sorry|warte\w*|halt|doch\ nicht|espera|attend\w*
        |aspetta|wacht|espere|подожди\w*)\b
    |\b(?:scratch|forget|cancel|ignore)\ that(?!\s*\w)|\bnever\ mind\b|\bon\ second\ thought\b|\bdoch\ lieber\ nicht\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""Phrases that take back the words before them."""
BELIEVE = frozenset("think believe guess suppose want glaube denke meine möchte will creo pienso quiero crois".split())  # noqa: SIM905
"""Verbs that, when negated, deny everything after them in their clause."""
NEGATES = re.compile(r"(?:n['’]t|^(?:don|doesn|didn|won|wouldn|can|couldn|isn|wasn|aren|haven|hasn))$")
ELIDED = re.compile("n['’]")
NEGATES_PAIRED = re.compile("[不没沒别無无未]|ไม่|ません|ない|なかった|なし|ずに|(?:^|\\s)안\\s|못|않|없|아니|싫")
"""Negations of Chinese, Japanese and Korean, anywhere in a clause."""
AFFIRMS_PAIRED = re.compile(
    """
    特别|特別|分别|个别|别的|别人|不错|不过|不但|不仅|不管|无论|没问题|没关系|不客气|差不多|不好意思|(.)[不没]\\1
    |(?:なければ|なくては|なきゃ)(?:なりません|ならない|いけない|いけません)|かもしれ(?:ない|ません)|間違いな|少ない|ませんか
    """,
    re.VERBOSE,
)
"""Phrases that look like negations, and are not."""
REFUSAL = re.compile(
    r"\W*(?:(?:no|nope|nah|nein|nee|non|não|нет|nej|nei|hayır|لا|不|いや)\b(?!['’-])|不[是要用行]|没有|いいえ|아니)",
    re.IGNORECASE,
)
NO_REFUSAL = re.compile(r"\W*no (?:problem|worries|doubt|hay problema|te preocupes)\b", re.IGNORECASE)
NEAR = 4
"""A negation stands at most this many words before the word that it denies."""
NUMBER = re.compile(r"\d+(?:[.,:' ]\d+)*")
UNITS = """
    zero one two three four five six seven eight nine
    ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen
    null eins zwei drei vier funf sechs sieben acht neun
    zehn elf zwolf dreizehn vierzehn funfzehn sechzehn siebzehn achtzehn neunzehn
    cero uno dos tres cuatro cinco seis siete ocho nueve
    diez once doce trece catorce quince dieciseis diecisiete dieciocho diecinueve
    zero une deux trois quatre cinq six sept huit neuf
    dix onze douze treize quatorze quinze seize dixsept dixhuit dixneuf
    zero uno due tre quattro cinque sei sette otto nove
    dieci undici dodici tredici quattordici quindici sedici diciassette diciotto diciannove
    nul een twee drie vier vijf zes zeven acht negen
    tien elf twaalf dertien veertien vijftien zestien zeventien achttien negentien
    zero uma dois tres quatro cinco seis sete oito nove
    dez onze doze treze catorze quinze dezesseis dezessete dezoito dezenove
"""
TENS = """
    twenty thirty forty fifty sixty seventy eighty ninety
    zwanzig dreissig vierzig funfzig sechzig siebzig achtzig neunzig
    veinte treinta cuarenta cincuenta sesenta setenta ochenta noventa
    vingt trente quarante cinquante soixante septante huitante nonante
    venti trenta quaranta cinquanta sessanta settanta ottanta novanta
    twintig dertig veertig vijftig zestig zeventig tachtig negentig
    vinte trinta quarenta cinquenta sessenta setenta oitenta noventa
"""
SPOKEN_NUMBERS = {word: place % 20 for place, word in enumerate(UNITS.split())}
SPOKEN_NUMBERS |= {word: 10 * (2 + place % 8) for place, word in enumerate(TENS.split())}
SPOKEN_NUMBERS |= {
    words_of(f"{unit}{link}{tens}")[0]: 10 * (2 + ten) + one
    for units, link, all_tens in ((GERMAN, "und", GERMAN_TENS), (DUTCH, "en", DUTCH_TENS))
    for ten, tens in enumerate(all_tens)
    for one, unit in enumerate(units, 1)
}
SPOKEN_NUMBERS |= {
    (tens[:-1] if unit[0] in "uo" else tens) + unit: 10 * (2 + ten) + one
    for ten, tens in enumerate(ITALIAN_TENS)
    for one, unit in enumerate(ITALIAN, 1)
}
SPOKEN_NUMBERS |= {f"veinti{unit}": 20 + one for one, unit in enumerate(UNITS.split()[41:50], 1)}
"""Numbers below a hundred in seven languages, as `words_of` writes them."""
AND = ("y", "and", "et", "e")
FRENCH_TEENS = frozenset("dix onze douze treize quatorze quinze seize".split())  # noqa: SIM905
HUNDREDS = frozenset("hundred hundreds thousand thousands grand k".split())  # noqa: SIM905
MINUS = re.compile(r"[-−]\s*\d|\b(?:minus|negative|menos|moins)\b|负|マイナス", re.IGNORECASE)
TODAY = {"today": 0, "tonight": 0, "heute": 0, "今天": 0, "tomorrow": 1, "morgen": 1, "明天": 1, "yesterday": -1}
DAYS_APART = TODAY | {"gestern": -1, "昨天": -1, "ubermorgen": 2, "后天": 2}
"""Words for days, as `words_of` writes them, each with its distance in days from today."""
WEEKDAY_NAMES = tuple(
    frozenset(names.split())
    for names in (
        *("thursday donnerstag jeudi jueves", "friday freitag vendredi viernes", "saturday samstag samedi sabado"),
        *("sunday sonntag dimanche domingo", "monday montag lundi lunes", "tuesday dienstag mardi martes"),
        "wednesday mittwoch mercredi miercoles",
    )
)
"""From 1 January 1970 on."""
SECRETS = Rules(Limit(keep=12, codes=True))
"""Runs of digits as long as a card number, and digits after a word such as `code` or `PIN`, spoken ones too."""
ENDINGS = (
    *("ationen", "ingly", "ation", "ungen", "edly", "ness", "ment", "ings", "isch", "lich", "heit", "keit"),
    *("ing", "ies", "ied", "ers", "ung", "est", "ly", "ed", "es", "er", "en", "em", "s", "e", "n", "y"),
)


def is_question(text: str) -> bool:
    """Return whether a text is only a question, apart from greetings."""
    parts = [
        bare for clause in CLAUSES.split(text.strip()) if (bare := clause.strip(MARKS)) and not is_greeting(clause)
    ]
    last_asks = bool(parts) and (parts[-1].endswith(("?", "？")) or ASKS.match(parts[-1]) is not None)

    def asks(place: int, bare: str) -> bool:
        opens = ASKS.match(bare) is not None or ASKS_CHINESE.search(bare) is not None
        return bare.endswith(("?", "？")) or (opens and (place == len(parts) - 1 or last_asks))

    return bool(parts) and all(asks(place, bare) for place, bare in enumerate(parts))


def is_greeting(text: str) -> bool:
    words = words_of(text)
    return bool(words) and all(word in GREETING_WORDS for word in words)


def gives_orders(text: str) -> bool:
    """Return whether a text tries to give the agent, or an LLM that reads it, instructions about itself."""
    return ORDERS.search(text) is not None


def tells_secret(text: str) -> bool:
    """Return whether a text has a card number or a code."""
    return redact_text(text, START, SECRETS)[0] != text


def stems_of(text: str) -> set[str]:
    """The content words of a text, without their endings."""
    return {stem(word) for word in words_of(text) if word not in STOP_WORDS and word not in NEGATIONS}


def stem(word: str) -> str:
    """Return a word without its ending; words of scripts without spaces stay."""
    if PAIRED.match(word):
        return word
    for ending in ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:  # letters that a stem keeps
            return without_doubled(word[: -len(ending)])
    return without_doubled(word)


def without_doubled(word: str) -> str:
    """Return a stem without its doubled last letter: `cancel` for `cancell`, from `cancelled`."""
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] and word[-1].isalpha() else word


def refuses(text: str) -> bool:
    """Return whether a text begins with a no."""
    return REFUSAL.match(text) is not None and NO_REFUSAL.match(text) is None


def takes_back(text: str) -> bool:
    """Return whether a text takes back what was said before it."""
    return TAKEN_BACK.search(text) is not None


def only_refuses(text: str) -> bool:
    """Return whether a text only says no."""
    words = [word for word in words_of(text) if word not in GREETING_WORDS]
    return refuses(text) and len(words) <= 1


def negates(text: str, stems: set[str]) -> bool:
    """Return whether a text has words with these stems, and denies all of them."""
    denied = False
    for clause in CLAUSES.split(text):
        words = re.findall(r"[^\W_]+(?:['’][^\W\d_]+)?", clause.casefold())
        for place, word in enumerate(words):
            if stems & stems_of(word):
                denied = True
                if not is_denied(clause, words, place):
                    return False
    return denied


def is_denied(clause: str, words: list[str], place: int) -> bool:
    """Return whether a clause denies one of its words: by a negation shortly before it, or in another way."""
    word, before = words[place], words[:place]
    if PAIRED.search(word) is not None:
        return NEGATES_PAIRED.search(AFFIRMS_PAIRED.sub("", clause)) is not None
    behind = words[place + 1 :]
    if any(map(is_negation, before[-NEAR:])) or ELIDED.match(word) or not DENY_BEFORE.isdisjoint(behind):
        return True
    if any(map(NEGATED_VERB.search, (word, *behind))):
        return True
    return any(is_negation(one) and verb in BELIEVE for one, verb in pairwise(before))


def is_negation(word: str) -> bool:
    return word in NEGATIONS or word in REFUSES or NEGATES.search(word) is not None


def says_number(text: str, number: str) -> bool:
    """Return whether a text says a number (`number` has its digits), in digits or in words.

    Words for large numbers, and of most languages, are not computed: enough digits said in words are a match.
    """
    if number.startswith("-") and MINUS.search(text) is None:
        return False
    whole, point, decimals = number.lstrip("-").partition(".")
    digits = whole + decimals.rstrip("0")
    for written in NUMBER.findall(text):
        parts = re.split(r"\D", written)
        if point and len(parts) > 1 and len(parts[-1]) <= len("00"):
            if ("".join(parts[:-1]), parts[-1].rstrip("0")) == (whole, decimals.rstrip("0")):
                return True
        elif digits in ("".join(parts), *parts):
            return True
    value = int(digits[:18] or 0)
    if value <= 12 and any(word in NUMBERS and NUMBERS[word] == value for word in (*words_of(text), *text)):
        return True
    if value == 0:
        return not NEGATIONS.isdisjoint(words_of(text))
    hundreds = digits.rstrip("0") if not HUNDREDS.isdisjoint(words_of(text)) else digits
    said = (one.rstrip("0") if point else one for one in spoken_numbers(text))
    return any(one in (digits, hundreds) for one in said) or says_other_number(text, digits)


def spoken_numbers(text: str) -> Iterator[str]:
    """Yield the numbers that a text says in words, as digits: each, and each run of them joined."""
    run: list[str] = []
    for word in (*words_of(text), ""):
        value = SPOKEN_NUMBERS.get(word)
        newest = run[-1] if run else ""
        if value is not None and value < 10 and len(newest) == 2 and newest[1] == "0" and newest > "1":
            run[-1] = f"{newest[0]}{value}"
        elif newest in ("60", "80") and word in FRENCH_TEENS:  # soixante-dix
            run[-1] = str(int(newest) + SPOKEN_NUMBERS[word])
        elif newest == "4" and word in ("vingt", "vingts"):
            run[-1] = "80"
        elif value is not None:
            run.append(str(value))
        elif run and word not in AND:
            yield from (*run, "".join(run))
            run = []


def says_other_number(text: str, digits: str) -> bool:
    """Return whether a text has enough digits in number words that `SPOKEN_NUMBERS` lacks."""
    others = (word for word in words_of(text) if word not in SPOKEN_NUMBERS and word not in NUMBERS)
    numbers = [one.digits for word in others if (one := find_number(word))]
    return any(one < 0 for one in numbers) or sum(numbers) >= len(digits)


def says_day(text: str, said_day: int, day: int) -> bool:
    """Return whether a text, said on `said_day` (days since 1970), names another day: by number, name or distance."""
    words = set(words_of(text))
    if any(word in words and said_day + apart == day for word, apart in DAYS_APART.items()):
        return True
    if words & WEEKDAY_NAMES[day % 7] or re.search(rf"(?<!\d)0?{date_of(day).day}(?!\d)", text):
        return True
    span = span_in(text, said_day * DAY_MS)
    return span is not None and span[0] <= day * DAY_MS <= span[1]
