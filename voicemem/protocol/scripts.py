"""Which characters are of scripts without spaces between words."""

from __future__ import annotations

import re

SPACELESS = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3000-\u30ff\u3100-\u31bf\u31f0-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")  # fmt: skip  # noqa: E501
"""A character of such a script: Thai, Lao, Burmese, Khmer, Chinese, Japanese."""
