"""mosaicml-streaming: MDS shards, its default shuffle py1e; far away it copies shards to a cache on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from streaming import StreamingDataset
from streaming.base.storage.download import LocalDownloader
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader

import slow
from peers import Job
from peers.torch_batches import DataLoaderFeed, stack, worker_options

SHUFFLE_SHARDS = 4  # far away, the shuffle spans so many shards; by default all of them, and all come first


def open_feed(job: Job) -> DataLoaderFeed:
    clean_stale_shared_memory()
    place: dict[str, Any] = {"local": job.source}
    if job.far:
        LocalDownloader._download_file_impl = _late(LocalDownloader._download_file_impl)
        index = f"{job.source}/index.json"
        text = slow.fetch(index) if index.startswith("s3://") else Path(index).read_bytes()
        first = json.loads(text)["shards"][0]
        block = SHUFFLE_SHARDS * first["samples"]
        place = {"local": str(job.scratch / "cache"), "remote": job.source, "shuffle_block_size": block}
    dataset = StreamingDataset(batch_size=job.batch_size, shuffle=True, num_canonical_nodes=1, **place)
    loader = DataLoader(
        dataset, batch_size=job.batch_size, collate_fn=_stack_rows, drop_last=True, **worker_options(job)
    )

    def resume(batches: int) -> None:
        dataset.next_epoch = 1  # in which it says where it stands
        dataset.load_state_dict(dataset.state_dict(batches * job.batch_size, from_beginning=True))

    return DataLoaderFeed(loader, resume)


def _stack_rows(rows: list[dict[str, bytes]]) -> Any:
    return stack([row["bin"] for row in rows])


def _late(download: Any) -> Any:
    def request(self: Any, remote: str, local: str, timeout: float) -> None:
        slow.request()
        download(self, remote, local, timeout)

    return request
