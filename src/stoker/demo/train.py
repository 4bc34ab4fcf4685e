"""A training script as a user would write it: byte-level language modelling on packed source files, on the CPU."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

import stoker
from stoker.store.base import WriteBuffer
from stoker.store.local import LocalStore
from stoker.values import Key

CONTEXT = 64


class SlowStore(LocalStore):
    """Storage that takes 30 ms to answer, as a busy file server would."""

    def read_into(self, key: Key, start: int, buffer: WriteBuffer) -> None:
        """Read, late."""
        time.sleep(0.03)
        super().read_into(key, start, buffer)

    def read_cached(
        self, key: Key, starts: Sequence[int], buffers: Sequence[memoryview], digest: Callable[[memoryview], int]
    ) -> None:
        """Nothing comes without waiting."""


class Model(nn.Module):
    """A byte-level transformer with dropout: about 100,000 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 64)
        self.place = nn.Parameter(torch.randn(CONTEXT, 64) * 0.02)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of the next byte: int64[n, CONTEXT] -> float32[n, CONTEXT, 256]."""
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        logits: torch.Tensor = self.head(self.layers(self.embed(x) + self.place, mask=mask, is_causal=True))
        return logits


def crops(samples: list[memoryview]) -> torch.Tensor:
    """A random piece of each file, zero-padded: int64[n, CONTEXT + 1]. Draws from torch's RNG."""
    rows = torch.zeros(len(samples), CONTEXT + 1, dtype=torch.int64)
    for row, sample in zip(rows, samples, strict=True):
        start = int(torch.randint(0, max(1, len(sample) - CONTEXT), (1,)))
        piece = torch.tensor(list(sample[start : start + CONTEXT + 1]), dtype=torch.int64)
        row[: len(piece)] = piece
    return rows


def main() -> None:
    """Usage: train.py DATA NVME OBJECT STEPS STOP_AT [forget-rng | slow | slow-no-prefetch]. One JSON line a step."""
    data_dir, nvme, far, steps, stand_still_at, *flags = sys.argv[1:]
    torch.manual_seed(1)
    torch.set_num_threads(1)

    with stoker.open(run="demo", nvme=nvme, object=far or None) as run:
        store = stoker.Dataset(SlowStore(data_dir) if "slow" in flags or "slow-no-prefetch" in flags else data_dir)
        ahead_bytes, epochs = 0 if "slow-no-prefetch" in flags else 64 << 20, 1 + int(steps) // 50
        data = run.loader(store, global_batch_size=16, seed=7, epochs=epochs, prefetch_bytes=ahead_bytes)
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        state = run.checkpoint(model, optimizer, data=data, every=20)
        state.restore()
        if "forget-rng" in flags:
            torch.manual_seed(2)
        for batch in data:
            rows = crops(batch["py"])
            logits = model(rows[:, :-1])
            loss = nn.functional.cross_entropy(logits.reshape(-1, 256), rows[:, 1:].reshape(-1))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch ships it without types
            optimizer.step()
            if far and batch.step == int(stand_still_at):
                state.wait("object")
            digests = [hashlib.sha256(sample).hexdigest() for sample in batch["py"]]
            tell({"step": batch.step, "loss": loss.item(), "keys": batch.sample_keys, "sha256": digests})
            state.save_if_due(after=batch)
            if batch.step == int(stand_still_at):
                time.sleep(600)
            if batch.step + 1 == int(steps):
                break
    weights = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.state_dict().values())).hexdigest()
    tell({"weights": weights, "report": run.report().to_json(), "restored_from": state.stats().restored_from})


def tell(line: dict[str, Any]) -> None:
    """One line of JSON on stdout, at once."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
