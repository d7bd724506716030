"""Which of a cluster's devices measure: one model for each target, and for CPU targets one node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..machine import Gpu
from .nodes import Facts, Node

__all__ = ["model_of", "processor_of", "quiet_node", "rank_gpus"]


def processor_of(node: Node) -> tuple[str, int]:
    return node.facts.machine.cpu, node.facts.machine.cpu_count


def model_of(gpu: Gpu) -> tuple[str, int]:
    return gpu.name, gpu.sm_count


def rank_gpus(nodes: Sequence[Node]) -> tuple[Gpu, ...]:
    """All GPUs, numbered anew. The first that runs a target is measured on: the nearest capability, of that the most frequent model."""
    gpus = [
        gpu
        for node in sorted(nodes, key=lambda node: (node.facts.host, node.id))
        if "torch" in node.facts.machine.distributions
        for gpu in node.facts.machine.gpus[: node.gpus]
    ]
    count = Counter(map(model_of, gpus))
    gpus.sort(key=lambda gpu: (gpu.capability, -count[model_of(gpu)], model_of(gpu)))
    return tuple(replace(gpu, index=number) for number, gpu in enumerate(gpus))


def quiet_node(nodes: Sequence[Node], own: Facts) -> Node:
    """The node that CPU targets are measured on: of the driver's model where there is one, so that locks stay comparable; then of the
    model that most have; not the driver's machine, where another will do."""
    models = Counter(node.facts.machine.cpu for node in nodes)

    def key(node: Node) -> tuple[Any, ...]:
        facts = node.facts
        return (
            node.cpus == 0,
            facts.machine.cpu != own.machine.cpu,
            -(facts.cpu_level or 0),
            -models[facts.machine.cpu],
            facts.boot == own.boot,
            -facts.machine.cpu_count,
            facts.host,
            node.id,
        )

    return min(nodes, key=key)
