"""How much work it is to look at a schema: counted in schemas taken in and looked at, not in seconds."""

from __future__ import annotations

from typing import Any

import pytest

from voicemem.documents.schema_cost import (
    MAX_SCHEMAS,
    MAX_VISITS,
    UNBOUNDED,
    Estimate,
    SchemaGraph,
    TooManySchemas,
)
from voicemem.protocol.types import JsonObject

NAME = "definition"


def spelled(number: int) -> str:
    """The path to one definition, spelled in another way for each number."""
    letters = [f"%{ord(letter):02x}" if number >> at & 1 else letter for at, letter in enumerate(NAME)]
    return "#/$defs/" + "".join(letters)


def graph_of(schema: JsonObject) -> tuple[SchemaGraph, list[Any]]:
    """The graph of a schema, and what had to be checked for it besides the schema itself."""
    checked: list[Any] = []
    return SchemaGraph(schema, checked.append), checked


def test_a_target_is_taken_in_once_however_its_references_are_spelled() -> None:
    """The schemas are counted by what references lead to, not by the text of their paths."""
    large: JsonObject = {"properties": {f"p{number}": {} for number in range(100)}}
    graph, checked = graph_of({"$defs": {NAME: large}, "allOf": [{"$ref": spelled(number)} for number in range(800)]})
    assert len(graph.nodes) == 1 + 800 + 101
    assert checked == []


def test_a_hidden_target_is_checked_once() -> None:
    """A reference to a place that is not one for schemas has that place checked, the next one to it does not."""
    graph, checked = graph_of({"hidden": {"items": {}}, "allOf": [{"$ref": "#/hidden"}, {"$ref": "#/%68idden"}]})
    assert len(graph.nodes) == 1 + 2 + 2
    assert checked == [{"items": {}}]


def test_no_more_schemas_are_taken_in_than_the_bound() -> None:
    """With one more the graph is given up, before anything is estimated."""
    assert len(graph_of({"prefixItems": [{} for _ in range(MAX_SCHEMAS - 1)]})[0].nodes) == MAX_SCHEMAS
    with pytest.raises(TooManySchemas):
        graph_of({"prefixItems": [{} for _ in range(MAX_SCHEMAS)]})


def test_the_estimate_ends_at_its_bound_of_visits() -> None:
    """Many schemas that apply to each other at every depth are given up at the first depth over the bound."""
    links = {f"p{number}": {"items": {"$ref": "#"}} for number in range(400)}
    graph, _ = graph_of({"items": {"$ref": "#"}, "properties": links})
    costs = graph.costs()
    assert costs[-1] is UNBOUNDED
    estimate = Estimate(graph.nodes.values())
    for _ in costs:
        estimate.next_depth(graph.nodes[id(graph.root)])
    assert MAX_VISITS < estimate.visits <= MAX_VISITS + 3 * len(graph.nodes)


def test_a_schema_that_is_too_much_for_one_value_is_unbounded_wherever_it_stands() -> None:
    """Compiling it takes as many steps as applying it, also where it applies to a value in the document only."""
    doubling: JsonObject = {
        f"n{level}": {"allOf": [{"$ref": f"#/$defs/n{level + 1}"}] * 2, "unevaluatedProperties": False}
        for level in range(14)
    }
    schema = {"properties": {"a": {"$ref": "#/$defs/n0"}}, "$defs": doubling | {"n14": {}}}
    assert graph_of(schema)[0].costs() == [UNBOUNDED]
