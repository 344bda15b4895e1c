"""How well texts fit a query. PostgreSQL does not rank by how rare words are, so the query computes BM25 itself."""

from __future__ import annotations

K1, B = 1.2, 0.75
"""The parameters of BM25, as FTS5 has them."""


def ranked(table: str, key: str, other_weight: float, totals: str, conditions: str) -> str:
    """The beginning of a query (`with …`): `scored` has the key of each row that was found, and its `score`.

    $1 is the scope and $2 the words, both as a tsquery; $3 the words in full, and $4 the beginnings of words. `table`
    has `words`, of weight A or of the other one, and `length`, how many they are; its rows `m` are found by
    `conditions`. `totals` selects the number of texts in the scope, and that of their words.
    """
    return f"""
with asked as materialized (
    select $1::tsquery && to_tsquery('voicemem', $2) as query,
    tsvector_to_array(to_tsvector('voicemem', $3)) as lexemes,
    string_to_array($4, ' ') || tsvector_to_array(to_tsvector('voicemem', $4)) as beginnings
), scope as materialized (
    select greatest(texts, 1) as texts, greatest(words, 1) as words from ({totals}) as t (texts, words)
), found as materialized (
    select {key}, m.length, m.words from asked join {table} m on m.words @@ query where {conditions}
), hits as materialized (
    select {key}, f.length, l.lexeme, (
        select sum(case weight when 'A' then 1 else {other_weight} end) from unnest(l.weights) as weight
    ) as frequency
    from asked, found f, unnest(f.words) as l
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
