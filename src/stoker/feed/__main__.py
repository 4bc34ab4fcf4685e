"""`python -m stoker.feed`: the process that makes a rank's batches; started by a loader, and of no use by itself."""

import gc
import sys

gc.disable()  # a tenth of the time that loading takes: collections find nothing in modules

from stoker.feed.serve import main  # noqa: E402

gc.freeze()
gc.enable()

if __name__ == "__main__":
    main(sys.argv[1:])
