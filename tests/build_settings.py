"""The settings of a build as tests give them to the pipeline, which is the hook's part elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """What ``tlaot.tune.site.Settings`` asks for; on two processors."""

    tune: str = "on"
    targets: tuple[str, ...] | None = None
    jobs: int | None = 2
    keep: bool = False
    lock: str = "auto"
    executor: str | None = None
    devices: tuple[int, ...] | None = None
