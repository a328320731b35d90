#!/usr/bin/env python3
"""Records small JPEG and PNG files and the pixels that they decode to, into test/golden/images.txt.

How to run it, from the repository's root, with Debian's python3-torchvision, which brings Pillow:
/usr/bin/python3 test/golden/images.py

After a line with the versions, each line is

    NAME BOUND WIDTH HEIGHT CHANNELS FILE PIXELS

FILE and PIXELS (height, width, channels) are hexadecimal; BOUND is the largest allowed difference of a pixel. This
script writes the PNG files byte by byte, so that every color type, depth and interlacing occurs; their pixels are
those that the file was made from, and Pillow must agree where it can read the kind. A JPEG's pixels are Pillow's;
another version of its JPEG library may round differently.
"""

import io
import pathlib
import struct
import zlib

import numpy
import PIL
from PIL import Image, features

WIDTH, HEIGHT = 13, 9
turbo = features.version("libjpeg_turbo")
lines = [f"# Pillow {PIL.__version__}, libjpeg-turbo {turbo}, NumPy {numpy.__version__}"]


def picture(channels, top=255):
    """Smooth with one edge: (height, width, channels) in [0, top]."""
    y, x, c = numpy.meshgrid(numpy.arange(HEIGHT), numpy.arange(WIDTH), numpy.arange(channels), indexing="ij")
    value = 0.5 + 0.3 * numpy.sin(0.5 * x + 0.3 * c) * numpy.cos(0.4 * y) + 0.2 * (x + y > 11) * (c != 1)
    return numpy.round(numpy.clip(value, 0, 1) * top).astype(numpy.uint32)


def show(name, bound, file, pixels):
    height, width, channels = pixels.shape
    pixels = pixels.astype(numpy.uint8).tobytes()
    lines.append(f"{name} {bound} {width} {height} {channels} {file.hex()} {pixels.hex()}")


def jpeg(name, image, **options):
    file = io.BytesIO()
    image.save(file, "JPEG", optimize=True, **options)
    decoded = Image.open(io.BytesIO(file.getvalue()))
    pixels = numpy.asarray(decoded if decoded.mode == "L" else decoded.convert("RGB"))
    show(name, 2, file.getvalue(), pixels.reshape(HEIGHT, WIDTH, -1))


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def scanlines(values, depth):
    """Unfiltered rows: (height, width, channels) of `depth` bits each."""
    rows = b""
    for row in values.reshape(len(values), -1):
        if depth == 16:
            rows += b"\0" + row.astype(">u2").tobytes()
        else:
            bits = "".join(format(value, f"0{depth}b") for value in row)
            bits += "0" * (-len(bits) % 8)
            rows += b"\0" + bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8))
    return rows


ADAM7 = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]


def png(name, values, color, depth, pixels, before=b"", interlaced=False, pillow=True):
    if interlaced:
        parts = [values[y::down, x::across] for y, x, down, across in ADAM7]
        body = b"".join(scanlines(part, depth) for part in parts if part.size)
    else:
        body = scanlines(values, depth)
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, depth, color, 0, 0, int(interlaced))
    file = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + before
    file += chunk(b"IDAT", zlib.compress(body, 9)) + chunk(b"IEND", b"")
    if pillow:
        decoded = Image.open(io.BytesIO(file)).convert("L" if pixels.shape[2] == 1 else "RGB")
        difference = numpy.asarray(decoded).reshape(pixels.shape).astype(int) - pixels.astype(int)
        assert numpy.abs(difference).max() <= (1 if depth == 16 else 0), name
    show(name, 0, file, pixels)


def main():
    gray, color = picture(1), picture(3)
    as_gray = Image.fromarray(gray[:, :, 0].astype(numpy.uint8), "L")
    as_color = Image.fromarray(color.astype(numpy.uint8), "RGB")
    jpeg("gray.jpg", as_gray, quality=75)
    jpeg("color.jpg", as_color, quality=75)
    jpeg("full.jpg", as_color, quality=90, subsampling=0)
    jpeg("progressive.jpg", as_color, quality=60, progressive=True)
    jpeg("cmyk.jpg", as_color.convert("CMYK"), quality=90)

    alpha = (255 - gray).astype(numpy.uint32)
    palette = numpy.array([[10, 20, 30], [200, 100, 0], [0, 255, 128], [77, 77, 77], [1, 2, 3]])
    index = picture(1, 4)
    entries = chunk(b"PLTE", palette.astype(numpy.uint8).tobytes())
    transparent = chunk(b"tRNS", bytes([0, 128, 255]))
    wide_gray, wide = picture(1, 65535), picture(3, 65535)
    narrow = numpy.round(wide / 257)
    for interlaced in False, True:
        end = "-interlaced.png" if interlaced else ".png"
        png("gray8" + end, gray, 0, 8, gray, interlaced=interlaced)
        png("color8" + end, color, 2, 8, color, interlaced=interlaced)
        png("palette4" + end, index, 3, 4, palette[index[:, :, 0]], before=entries, interlaced=interlaced)
    for depth in 1, 2, 4:
        values = picture(1, 2**depth - 1)
        png(f"gray{depth}.png", values, 0, depth, values * 255 // (2**depth - 1))
    png("palette8.png", index, 3, 8, palette[index[:, :, 0]], before=entries)
    png("palette8-transparent.png", index, 3, 8, palette[index[:, :, 0]], before=entries + transparent)
    png("gray16.png", wide_gray, 0, 16, numpy.round(wide_gray / 257), pillow=False)
    png("color16.png", wide, 2, 16, narrow)
    png("gray8-alpha.png", numpy.concatenate([gray, alpha], 2), 4, 8, gray)
    png("color8-alpha.png", numpy.concatenate([color, alpha], 2), 6, 8, color, interlaced=True)
    png("color16-alpha.png", numpy.concatenate([wide, 257 * alpha], 2), 6, 16, narrow)
    png("gray8-key.png", gray, 0, 8, gray, before=chunk(b"tRNS", struct.pack(">H", int(gray[0, 0, 0]))))
    png("color8-key.png", color, 2, 8, color,
        before=chunk(b"tRNS", struct.pack(">HHH", *(int(v) for v in color[0, 0]))))


main()
pathlib.Path("test/golden/images.txt").write_text("\n".join(lines) + "\n")
