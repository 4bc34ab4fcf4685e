"""The tiers that hold a run's checkpoints, nearest first."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stoker.checkpoint.layout import Home
from stoker.config import Config, ObjectTier
from stoker.store.base import Store
from stoker.store.local import LocalStore
from stoker.store.open import open_store

FAR_NAME: Final = "object"  # what the far tier is called in `wait(until=)` and `Save.reached`


@dataclass(frozen=True, slots=True)
class Tiers:
    """`near`: where saves commit first, a store that renames directories. `far`: where committed steps go from there.

    Each is rooted at the run's folder and can be read without the other: both hold the records of all generations.
    """

    near: Home
    far: Store | None = None

    @classmethod
    def of(cls, place: Home | Tiers) -> Tiers:
        """The tiers themselves, or those of a run that has one home alone."""
        return place if isinstance(place, Tiers) else cls(place)

    @property
    def nearest_first(self) -> tuple[Store, ...]:
        """The stores in the order in which they are read."""
        return (self.near,) if self.far is None else (self.near, self.far)

    @property
    def farthest_first(self) -> tuple[Store, ...]:
        """The stores in the order in which records are written: what all nodes see comes first."""
        return self.nearest_first[::-1]

    def close(self) -> None:
        """Close the stores."""
        with ExitStack() as stack:
            for store in self.farthest_first:
                stack.callback(store.close)


def open_tiers(near: Path, run: str, config: Config) -> Tiers:
    """The tiers of a run: its directory `near`, made if need be, and the far tier that the settings name, if any.

    Raises ConfigError, AccessDenied, CapacityError.
    """
    far = open_far(config.tiers.object, run)
    return Tiers(LocalStore(near, create=True, engine=config.checkpoint.engine), far)


def open_far(tier: ObjectTier, run: str) -> Store | None:
    """The far tier of a run, if there is one: the folder named after it at the tier's URL. Raises ConfigError.

    How a bucket is reached the tier's settings say, else the usual AWS variables.
    """
    if tier.url is None:
        return None
    return open_store(f"{tier.url.rstrip('/')}/{run}" if tier.url else tier.url, tier)
