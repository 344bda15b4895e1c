"""Words after which a one-time code or a PIN may follow."""

from __future__ import annotations

import re

from voicemem.redaction.number_words import in_all_spellings

CODES = in_all_spellings("""
    code codes pin pins otp otps passcode passcodes password passwords passwort kennwort tan tans geheimzahl
    verification cvv cvc código códigos clave claves contraseña contraseñas codice codici mot wachtwoord senha senhas
""")
ENDINGS = ("code", "codes", "passwort", "kennwort")
"""What German words for them end with."""
CHINESE = re.compile("验证码|驗證碼|密码|密碼|口令")
CODE_WORDS = 8
"""How many words may stand between such a word and the code."""


def announces_code(word: str) -> bool:
    """Whether a code may follow a word in lower case."""
    return word in CODES or word.endswith(ENDINGS) or CHINESE.search(word) is not None
