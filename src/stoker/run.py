"""`stoker.open` and `Run`: one training job under one name. Owns, builds and closes what the rooms below make.

Nothing below takes a Run: rooms get the values and stores they need.
"""

from __future__ import annotations

import os
import socket
import sys
import weakref
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from stoker.config import Config, load_config
from stoker.errors import ClosedError, ConfigError, UnsupportedError
from stoker.io.limits import within_limits
from stoker.io.lock import FileLock
from stoker.ledger import Ledger, LedgerIdentity
from stoker.tier.node import NodeDirectory, check_run_name, check_shared, default_nvme
from stoker.values import Layout, check_layout, path_text

if TYPE_CHECKING:
    from stoker.checkpoint.generation import Generation
    from stoker.checkpoint.save import Checkpoint
    from stoker.checkpoint.tiers import Tiers
    from stoker.dataset.describe import Dataset
    from stoker.dataset.recipe import Shuffle
    from stoker.feed.deliver import Delivery
    from stoker.feed.loader import Loader, Progress
    from stoker.meter.report import Report
    from stoker.torch.delivery import DeviceName


@within_limits("cannot open the run")
def open(  # noqa: A001  read as stoker.open
    run: str | None = None,
    nvme: str | os.PathLike[str] | None = None,
    shared: str | os.PathLike[str] | None = None,
    object: str | os.PathLike[str] | None = None,  # noqa: A002  the tier's name
    layout: Layout | None = None,
) -> Run:
    """Open a run: `with stoker.open(run="run-42") as run: ...`.

    `run` names the job; starting the same name again continues it. Without a name there are loaders and a report, but
    no checkpoints. `nvme` is a directory on this node, `shared` one that all nodes see, where checkpoints go when it is
    given; `object` is the URL of a store far away that committed steps are copied to behind training: by default what
    environment and stoker.toml say. `layout` is by default what torchrun or Slurm say, else one rank; it must be that
    of the process group, if PyTorch has one. Of a run with a name every process is a rank of its own: which of them get
    the same batches is for `run.loader(layout=)` to say.

    Every rank must call it: they meet, then rank 0 makes the generation and tells the others. Raises RunBusy if this
    rank of the run lives on this node already, TimedOut if ranks do not come within ten minutes, LayoutError,
    ConfigError, StoreError, CapacityError.
    """
    if layout is None:
        layout = Layout.from_environment(os.environ)
        _check_group(layout, "environment")
    check_layout(layout)
    given = {"nvme": ("tiers.nvme.path", nvme), "shared": ("tiers.shared.path", shared)}
    given["object"] = ("tiers.object.url", object)
    places = {at: None if value is None else path_text(name, value) for name, (at, value) in given.items()}
    config = load_config(os.environ, Path(), places, uid=os.geteuid())
    node = NodeDirectory.open(config.tiers.nvme.path or default_nvme(os.environ, os.geteuid()))
    return Run(run, node=node, layout=layout, config=config)


class Run:
    """One start of a training job: its loaders, its checkpoints and its ledger. Made by `stoker.open`."""

    def __init__(self, name: str | None, *, node: NodeDirectory, layout: Layout, config: Config) -> None:
        self.name = check_run_name(name) if name is not None else None
        self.layout = layout
        self.config = config
        self._closed = self._has_checkpoint = False
        self._node = node
        self._shared = check_shared(config.tiers.shared.path)
        self._stack = ExitStack()
        self._tiers: Tiers | None = None
        self._lock: FileLock | None = None
        self._loaders: weakref.WeakSet[Loader] = weakref.WeakSet()  # those dropped are gone, with all they held
        self._progress: list[Progress] = []
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
        from stoker.checkpoint.tiers import open_tiers

        _check_group(self.layout, "layout")
        self._lock = self._node.claim(name, self.layout.dp_rank)
        self._stack.callback(self._lock.release)
        if self._shared is None and self.layout.nodes > 1:
            raise ConfigError(
                f"run {name!r} spans {self.layout.nodes} nodes but has no shared tier",
                hint="pass shared= with a directory that all nodes see",
            )
        self._tiers = open_tiers(self._near(name), name, self.config)
        self._stack.callback(self._tiers.close)
        rendezvous = None
        if self.layout.dp_size > 1:
            from stoker.torch.rendezvous import make_rendezvous

            rendezvous = make_rendezvous(self.layout, os.environ)
        self.generation = start_generation(self._tiers, run=name, layout=self.layout, rendezvous=rendezvous)

    def _near(self, name: str) -> Path:
        return self._shared / name if self._shared is not None else self._node.checkpoints(name)

    def _open_ledger(self) -> Ledger:
        generation = self.generation.number if self.generation else 0
        rank, world = self.layout.dp_rank, self.layout.dp_size
        identity = LedgerIdentity(self.name or "", rank, world, generation=generation, host=socket.gethostname())
        ledger = self._node.open_ledger(identity)
        if self._tiers is not None and self.generation is not None:
            from stoker.checkpoint.leave import Records

            self._stack.push(Records(self._tiers, self.generation, ledger, self._progress).leave)
        self._stack.callback(ledger.close)
        self._stack.callback(_close_all, self._loaders)
        return ledger

    def _keep_lock(self, user: object) -> None:
        """Hold the run's lock as long as `user` lives, even if nobody holds the run."""
        if self._lock is not None:
            weakref.finalize(user, _let_go, self._lock).atexit = False

    @within_limits("cannot open the loader")
    def loader(
        self,
        dataset: Dataset | str | os.PathLike[str],
        *,
        global_batch_size: int,
        seed: int = 0,
        epochs: int = 1,
        shuffle: Shuffle = "window",
        prefetch_bytes: int | str | None = None,
        layout: Layout | None = None,
        device: DeviceName | None = None,
    ) -> Loader:
        """Iterate batches of a data set: the same global batches on any number of ranks.

        `global_batch_size` counts samples over all ranks and must be divisible by their number. `shuffle`: "window"
        (default), "exact" (uniform over the epoch, costs a sort) or False (manifest order, every sample once, the
        tail padded and marked in `.valid`: evaluation). `prefetch_bytes`, a number or a size such as "64MiB", bounds
        what lies ready ahead of use (default: the settings'); 0 reads each when asked for. Tars and files without a
        manifest are indexed first, once a node. The loader is closed with the run, or freed when nobody holds it any
        more.

        `layout` says which ranks share a batch and which get the same, if that is another than the run's: from a device
        mesh, `stoker.torch.layout(mesh)`. With `device`, "cpu", "cuda" or one such as "cuda:1", batches are tensors
        there; numpy arrays without. Raises DatasetError, LayoutError, ConfigError, StoreError; UnsupportedError for a
        device that is not there.
        """
        self._check_open()
        delivery = None if device is None else _open_delivery(device)
        from stoker.feed.start import start_feeder

        start = start_feeder(dataset, self.config.feed.feeder)  # it loads while this process does
        try:
            from stoker.dataset.attach import IndexCache
            from stoker.feed.open import OrderWish, open_loader
            from stoker.feed.options import FeedOptions

            options = FeedOptions.of(self.config.feed, epochs, prefetch_bytes)
        except BaseException:
            start.give_up()
            raise
        loader = open_loader(
            dataset,
            OrderWish(global_batch_size, seed, shuffle),
            layout=self.layout if layout is None else layout,
            options=options,
            ledger=self._ledger,
            indexes=IndexCache(self._node.indexes),
            start=start,
        )
        if delivery is not None:
            loader.deliver_with(delivery)
        self._loaders.add(loader)
        if loader.progress is not None:
            self._progress.append(loader.progress)
        self._keep_lock(loader)
        return loader

    @within_limits("cannot make the checkpoint")
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

        saves = self.config.checkpoint
        checkpoint = Checkpoint(
            self._tiers,
            generation=self.generation,
            state=TorchState(model, optimizer, scheduler, extra),
            data=data,
            every=every,
            ledger=self._ledger,
            options=SaveOptions(saves.deadline_s, saves.limit_s, "nvme" if self._shared is None else "shared"),
        )
        self._has_checkpoint = True
        self._keep_lock(checkpoint)
        return self._stack.enter_context(checkpoint)

    @within_limits("cannot make the report")
    def report(self, gpu_hour_price: float | None = None) -> Report:
        """What training waited for so far, over all ledgers at hand; the price is by default that of the settings."""
        from stoker.checkpoint.tiers import open_far
        from stoker.meter.find import find_far_snapshots, find_snapshots
        from stoker.meter.report import build_report

        found = [self._ledger.snapshot()]  # the report counts a ledger once, in its newest copy
        if self.name is not None:
            found += find_snapshots(self._node.run(self.name), self._near(self.name) / "ledger", at_hand=found)
            found += find_far_snapshots(open_far(self.config.tiers.object, self.name), found)
        price = self.config.report.gpu_hour_price if gpu_hour_price is None else gpu_hour_price
        return build_report(found, gpu_hour_price=price)

    def __repr__(self) -> str:
        name = repr(self.name) if self.name is not None else "without a name"
        generation = self.generation
        start = "" if generation is None else f", start {generation.number}"
        if generation is not None and generation.restore is not None:
            start += f" from step {generation.restore.step}"
        closed = ", closed" if self._closed else ""
        return f"<Run {name}: rank {self.layout.dp_rank} of {self.layout.dp_size}{start}{closed}>"

    def __reduce__(self) -> NoReturn:
        raise UnsupportedError(
            "a run cannot be copied, or sent to another process", repr(self), "open it in the process that uses it"
        )

    def close(self) -> None:
        """Finish what is staged, note the end, keep the ledger in the run's home. Idempotent.

        Raises SaveFailed if a save in the background failed, SaveFailed or TimedOut if one cannot be finished.
        """
        self.__exit__(None, None, None)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"run {self.name!r} is closed" if self.name is not None else "the run is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._closed:
            self._closed = True
            self._stack.__exit__(kind, error, trace)


def _close_all(loaders: Iterable[Loader]) -> None:
    with ExitStack() as stack:
        for loader in list(loaders):
            stack.callback(loader.close)


def _check_group(layout: Layout, source: str) -> None:
    """Refuse a layout that is not that of the process group, if PyTorch is loaded and has one."""
    if "torch.distributed" in sys.modules:
        from stoker.torch.layouts import check_group

        check_group(layout, source)


def _open_delivery(device: DeviceName) -> Delivery:
    from stoker.torch.delivery import open_delivery

    return open_delivery(device)


def _let_go(_lock: FileLock) -> None:
    """What is called when the user of a lock is gone; the lock itself goes with its last user."""
