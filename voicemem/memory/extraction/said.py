"""Judgement of a line without its speaker: a question, a greeting, an attempt to give the LLM orders.

Speech recognition often leaves out the marks, so words count too: those of English, German, French, Spanish, Chinese.
"""

import re

from voicemem.redaction.runs import START, Limit
from voicemem.redaction.texts import Rules, redact_text
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
    |\b(?:store|save|write|add|put|insert|remember)\b .{0,20}
        \b(?:as\ a\ (?:fact|memory)|(?:in)?to\ (?:the|your)\ memory)\b
    |\b(?:ignorier\w*|vergiss|vergessen\ sie|missacht\w*|umgeh\w*|überschreib\w*)\b .{0,60}?
        \b(?:anweisung\w*|regel\w*|vorgabe\w*|prompt\w*|einschränkung\w*|richtlinie\w*|instruktion\w*)\b
    |\bich\s+bin\s+(?:jetzt\s+)?(?:der\s+|ein\s+)?(?:admin|root|superuser|systemadministrator)\b
    |\b(?:ignore[zr]?|oublie[zr]?|ignora|olvida)\b .{0,60}? \b(?:instruc\w+|consignes?|règles?|reglas?)\b
    |(?:忽略|无视|忘记|忘掉|不要理会|绕过).{0,30}(?:指令|指示|提示|规则|限制|设定|命令)
    |我(?:现在)?是(?:超级)?(?:系统)?(?:管理员|根用户)
    """,
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
"""Text that tries to tell the agent, or the LLM that reads this, what to do or to believe."""
SECRETS = Rules(Limit(keep=12, codes=True))
"""Runs of digits as long as a card's number, and digits after a word such as `code` or `PIN`, spoken ones too."""
ENDINGS = (
    *("ationen", "ingly", "ation", "ungen", "edly", "ness", "ment", "ings", "isch", "lich", "heit", "keit"),
    *("ing", "ies", "ied", "ers", "ung", "est", "ly", "ed", "es", "er", "en", "em", "s", "e", "n", "y"),
)


def is_question(text: str) -> bool:
    """Return whether a text only asks; greetings beside that do not matter."""
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
    """Return whether a text has the number of a card, or a code."""
    return redact_text(text, START, SECRETS)[0] != text


def stems_of(text: str) -> set[str]:
    """The words of a text that say something, whatever their ending."""
    return {stem(word) for word in words_of(text) if word not in STOP_WORDS}


def stem(word: str) -> str:
    """A word without its ending; characters of scripts without spaces stay."""
    if PAIRED.match(word):
        return word
    for ending in ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:  # letters that a stem keeps
            return word[: -len(ending)]
    return word
