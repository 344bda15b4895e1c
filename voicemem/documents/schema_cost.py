"""An upper bound for the work of validating a document against a JSON Schema, known before it begins.

The validator holds the interpreter's lock from start to end and has no deadline, so a schema that makes it slow would
stop the whole service. The unit is a step, one keyword on one value: mostly less than 200 ns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote

from voicemem.documents.schema_patterns import pattern_steps
from voicemem.protocol.types import MAX_DEPTH, JsonObject

MAX_NESTING = 100
"""Schemas that apply to one value through each other (`$ref`, `allOf`); a longer chain counts as endless."""
MAX_SCHEMAS, MAX_VISITS = 1_000, 20_000
"""Of the estimate itself, which then takes at most 50 ms: schemas are taken in, and looked at for a depth."""
MAX_STEPS = 200_000
"""Of one validation, and of one schema applied to one value: at most 50 ms."""
SINGLE = frozenset(
    {"not", "if", "then", "else", "items", "contains", "additionalProperties", "propertyNames", "contentSchema"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
MAPS = frozenset(
    {"$defs", "definitions", "properties", "patternProperties", "dependentSchemas"} | {"dependencies"}
)  # `dependencies` is of earlier drafts, but the validator knows it
SAME_VALUE = frozenset(
    {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies", "$ref", "$dynamicRef"}
)
"""Keywords whose schemas apply to the value itself; those of other keywords apply to values in it."""
ONE_OF_THEM = frozenset({"properties", "prefixItems"})
"""Of these, at most one schema applies to each value."""
NOT_APPLIED = frozenset({"$defs", "definitions", "contentSchema"})
ALTERNATIVES = frozenset({"anyOf", "oneOf"})
UNEVALUATED = frozenset({"unevaluatedItems", "unevaluatedProperties"})
NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
FLOAT_STEPS = 16
"""Floats are compared as exact fractions; where one meets another, up to 20 µs were measured."""
TEXT_UNIT = 32
"""Bytes of a text that count as a value."""


class Cost(NamedTuple):
    """What applying a schema to a value costs at one depth of that value."""

    steps: float = 0
    copies: float = 0
    """Steps whose failure keeps a copy of the value: the validator collects every error of a failed `anyOf`."""


UNBOUNDED = Cost(float("inf"), float("inf"))


class Node:
    """A schema, and the schemas it applies."""

    __slots__ = ("below", "factor", "is_unique", "name_steps", "same", "schema", "steps")

    def __init__(self, schema: JsonObject) -> None:
        self.schema = schema
        self.steps = own_steps(schema)
        self.name_steps = sum(map(pattern_steps, schema.get("patternProperties", ())))
        self.is_unique = bool(schema.get("uniqueItems"))
        # `unevaluated…` applies everything next to it again, about three times, and so on below:
        # 18 schemas in a row, each with one of them, took 3.5 s.
        self.factor = 3 ** len(UNEVALUATED & schema.keys())
        self.same: list[tuple[bool, Node | None]] = []
        self.below: dict[str, list[Node | None]] = {}


class TooManySchemas(Exception):
    """A schema consists of more than `MAX_SCHEMAS`."""


class SchemaGraph:
    """All schemas that a schema consists of, with its references followed.

    `check` raises for what is not a schema; the root has passed it. A reference may also lead to a place that is
    not one for schemas, where nothing has been checked before. Raises `LookupError` for a broken reference, and
    `TooManySchemas`.
    """

    def __init__(self, root: JsonObject, check: Callable[[JsonObject], None]) -> None:
        self.root = root
        self.anchors: dict[str, JsonObject] = {}
        self.nodes: dict[int, Node] = {}
        checked: set[int] = set()
        for schema in nested_schemas(root):
            checked.add(id(schema))
            for keyword in ("$anchor", "$dynamicAnchor"):
                if keyword in schema:
                    self.anchors[schema[keyword]] = schema
        waiting: list[Any] = [root]
        while waiting:
            schema = waiting.pop()
            if isinstance(schema, dict) and id(schema) not in self.nodes:
                if len(self.nodes) == MAX_SCHEMAS:
                    raise TooManySchemas
                if id(schema) not in checked:
                    check(schema)
                    checked.update(map(id, nested_schemas(schema)))
                self.nodes[id(schema)] = Node(schema)
                waiting += (inner for _, inner in self.applied(schema))
        for node in self.nodes.values():
            self.connect(node)

    def connect(self, node: Node) -> None:
        for keyword, inner in self.applied(node.schema):
            target = self.nodes[id(inner)] if isinstance(inner, dict) else None
            if keyword in SAME_VALUE:
                node.same.append((keyword in ALTERNATIVES, target))
            elif keyword not in NOT_APPLIED:
                node.below.setdefault(keyword, []).append(target)

    def applied(self, schema: JsonObject) -> Iterator[tuple[str, Any]]:
        yield from subschemas(schema)
        for keyword in ("$ref", "$dynamicRef"):
            if keyword in schema:
                yield keyword, self.resolve(schema[keyword])

    def resolve(self, ref: Any) -> Any:
        """The schema that a reference leads to. Raises `LookupError`."""
        fragment = unquote(ref.removeprefix("#"))
        if not fragment.startswith("/"):
            return self.anchors[fragment] if fragment else self.root
        found: Any = self.root
        for step in fragment[1:].split("/"):
            if isinstance(found, list):
                found = found[int(step) if step.isdecimal() else len(found)]
            elif isinstance(found, dict):
                found = found[step.replace("~1", "/").replace("~0", "~")]
            else:
                raise LookupError(ref)
        if not isinstance(found, dict | bool):
            raise LookupError(ref)
        return found

    def costs(self) -> list[Cost]:
        """The cost of the whole schema for each depth of a document. Infinite where there is no bound."""
        estimate = Estimate(self.nodes.values())
        root, costs = self.nodes[id(self.root)], []
        for _ in range(MAX_DEPTH + 2):  # a document is an object, whose values are one level below it
            costs.append(estimate.next_depth(root))
            if costs[-1] is UNBOUNDED or estimate.is_over():
                break
        return costs

    def patterns(self) -> list[str]:
        """The patterns of all schemas, each as often as it stands in one."""
        schemas = [node.schema for node in self.nodes.values()]
        values = [schema["pattern"] for schema in schemas if "pattern" in schema]
        return values + [pattern for schema in schemas for pattern in schema.get("patternProperties", ())]


class Estimate:
    """Costs by depth: those of one depth follow from those of the depth before it."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = list(nodes)
        self.depth = -1
        self.visits = 0
        self.current: dict[Node, Cost] = {}
        self.previous: dict[Node, Cost] = {}

    def next_depth(self, root: Node) -> Cost:
        self.depth += 1
        self.previous, self.current = self.current, {}
        for node in self.nodes:
            self.cost_of(node, 0)
        # A schema that nothing applies to the document may still be endless; it is refused too. So is one that is too
        # much for a single value, wherever that may stand: compiling it takes as many steps.
        too_much = MAX_STEPS if self.depth == 0 else float("inf")
        if any(cost.steps >= too_much for cost in self.current.values()):
            return UNBOUNDED
        return self.current[root]

    def is_over(self) -> bool:
        """Whether nothing applies any deeper."""
        return not any(cost.steps for cost in self.current.values())

    def cost_of(self, node: Node | None, nesting: int) -> Cost:
        if node is None:  # true or false
            return Cost(0 if self.depth else 1)
        known = self.current.get(node)
        if known is None:
            self.current[node] = UNBOUNDED  # what a schema that leads back here gets
            known = self.current[node] = self.compute(node, nesting + 1)
        return known

    def compute(self, node: Node, nesting: int) -> Cost:
        self.visits += 1 + len(node.same) + sum(map(len, node.below.values()))
        if nesting > MAX_NESTING or self.visits > MAX_VISITS:
            return UNBOUNDED
        steps = copies = 0.0
        for is_alternative, inner in node.same:
            cost = self.cost_of(inner, nesting)
            steps += cost.steps
            copies += cost.steps if is_alternative else cost.copies
        steps *= node.factor
        if self.depth == 0:
            return Cost(steps + node.steps, copies)
        if self.depth == 1:
            steps += node.name_steps * node.factor
        exclusive = Cost()
        for keyword, several in node.below.items():
            costs = [self.previous.get(inner, Cost()) if inner else Cost(self.depth == 1) for inner in several]
            if keyword in ONE_OF_THEM:
                exclusive = Cost(*(max(pair) for pair in zip(exclusive, *costs, strict=True)))
            else:
                steps += sum(cost.steps for cost in costs)
                copies += sum(cost.copies for cost in costs)
        return Cost(steps + exclusive.steps + node.is_unique, copies + exclusive.copies)


def nested_schemas(schema: Any) -> Iterator[JsonObject]:
    """A schema and all schemas written in it."""
    if isinstance(schema, dict):
        yield schema
        for _, inner in subschemas(schema):
            yield from nested_schemas(inner)


def subschemas(schema: JsonObject) -> Iterator[tuple[str, Any]]:
    """The schemas directly in a schema, with their keywords."""
    for keyword, value in schema.items():
        if keyword in SINGLE:
            yield keyword, value
        elif keyword in LISTS and isinstance(value, list):
            yield from ((keyword, inner) for inner in value)
        elif keyword in MAPS and isinstance(value, dict):
            yield from ((keyword, inner) for inner in value.values() if isinstance(inner, dict | bool))


def own_steps(schema: JsonObject) -> float:
    """What the keywords of a schema cost on one value, without the schemas in it."""
    names = [*schema.get("required", ()), *schema.get("dependentRequired", ()), *schema.get("dependencies", ())]
    for listed in (*schema.get("dependentRequired", {}).values(), *schema.get("dependencies", {}).values()):
        names += listed if isinstance(listed, list) else ()
    steps: float = 1 + len(names) + sum(FLOAT_STEPS for name in NUMBERS if isinstance(schema.get(name), float))
    steps += FLOAT_STEPS if "multipleOf" in schema else 0
    steps += pattern_steps(schema["pattern"]) if "pattern" in schema else 0
    for values in (schema.get("enum", ()), [schema["const"]] if "const" in schema else ()):
        texts = sum(isinstance(value, str) for value in values)
        if texts < len(values):  # texts alone are looked up in a set
            steps += texts / TEXT_UNIT + sum(sum(sizes(value)) for value in values if not isinstance(value, str))
    return steps


def sizes(value: Any) -> list[float]:
    """How many values there are at each depth of a document; long texts, names and floats count as several."""
    found: list[float] = []
    level = [value]
    names: list[str] = []
    while level:
        found.append(sum(map(weight, level)) + sum(map(text_units, names)))
        names = [name for value in level if isinstance(value, dict) for name in value]
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
    return found


def weight(value: Any) -> float:
    if isinstance(value, str):
        return 1 + text_units(value)
    return FLOAT_STEPS if isinstance(value, float) else 1


def text_units(text: str) -> int:
    return (len(text) if text.isascii() else 4 * len(text)) // TEXT_UNIT
