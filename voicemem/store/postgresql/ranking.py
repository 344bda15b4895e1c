"""How well texts fit a query. PostgreSQL does not rank by how rare words are, so the query computes BM25 itself."""

from __future__ import annotations

from collections.abc import Sequence

from voicemem.search.words import QueryWord

K1, B = 1.2, 0.75
"""The parameters of BM25, as FTS5 has them."""


def ranked(table: str, key: str, other_weight: float, totals: str, conditions: str) -> str:
    """The beginning of a query (`with …`): `scored` has the key of each row that was found, and its `score`.

    Its parameters are those of `ranked_values`. `table` has `words`, of weight A or of the other one, and `length`, how
    many they are; its rows `m` are found by `conditions`. `totals` selects the number of texts in the scope, and that
    of their words.
    """
    return f"""
with query as materialized (
    select cast(:terms as tsquery) && to_tsquery('voicemem', cast(:either as text)) as query,
    tsvector_to_array(to_tsvector('voicemem', cast(:whole as text))) as lexemes,
    string_to_array(cast(:beginnings as text), ' ')
        || tsvector_to_array(to_tsvector('voicemem', cast(:beginnings as text))) as beginnings
), scope as materialized (
    select greatest(texts, 1) as texts, greatest(words, 1) as words from ({totals}) as t (texts, words)
), found as materialized (
    select {key}, m.length, m.words from query join {table} m on m.words @@ query where {conditions}
), hits as materialized (
    select {key}, f.length, l.lexeme, (
        select sum(case weight when 'A' then 1 else {other_weight} end) from unnest(l.weights) as weight
    ) as frequency
    from query, found f, unnest(f.words) as l
    where l.positions is not null and (l.lexeme = any(lexemes) or l.lexeme ^@ any(beginnings))
), rarities as materialized (
    select lexeme, ln(1 + (greatest(max(scope.texts), count(*)) - count(*) + 0.5) / (count(*) + 0.5)) as rarity
    from hits, scope group by lexeme
), scored as (
    select {key}, sum(rarity * frequency * {K1 + 1} / (frequency + {K1} * (
        1 - {B} + {B} * length * scope.texts / scope.words
    )))::float8 as score
    from hits join rarities using (lexeme), scope group by {key}
)
"""


def ranked_values(terms: Sequence[str], words: Sequence[QueryWord]) -> dict[str, str]:
    """The values of such a query: the terms of its scope, the words, and these in full and as beginnings."""
    return {
        "terms": " & ".join(terms),
        "either": " | ".join(f"'{word.text}'{':*' if word.is_prefix else ''}" for word in words),
        "whole": " ".join(word.text for word in words if not word.is_prefix),
        "beginnings": " ".join(word.text for word in words if word.is_prefix),
    }
