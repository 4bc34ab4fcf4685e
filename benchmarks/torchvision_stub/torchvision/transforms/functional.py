"""The function that `streaming.vision` imports."""


def to_tensor(_image):
    raise RuntimeError("this torchvision is a stub: the benchmark decodes no images")
