"""The base class that `streaming.vision` derives from when it is imported."""


class VisionDataset:
    pass
