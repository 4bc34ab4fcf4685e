"""The snapshot: the state of one rank, copied into a slab in the shape of the files to come.

It is all that training waits for.
"""

from __future__ import annotations

from stoker.checkpoint.layout import SavePlan
from stoker.checkpoint.state import Capture
from stoker.io.buffers import view
from stoker.io.memory import Slab


class Snapshot:
    """A slab, reused from save to save, that grows with the state. One user at a time."""

    def __init__(self) -> None:
        self._slab: Slab | None = None

    def take(self, capture: Capture, plan: SavePlan) -> memoryview:
        """Copy everything in `plan` from `capture`; the image, valid until the next `take`.

        Every tensor is copied, wherever it lives: what training does to it afterwards does not reach the image. Raises
        CapacityError.
        """
        slab = self._fitting(plan.size_bytes)
        for file in plan.files:
            slab.view(file.start, file.start + len(file.header))[:] = memoryview(file.header)
            for tensor in file.tensors:
                capture.copy_into(tensor.source, slab.view(tensor.start, tensor.stop))
        return view(slab.view(0, plan.size_bytes))

    def close(self) -> None:
        """Let go of the memory."""
        slab, self._slab = self._slab, None
        if slab is not None:
            slab.close()

    def _fitting(self, size_bytes: int) -> Slab:
        if self._slab is None or self._slab.size_bytes < size_bytes:
            self.close()
            self._slab = Slab(size_bytes)
        return self._slab
