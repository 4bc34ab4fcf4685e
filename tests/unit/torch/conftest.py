"""A home for one run of a PyTorch training state."""

import pytest

from stoker.checkpoint.generation import start_generation
from stoker.checkpoint.save import Checkpoint
from stoker.ledger import Ledger, LedgerIdentity
from stoker.store.local import LocalStore
from stoker.torch.state import TorchState
from stoker.values import Layout


@pytest.fixture
def home(tmp_path):
    store = LocalStore(tmp_path / "home", create=True)
    yield store
    store.close()


@pytest.fixture
def checkpoint(home):
    """checkpoint(model, ...) is that of the run's next generation."""

    def make(model, optimizer=None, scheduler=None, extra=None):
        generation = start_generation(home, run="r", layout=Layout())
        ledger = Ledger.create(None, LedgerIdentity("r", 0, 1, generation.number, "host"))
        state = TorchState(model, optimizer, scheduler, extra)
        return Checkpoint(home, generation=generation, state=state, data=None, every=1, ledger=ledger)

    return make


@pytest.fixture
def transfer(checkpoint):
    """transfer(source parts, target parts): save the one, restore into the other."""

    def move(source, target):
        with checkpoint(*source) as saving:
            saving.save(after=0).wait()
        with checkpoint(*target) as restoring:
            assert restoring.restore() == 1

    return move
