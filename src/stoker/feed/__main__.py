"""`python -m stoker.feed`: the process that makes a rank's batches; started by a loader, and of no use by itself."""

import sys

from stoker.feed.serve import main

if __name__ == "__main__":
    main(sys.argv[1:])
