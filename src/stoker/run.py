"""`stoker.open` and `Run`: one training job under one name. Owns, builds and closes what the rooms below make.

Nothing below takes a Run: rooms get the values and stores they need.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from stoker.errors import ClosedError, ConfigError, StokerError
from stoker.ledger import Ledger, LedgerIdentity, ledger_name
from stoker.store.local import LocalStore
from stoker.tier.node import NodeDirectory, check_run_name, default_nvme
from stoker.units import MIB
from stoker.values import Key, Layout

if TYPE_CHECKING:
    from stoker.checkpoint.generation import Generation
    from stoker.checkpoint.save import Checkpoint
    from stoker.checkpoint.tiers import Tiers
    from stoker.dataset.describe import Dataset
    from stoker.dataset.recipe import Shuffle
    from stoker.feed.loader import Loader
    from stoker.meter.report import Report

DEFAULT_PREFETCH_BYTES: Final = 256 * MIB

_log = logging.getLogger("stoker.run")


def open(  # noqa: A001  read as stoker.open
    run: str | None = None,
    nvme: str | os.PathLike[str] | None = None,
    shared: str | os.PathLike[str] | None = None,
    object: str | os.PathLike[str] | None = None,  # noqa: A002  the tier's name
    layout: Layout | None = None,
) -> Run:
    """Open a run: `with stoker.open(run="run-42") as run: ...`.

    `run` names the job; starting the same name again continues it. Without a name there are loaders and a report, but
    no checkpoints. `nvme` is a directory on this node (default: `$STOKER_NVME`, the job's scratch, the user's cache);
    `shared` one that all nodes see, where checkpoints go when it is given. `object` is the URL of a store far away
    that committed steps are copied to behind training. `layout` defaults to what torchrun or Slurm say, else one rank.

    Raises RunBusy if this rank of the run lives on this node already, LayoutError, ConfigError, StoreError,
    CapacityError. With several ranks every rank must call it: rank 0 makes the generation and tells the others.
    """
    layout = layout or Layout.from_environment(os.environ)
    node = NodeDirectory.open(Path(nvme) if nvme is not None else default_nvme(os.environ, os.geteuid()))
    far = None if object is None else os.fspath(object)
    return Run(run, node=node, shared=None if shared is None else Path(shared), far=far, layout=layout)


class Run:
    """One start of a training job: its loaders, its checkpoints and its ledger. Made by `stoker.open`."""

    def __init__(
        self, name: str | None, *, node: NodeDirectory, shared: Path | None, far: str | None, layout: Layout
    ) -> None:
        self.name = check_run_name(name) if name is not None else None
        self.layout = layout
        self._closed = self._has_checkpoint = False
        self._node = node
        self._shared, self._far = shared, far
        self._stack = ExitStack()
        self._tiers: Tiers | None = None
        self._loaders: list[Loader] = []
        self.generation: Generation | None = None
        try:
            if self.name is not None:
                self._start(self.name)
            self._ledger = self._open_ledger()
        except BaseException:
            self._stack.close()
            raise

    def _start(self, name: str) -> None:
        from stoker.checkpoint.generation import start_generation
        from stoker.checkpoint.tiers import Tiers, open_far

        self._stack.callback(self._node.claim(name, self.layout.dp_rank).release)
        if self._shared is None and self.layout.nodes > 1:
            raise ConfigError(
                f"run {name!r} spans {self.layout.nodes} nodes but has no shared tier",
                hint="pass shared= with a directory that all nodes see",
            )
        self._tiers = Tiers(LocalStore(self._near(name), create=True), open_far(self._far, name))
        for store in self._tiers.nearest_first:
            self._stack.callback(store.close)
        rendezvous = None
        if self.layout.dp_size > 1:
            from stoker.torch.rendezvous import make_rendezvous

            rendezvous = make_rendezvous(self.layout, os.environ)
        self.generation = start_generation(self._tiers, run=name, layout=self.layout, rendezvous=rendezvous)

    def _near(self, name: str) -> Path:
        return self._shared / name if self._shared is not None else self._node.checkpoints(name)

    def _open_ledger(self) -> Ledger:
        generation = self.generation.number if self.generation else 0
        path = self._node.ledger(self.name, self.layout.dp_rank, generation) if self.name is not None else None
        rank, world = self.layout.dp_rank, self.layout.dp_size
        identity = LedgerIdentity(self.name or "", rank, world, generation=generation, host=socket.gethostname())
        ledger = Ledger.create(path, identity)
        self._stack.push(self._leave_records)
        self._stack.callback(ledger.close)
        return ledger

    def loader(
        self,
        dataset: Dataset | str | os.PathLike[str],
        *,
        global_batch_size: int,
        seed: int = 0,
        epochs: int = 1,
        shuffle: Shuffle = "window",
        prefetch_bytes: int = DEFAULT_PREFETCH_BYTES,
    ) -> Loader:
        """Iterate batches of a data set: the same global batches on any number of ranks.

        `global_batch_size` counts samples over all ranks and must be divisible by their number. `shuffle`: "window"
        (default), "exact" (uniform over the epoch, costs a sort) or False (manifest order, every sample once, the
        tail padded and marked in `.valid`: evaluation). `prefetch_bytes` bounds what lies ready ahead of use; 0 reads
        each batch when it is asked for. Raises DatasetError, EmptyDataset, LayoutError, ConfigError, StoreError.
        """
        self._check_open()
        from stoker.feed.open import OrderWish, open_loader
        from stoker.feed.options import FeedOptions

        options = FeedOptions(epochs=epochs, prefetch_bytes=prefetch_bytes)
        wish = OrderWish(global_batch_size, seed, shuffle)
        loader = open_loader(dataset, wish, layout=self.layout, options=options, ledger=self._ledger, stack=self._stack)
        self._loaders.append(loader)
        return loader

    def checkpoint(
        self,
        model: Any,
        optimizer: Any = None,
        scheduler: Any = None,
        data: Loader | None = None,
        extra: Mapping[str, Any] | None = None,
        every: int = 100,
    ) -> Checkpoint:
        """Save and restore the training state: model, optimizer, scheduler, RNG and position; step always.

        `extra` maps names to objects with `state_dict()` and `load_state_dict()`; `every` is what `save_if_due` goes
        by, in steps. Raises ConfigError without a name or for a second one, UnsupportedError without PyTorch.
        """
        self._check_open()
        if self._tiers is None or self.generation is None:
            raise ConfigError("a run without a name has no checkpoints", hint='name it: stoker.open(run="run-42")')
        if self._has_checkpoint:
            raise ConfigError(
                f"run {self.name!r} has its checkpoint already",
                hint="keep what run.checkpoint() returned; further objects to save go into extra=",
            )
        from stoker.checkpoint.save import Checkpoint, SaveOptions
        from stoker.torch.state import TorchState

        checkpoint = Checkpoint(
            self._tiers,
            generation=self.generation,
            state=TorchState(model, optimizer, scheduler, dict(extra or {})),
            data=data,
            every=every,
            ledger=self._ledger,
            options=SaveOptions(tier="nvme" if self._shared is None else "shared"),
        )
        self._has_checkpoint = True
        return self._stack.enter_context(checkpoint)

    def report(self, gpu_hour_price: float | None = None) -> Report:
        """What training waited for so far, over the ranks and generations whose ledgers are at hand."""
        from stoker.meter.find import find_snapshots
        from stoker.meter.report import build_report

        found = [self._ledger.snapshot()]  # the report counts a ledger once, in its newest copy
        if self.name is not None:
            found += find_snapshots(self._node.run(self.name), self._near(self.name) / "ledger")
        return build_report(found, gpu_hour_price=gpu_hour_price)

    def close(self) -> None:
        """Finish what is staged, note the end, keep the ledger in the run's home. Idempotent.

        Raises SaveFailed if a save in the background failed, SaveFailed or TimedOut if one cannot be finished.
        """
        self.__exit__(None, None, None)

    def _leave_records(self, kind: type[BaseException] | None, *_details: object) -> None:
        """Keep the ledger in the run's tiers, and note the end if training is through and nothing failed."""
        if self._tiers is None or self.generation is None:
            return
        from stoker.checkpoint.generation import end_run

        name = ledger_name(self.layout.dp_rank, self.generation.number)
        finished = self.layout.dp_rank == 0 and any(loader.finished for loader in self._loaders)
        try:
            for store in self._tiers.nearest_first:
                store.write(Key(f"ledger/{name}"), self._ledger.image())
            if kind is None and finished:
                end_run(self._tiers, self.generation)
        except StokerError as failure:
            if kind is None:
                raise
            _log.warning("the ledger stays on its node: %s", failure.what)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"run {self.name!r} is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._closed:
            self._closed = True
            self._stack.__exit__(kind, error, trace)
