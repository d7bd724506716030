"""Fingerprints: whether a function, with all that it reaches, and a value are what they were.

A value becomes a graph: what it is made of, down to plain data; for the author's functions their code, defaults, closures and
the globals that they read, recursively; for what an installed distribution has, the distribution's content. The fingerprint is
a digest of the graph's form, so the same in every process and on every machine, cycles and shared parts included. What cannot
be taken apart is an UnidentifiedError and never a guess: a wrong hit would return another kernel.

Not seen is what a function gets at run time by other ways than names: from the environment, from files, from modules that it
imports by a computed name; nor edits by hand among the files of an installed distribution.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .anatomy import UnidentifiedError, dissect

__all__ = ["UnidentifiedError", "fingerprint"]


def fingerprint(value: Any) -> str:
    """Digest of a value, or of a function with everything that it reaches.

    Comments, white space, docstrings, line numbers, names of files and the order of dicts and sets do not count.

    Returns:
        64 hexadecimal digits.

    Raises:
        UnidentifiedError: The value, or something that it reaches, has no identity that outlives the process.
    """
    graph = _draw(value)
    colours = _settle_trees(graph)
    if None in colours:
        colours = _settle_cycles(graph, colours)
    return str(colours[0]).lower()


@dataclass
class _Node:
    label: str
    children: list[int] = field(default_factory=list)
    ordered: bool = True


def _draw(value: Any) -> list[_Node]:
    """The graph of a value; the value itself is node 0."""
    nodes: list[_Node] = []
    numbers: dict[Any, int] = {}
    waiting: list[tuple[int, Any, str]] = []
    kept = []  # whatever has a number by its id must live as long

    def number(part: Any, trail: str) -> int:
        plain = type(part) in (str, int, float, bool, type(None))
        key = (type(part), repr(part)) if plain else id(part)
        if key not in numbers:
            numbers[key] = len(nodes)
            nodes.append(_Node(""))
            waiting.append((numbers[key], part, trail))
            kept.append(part)
        return numbers[key]

    number(value, "")
    while waiting:
        index, part, trail = waiting.pop()
        anatomy = dissect(part, trail)
        node = nodes[index]
        node.label, node.ordered = anatomy.label, anatomy.ordered
        node.children = [number(child, f"{trail}{name}") for name, child in anatomy.parts]
    return nodes


def _settle_trees(graph: Sequence[_Node]) -> list[str | None]:
    """Digests of the nodes that reach no cycle, from the leaves up; None for the others."""
    colours: list[str | None] = [None] * len(graph)
    parents: list[list[int]] = [[] for _ in graph]
    missing = [len(node.children) for node in graph]
    for index, node in enumerate(graph):
        for child in node.children:
            parents[child].append(index)
    ready = [index for index, count in enumerate(missing) if count == 0]
    while ready:
        index = ready.pop()
        colours[index] = _mix(graph[index], colours)
        for parent in parents[index]:
            missing[parent] -= 1
            if missing[parent] == 0:
                ready.append(parent)
    return colours


def _settle_cycles(graph: Sequence[_Node], settled: Sequence[str | None]) -> list[str | None]:
    """Digest of node 0 of a graph with cycles.

    Nodes are told apart by their children's colours, again and again until no more are told apart (partition refinement,
    Hopcroft 1971; it ends with the classes of nodes whose unfoldings are equal). The classes, numbered in the order in which
    one comes upon them from node 0, are then written down whole.
    """
    open_nodes = [index for index, colour in enumerate(settled) if colour is None]
    colours = [colour or "" for colour in settled]
    classes = 0
    while True:
        now = list(colours)
        for index in open_nodes:
            now[index] = _mix(graph[index], colours)
        colours = now
        found = len({colours[index] for index in open_nodes})
        if found == classes:
            break
        classes = found
    return [_write_down(graph, settled, colours), *settled[1:]]


def _write_down(graph: Sequence[_Node], settled: Sequence[str | None], colours: Sequence[str]) -> str:
    numbers = {colours[0]: 0}
    queue = [0]
    digest = hashlib.sha256()
    for index in queue:
        node = graph[index]
        children = node.children if node.ordered else sorted(node.children, key=lambda child: colours[child])
        row = [repr(node.label), str(node.ordered)]
        for child in children:
            colour = colours[child]
            if settled[child] is None and colour not in numbers:
                numbers[colour] = len(numbers)
                queue.append(child)
            row.append(colour if settled[child] is not None else f"#{numbers[colour]}")
        digest.update("\0".join(row).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


def _mix(node: _Node, colours: Sequence[str | None]) -> str:
    children = [str(colours[child]) for child in node.children]
    row = [repr(node.label), str(node.ordered), *(children if node.ordered else sorted(children))]
    return hashlib.sha256("\0".join(row).encode("utf-8", "surrogatepass")).hexdigest()
