"""A training script as a user would write it: byte-level language modelling on packed source files, on the CPU."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time

import torch
from torch import nn

import stoker
from stoker.store.base import WriteBuffer
from stoker.store.local import LocalStore
from stoker.values import Key

CONTEXT = 64


class SlowStore(LocalStore):
    """Storage that takes `read_s` to answer, as a busy file server would."""

    read_s = 0.03

    def read_into(self, key: Key, start: int, buffer: WriteBuffer) -> None:
        """Read, late."""
        time.sleep(self.read_s)
        super().read_into(key, start, buffer)


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
        hidden: torch.Tensor = self.layers(self.embed(x) + self.place, mask=mask, is_causal=True)
        logits: torch.Tensor = self.head(hidden)
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
    """Train for `--steps` steps; print one JSON line a step and one at the end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--nvme", required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--stand-still-at", type=int, default=-1, help="wait there to be killed")
    parser.add_argument("--forget-rng", action="store_true", help="the control: resume with another RNG")
    parser.add_argument("--slow", choices=["no", "prefetch", "no-prefetch"], default="no")
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)

    with stoker.open(run=args.run, nvme=args.nvme) as run:
        store = SlowStore(args.data) if args.slow != "no" else args.data
        data = run.loader(
            stoker.Dataset(store).fields("py"),
            global_batch_size=16,
            seed=7,
            epochs=1 + args.steps // 50,
            prefetch_bytes=0 if args.slow == "no-prefetch" else 64 << 20,
        )
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        state = run.checkpoint(model, optimizer, data=data, every=20)
        state.restore()
        if args.forget_rng:
            torch.manual_seed(2)
        for batch in data:
            rows = crops(batch["py"])
            logits = model(rows[:, :-1])
            loss = nn.functional.cross_entropy(logits.reshape(-1, 256), rows[:, 1:].reshape(-1))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch ships it without types
            optimizer.step()
            digests = [hashlib.sha256(sample).hexdigest() for sample in batch["py"]]
            line = {"step": batch.step, "loss": loss.item(), "keys": batch.sample_keys, "sha256": digests}
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
            state.save_if_due(after=batch)
            if batch.step == args.stand_still_at:
                time.sleep(600)
            if batch.step + 1 == args.steps:
                break
    weights = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.state_dict().values())).hexdigest()
    sys.stdout.write(json.dumps({"weights": weights, "report": run.report().to_json()}) + "\n")


if __name__ == "__main__":
    main()
