"""A small picture of a large one: {"image": BASE64, "width": 200}, or {"seed": 1} for one made here."""

import base64
import io
import random

from PIL import Image

MOST_PIXELS = 25_000_000
Image.MAX_IMAGE_PIXELS = MOST_PIXELS


def made(seed, width=1920, height=1080):
    """A picture with structure, the same for the same seed: noise, scaled up."""
    noise = random.Random(seed).randbytes(32 * 18 * 3)
    return Image.frombytes("RGB", (32, 18), noise).resize((width, height), Image.Resampling.BICUBIC)


def handler(event, context):
    width, height = int(event.get("width", 200)), int(event.get("height", 200))
    if not (1 <= width <= 4096 and 1 <= height <= 4096):
        raise ValueError("width and height must be 1 to 4096")
    image = event.get("image")
    picture = Image.open(io.BytesIO(base64.b64decode(image))) if image else made(event.get("seed", 1))
    original = picture.size
    if original[0] * original[1] > MOST_PIXELS:
        raise ValueError(f"the picture has more than {MOST_PIXELS} pixels")
    picture = picture.convert("RGB")
    picture.thumbnail((width, height))
    small = io.BytesIO()
    picture.save(small, "JPEG")
    return {
        "from": list(original),
        "to": list(picture.size),
        "thumbnail": base64.b64encode(small.getvalue()).decode(),
    }
