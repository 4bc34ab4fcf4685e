"""The only library room that imports torch."""

from stoker.errors import UnsupportedError

try:
    import torch  # noqa: F401  asked for once, so that every door of this room gives the same error
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise UnsupportedError("PyTorch is not installed", hint="pip install torch") from error
