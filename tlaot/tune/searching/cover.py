"""Set cover: the fewest sets whose union is everything, and among those the cheapest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["cover_cheaply"]

# Of the exact search for one connected part of the problem: steps times members, some seconds; and sets of the greedy answer,
# which is as deep as the search goes. Beyond them what was found so far stands.
_MOST_WORK = 3_000_000
_MOST_SETS = 200

# What a member costs in a set that covers it, compared as tuples: the first number is added up.
Cost = tuple[float, int]
Costs = Mapping[str, Cost]


def cover_cheaply(members: Sequence[Costs]) -> list[str]:
    """Choose sets so that each member is in one of them, and name the one that each member takes.

    The fewest sets win; of as few, those with the least sum of the members' costs; of as cheap, those with the
    least second parts of the costs, member by member. The answer is exact where the search ends within its limits, which
    is so in all but contrived cases; else it is no worse than the greedy rule's, which takes at most ``1 + ln(n)`` times the
    fewest sets, for sets of up to ``n`` members (Chvatal, "A greedy heuristic for the set-covering problem", 1979).

    Args:
        members: For each member the sets that cover it, by name, and what it costs there; at least one each.

    Returns:
        The set that each member takes: the cheapest for it among those chosen.
    """
    taken: dict[int, str] = {}
    for part in _parts(members):
        own = _reduce({i: members[i] for i in part})
        chosen = _search(own)
        for i in part:
            taken[i] = _cheapest(members[i], chosen)
    return [taken[i] for i in range(len(members))]


def _parts(members: Sequence[Costs]) -> Iterator[list[int]]:
    """Groups of members that have no set in common with any outside of the group."""
    root = list(range(len(members)))

    def find(i: int) -> int:
        while root[i] != i:
            root[i] = root[root[i]]
            i = root[i]
        return i

    first: dict[str, int] = {}
    for i, costs in enumerate(members):
        for name in costs:
            root[find(i)] = find(first.setdefault(name, i))
    groups: dict[int, list[int]] = {}
    for i in range(len(members)):
        groups.setdefault(find(i), []).append(i)
    yield from groups.values()


def _reduce(members: Mapping[int, Costs]) -> dict[int, dict[str, Cost]]:
    """Without the sets that another one makes needless: it covers all that they do, each member as cheaply or more so."""
    sets = _sets(members)
    needless: set[str] = set()
    for name in sorted(sets, key=lambda n: (len(sets[n]), n)):
        mine = sets[name]
        around = min(mine, key=lambda i: len(members[i]))
        needless |= {
            name
            for other in members[around]
            if other != name
            and other not in needless
            and all(i in sets[other] and sets[other][i] <= cost for i, cost in mine.items())
        }
    left = sets.keys() - needless
    return {i: {name: cost for name, cost in costs.items() if name in left} for i, costs in members.items()}


def _sets(members: Mapping[int, Costs]) -> dict[str, dict[int, Cost]]:
    sets: dict[str, dict[int, Cost]] = {}
    for i, costs in members.items():
        for name, cost in costs.items():
            sets.setdefault(name, {})[i] = cost
    return sets


def _cheapest(costs: Costs, chosen: frozenset[str]) -> str:
    return min((cost, name) for name, cost in costs.items() if name in chosen)[1]


@dataclass
class _Best:
    """The best cover so far, and the steps that are left for a better one."""

    rank: tuple[int, float, tuple[int, ...]]
    chosen: frozenset[str]
    steps: int


def _search(members: Mapping[int, Costs]) -> frozenset[str]:
    sets = _sets(members)
    greedy = _greedy(members, sets)
    best = _Best(_rank(members, greedy), greedy, _MOST_WORK // len(members))
    if len(greedy) <= _MOST_SETS:
        least = math.fsum(min(costs.values())[0] for costs in members.values())
        _extend(members, sets, frozenset(), frozenset(members), least, best)
    return best.chosen


def _extend(
    members: Mapping[int, Costs],
    sets: Mapping[str, Mapping[int, Cost]],
    chosen: frozenset[str],
    open_: frozenset[int],
    least: float,
    best: _Best,
) -> None:
    """Depth first: the member with the fewest sets is covered by each of them in turn."""
    if not open_:
        rank = _rank(members, chosen)
        if rank < best.rank:
            best.rank, best.chosen = rank, chosen
        return
    best.steps -= 1
    if best.steps <= 0:
        return
    count = len(chosen) + _apart(members, open_)
    if count > best.rank[0] or (count == best.rank[0] and least > best.rank[1]):
        return
    member = min(open_, key=lambda i: (len(members[i]), i))
    for name in sorted(members[member], key=lambda n: (-len(open_ & sets[n].keys()), members[member][n], n)):
        _extend(members, sets, chosen | {name}, open_ - sets[name].keys(), least, best)


def _apart(members: Mapping[int, Costs], open_: frozenset[int]) -> int:
    """How many sets the open members need at least: as many as there are among them with no set in common."""
    count, used = 0, set[str]()
    for i in sorted(open_, key=lambda i: (len(members[i]), i)):
        if used.isdisjoint(members[i]):
            count += 1
            used.update(members[i])
    return count


def _greedy(members: Mapping[int, Costs], sets: Mapping[str, Mapping[int, Cost]]) -> frozenset[str]:
    chosen: list[str] = []
    left = set(members)
    while left:
        name = min(sets, key=lambda n: (-len(left & sets[n].keys()), math.fsum(c[0] for c in sets[n].values()), n))
        chosen.append(name)
        left -= sets[name].keys()
    for name in list(chosen):  # what later ones have made needless
        others = frozenset(chosen) - {name}
        if all(not others.isdisjoint(costs) for costs in members.values()):
            chosen.remove(name)
    return frozenset(chosen)


def _rank(members: Mapping[int, Costs], chosen: frozenset[str]) -> tuple[int, float, tuple[int, ...]]:
    taken = [costs[_cheapest(costs, chosen)] for _, costs in sorted(members.items())]
    return len(chosen), math.fsum(cost for cost, _ in taken), tuple(index for _, index in taken)
