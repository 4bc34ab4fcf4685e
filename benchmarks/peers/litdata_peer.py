"""litdata: its own chunks, shuffled by chunk and inside; far away it copies chunks to a cache on this machine."""

from __future__ import annotations

import asyncio
from typing import Any

from litdata import StreamingDataLoader, StreamingDataset
from litdata.streaming import downloader
from litdata.streaming.downloader import LocalDownloader

import slow
from peers import Job
from peers.torch_batches import DataLoaderFeed, stack, worker_options


def open_feed(job: Job) -> DataLoaderFeed:
    cache: dict[str, Any] = {}
    source = job.source
    if source.startswith("s3://"):
        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # the server is one of this machine, without TLS
        cache = {"cache_dir": str(job.scratch / "cache"), "storage_options": {"endpoint_url": slow.server()}}
    elif job.far:
        _make_late()
        source, cache = f"local:{source}", {"cache_dir": str(job.scratch / "cache")}
    dataset = StreamingDataset(source, shuffle=True, drop_last=True, **cache)
    loader = StreamingDataLoader(
        dataset, batch_size=job.batch_size, collate_fn=stack, drop_last=True, **worker_options(job)
    )

    def resume(batches: int) -> None:
        samples = batches * job.batch_size
        state = {"dataset": dataset.state_dict(samples, job.workers, job.batch_size), "current_epoch": 1}
        loader.load_state_dict(state | {"num_samples_yielded": samples, "latest_worker_idx": 0})

    return DataLoaderFeed(loader, resume)


def _make_late() -> None:
    blocking, ranged = LocalDownloader.download_file, LocalDownloader.adownload_bytes

    def download_file(self: Any, remote_filepath: str, local_filepath: str) -> None:
        slow.request()
        blocking(self, remote_filepath, local_filepath)

    async def adownload_file(self: Any, remote_filepath: str, local_filepath: str) -> None:
        slow.note_request()
        await asyncio.sleep(slow.latency_s())  # its own event loop goes on meanwhile, as with a real client
        blocking(self, remote_filepath.replace("local:", ""), local_filepath)

    async def adownload_bytes(self: Any, remote_filepath: str, offset: int, length: int, local_chunkpath: str) -> bytes:
        slow.note_request()
        await asyncio.sleep(slow.latency_s())
        return await ranged(self, remote_filepath.replace("local:", ""), offset, length, local_chunkpath)

    LocalDownloader.download_file = download_file
    LocalDownloader.adownload_file = adownload_file
    LocalDownloader.adownload_bytes = adownload_bytes
