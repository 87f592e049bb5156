"""Pixels equal torchcodec's, resized pixels torchvision's, value for value (docs/pixels.md).

The conversion code is compiled into a small shared library and fed with planes that the ffmpeg
command line decoded, so that nothing but conversion is compared. Needs gcc, FFmpeg's headers,
ffmpeg, ffprobe, torchcodec and torchvision: run it in the environment of tests/parity/setup.sh.
torchcodec must load the same FFmpeg major version as the build.
"""

import ctypes
import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)
torchcodec = pytest.importorskip("torchcodec.decoders", exc_type=ImportError)
tv_functional = pytest.importorskip(
    "torchvision.transforms.v2.functional", reason="torchvision is not installed"
)

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ["ffmpeg", "ffprobe", "pkg-config", os.environ.get("CC", "gcc")]
absent = [tool for tool in TOOLS if shutil.which(tool) is None]
if absent:
    pytest.skip(f"not installed: {', '.join(absent)}", allow_module_level=True)

FRAMES = 5
CODECS = {
    "av1": "-c:v libaom-av1 -cpu-used 8 -usage realtime -threads 1 -g 2 -crf 30",
    "h264": "-c:v libx264 -preset veryfast -threads 1 -bf 2 -b_strategy 0 -qp 20",
    "hevc": "-c:v libx265 -preset ultrafast -x265-params log-level=none:pools=1:frame-threads=1"
            ":keyint=4:bframes=2:open-gop=1",
}  # fmt: skip
DECODERS = {"av1": "libdav1d", "h264": "h264", "hevc": "hevc"}
# AVColorSpace by ffprobe's name.
MATRICES = {"gbr": 0, "bt709": 1, "unknown": 2, "fcc": 4, "bt470bg": 5, "smpte170m": 6,
            "smpte240m": 7, "bt2020nc": 9, "bt2020c": 10}  # fmt: skip
RANGES = {"unknown": 0, "tv": 1, "pc": 2}
FORMATS = {"yuv420p": 1, "yuvj420p": 2}  # enum rp_pixel_format; anything else is RP_PIX_OTHER


class Image(ctypes.Structure):
    """struct rp_image."""

    _fields_ = [
        *((name, ctypes.c_int) for name in
          ("format", "native_format", "width", "height", "colorspace", "color_range")),
        ("plane", ctypes.c_void_p * 4),
        ("stride", ctypes.c_ssize_t * 4),
    ]  # fmt: skip


class Target(ctypes.Structure):
    """struct rp_target."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in ("type", "width", "height")),
        *((name, ctypes.c_ssize_t) for name in ("row_stride", "plane_stride")),
        ("depth_table", ctypes.c_void_p),
    ]


class Converter:
    """rp_convert through ctypes, with one scratch."""

    def __init__(self, library):
        self.core = ctypes.CDLL(str(library))
        self.scratch = ctypes.c_void_p()
        assert self.core.rp_scratch_new(ctypes.byref(self.scratch), None) == 0

    def avutil_format(self, name):
        """AVPixelFormat of a name, by the libavutil that the library is linked with."""
        return self.core.av_get_pix_fmt(name.encode())

    def close(self):
        self.core.rp_scratch_free(ctypes.byref(self.scratch))

    def convert(self, image, width, height, dtype=np.uint8):
        """(3, height, width) array of one image."""
        out = np.zeros((3, height, width), dtype)
        target = Target(out.ctypes.data, 0 if dtype == np.uint8 else 1, width, height,
                        out.strides[1], out.strides[0], None)  # fmt: skip
        error = ctypes.create_string_buffer(4096)  # struct rp_error is smaller
        status = self.core.rp_convert(
            ctypes.byref(image), ctypes.byref(target), self.scratch, error
        )
        assert status == 0, f"rp_convert returned {status}"
        return out


@pytest.fixture(scope="module")
def converter(tmp_path_factory):
    library = tmp_path_factory.mktemp("convert") / "convert.so"
    base = [ROOT / "csrc/base" / f"{name}.c" for name in ("cpu", "error", "memory", "thread")]
    kernels = [path for part in ("convert", "cuda") for path in (ROOT / "csrc" / part).glob("*.c")]
    sources = [*sorted(kernels), *base]
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "libswscale", "libavutil"],
                           capture_output=True, text=True)  # fmt: skip
    if flags.returncode != 0:
        pytest.skip(f"FFmpeg's headers are not installed: {flags.stderr.strip()}")
    subprocess.run([TOOLS[-1], "-std=c11", "-D_GNU_SOURCE", "-O2", "-ffp-contract=off", "-shared",
                    "-fPIC", "-pthread", f"-I{ROOT / 'csrc'}", *map(str, sources),
                    "-o", str(library), *flags.stdout.split(), "-lm"], check=True)  # fmt: skip
    made = Converter(library)
    yield made
    made.close()


def make_clip(path, codec, width, height, pixel_format, matrix=None, full=None):
    """A few noisy frames; tags are written only where given."""
    tags = []
    if matrix is not None:
        tags += ["-colorspace", matrix]
    if full is not None:
        tags += ["-color_range", "pc" if full else "tv"]
    filters = f"format=gbrp,crop={width}:{height},format={pixel_format}"
    subprocess.run(
        ["ffmpeg", "-v", "error", "-y", "-f", "lavfi",
         "-i", f"testsrc2=size={width + 2}x{height + 2}:rate=10,noise=alls=60:allf=t:all_seed=7",
         "-frames:v", str(FRAMES), "-vf", filters, *CODECS[codec].split(), *tags, str(path)],
        check=True)  # fmt: skip


def stored_frames(path, codec):
    """(format and tags by ffprobe, bytes) of every frame, undisturbed by conversion."""
    probe = subprocess.run(
        ["ffprobe", "-v", "error", "-select_streams", "v:0", "-show_frames", "-show_entries",
         "frame=pix_fmt,width,height,color_space,color_range", "-of", "json", str(path)],
        check=True, capture_output=True, text=True)  # fmt: skip
    frames = json.loads(probe.stdout)["frames"]
    raw = subprocess.run(
        ["ffmpeg", "-v", "error", "-c:v", DECODERS[codec], "-i", str(path), "-fps_mode",
         "passthrough", "-f", "rawvideo", "-pix_fmt", frames[0]["pix_fmt"], "-"],
        check=True, capture_output=True).stdout  # fmt: skip
    size = len(raw) // len(frames)
    assert size * len(frames) == len(raw)
    return frames, [raw[i * size : (i + 1) * size] for i in range(len(frames))]


def plane_shapes(pixel_format, width, height):
    """(rows, bytes per row) of each plane."""
    deep = 2 if pixel_format.endswith("10le") else 1
    if pixel_format.startswith("gray"):
        return [(height, width * deep)]
    sub_x = 0 if "444" in pixel_format or pixel_format == "gbrp" else 1
    sub_y = 1 if "420" in pixel_format else 0
    chroma = (-(-height // (1 << sub_y)), -(-width // (1 << sub_x)) * deep)
    return [(height, width * deep), chroma, chroma]


def as_image(converter, tags, raw):
    """rp_image of one raw frame in padded rows, as a decoder lays them out; and their owners."""
    name, width, height = tags["pix_fmt"], tags["width"], tags["height"]
    image = Image(
        FORMATS.get(name, 0), converter.avutil_format(name), width, height,
        MATRICES[tags.get("color_space", "unknown")], RANGES[tags.get("color_range", "unknown")],
    )  # fmt: skip
    owners, at = [], 0
    for index, (rows, row_bytes) in enumerate(plane_shapes(name, width, height)):
        stride = (row_bytes + 64 + 63) // 64 * 64
        owner = np.zeros(rows * stride + 192, np.uint8)
        begin = -owner.ctypes.data % 64
        plane = owner[begin : begin + rows * stride].reshape(rows, stride)
        plane[:, :row_bytes] = np.frombuffer(raw, np.uint8, rows * row_bytes, at).reshape(rows, -1)
        at += rows * row_bytes
        image.plane[index] = owner.ctypes.data + begin
        image.stride[index] = stride
        owners.append(owner)
    assert at == len(raw)
    return image, owners


def greatest_difference(converter, path, codec):
    """Greatest |ours - torchcodec's| over all frames of a clip; float32 must be ours / 255."""
    frames, raws = stored_frames(path, codec)
    theirs = torchcodec.VideoDecoder(str(path), num_ffmpeg_threads=1)
    assert len(frames) == len(theirs) == FRAMES
    greatest = 0
    for i, (tags, raw) in enumerate(zip(frames, raws)):
        image, owners = as_image(converter, tags, raw)
        ours = converter.convert(image, image.width, image.height)
        floats = converter.convert(image, image.width, image.height, np.float32)
        want = theirs[i]
        assert torch.equal(torch.from_numpy(floats), torch.from_numpy(ours).float() / 255)
        difference = (torch.from_numpy(ours).int() - want.int()).abs().max().item()
        greatest = max(greatest, difference)
        assert ours.std() > 10  # a picture, not a constant that equals a constant
        del owners
    return greatest


@pytest.mark.parametrize("width", [128, 150])
@pytest.mark.parametrize("full", [False, True], ids=["limited", "full"])
@pytest.mark.parametrize("matrix", ["smpte170m", "bt709", None], ids=["601", "709", "unspecified"])
@pytest.mark.parametrize("codec", CODECS)
def test_pixels_equal_torchcodec(converter, tmp_path, codec, matrix, full, width):
    path = tmp_path / "clip.mp4"
    jpeg = full and codec != "av1"  # AV1 decoders say yuv420p and tag the range
    make_clip(path, codec, width, 96, "yuvj420p" if jpeg else "yuv420p", matrix, full)
    tags = stored_frames(path, codec)[0][0]
    assert tags["pix_fmt"] == ("yuvj420p" if jpeg else "yuv420p")
    assert (tags.get("color_range") == "pc") == full
    assert tags.get("color_space", "unknown") == (matrix or "unknown")
    assert greatest_difference(converter, path, codec) == 0


@pytest.mark.parametrize("width", [128, 150])
@pytest.mark.parametrize("matrix", ["fcc", "smpte240m", "bt470bg", "bt2020nc", "bt2020c"])
def test_other_matrices_equal_torchcodec(converter, tmp_path, matrix, width):
    path = tmp_path / "clip.mp4"
    make_clip(path, "h264", width, 96, "yuv420p", matrix)
    assert stored_frames(path, "h264")[0][0]["color_space"] == matrix
    assert greatest_difference(converter, path, "h264") == 0


@pytest.mark.parametrize("codec,pixel_format,width,height", [
    ("av1", "yuv420p", 127, 96), ("av1", "yuv420p", 128, 95), ("av1", "yuv420p", 127, 95),
    ("av1", "yuv420p", 150, 95), ("h264", "yuvj444p", 150, 95), ("h264", "yuv422p", 128, 96),
    ("h264", "yuv422p", 150, 96), ("h264", "yuv422p", 150, 95), ("h264", "yuv444p", 128, 96),
    ("h264", "yuv444p", 151, 95), ("h264", "yuvj444p", 128, 96), ("h264", "yuvj422p", 150, 96),
    ("h264", "yuv420p10le", 128, 96), ("h264", "yuv420p10le", 150, 96),
    ("hevc", "yuv420p10le", 150, 96), ("h264", "yuv444p10le", 151, 95),
    ("av1", "yuv420p10le", 128, 96), ("av1", "gray", 128, 96), ("av1", "gray", 151, 95),
    ("hevc", "gbrp", 128, 96), ("hevc", "gbrp", 151, 95),
])  # fmt: skip
@pytest.mark.parametrize("matrix", ["bt709", None])
def test_fallback_formats_equal_torchcodec(
    converter, tmp_path, codec, pixel_format, width, height, matrix
):
    if pixel_format == "gbrp" and matrix is not None:
        pytest.skip("RGB has no matrix")
    path = tmp_path / "clip.mp4"
    full = True if pixel_format.startswith("yuvj") else None
    make_clip(path, codec, width, height, pixel_format, matrix, full)
    tags = stored_frames(path, codec)[0][0]
    assert (tags["pix_fmt"], tags["width"], tags["height"]) == (pixel_format, width, height)
    assert greatest_difference(converter, path, codec) == 0


RESIZES = [  # (height, width) in, (height, width) out
    ((48, 64), (24, 32)), ((48, 64), (96, 128)), ((48, 64), (47, 63)), ((48, 64), (49, 65)),
    ((48, 64), (48, 32)), ((48, 64), (24, 64)), ((48, 64), (2, 3)), ((2, 2), (7, 5)),
    ((480, 640), (224, 224)), ((480, 640), (84, 84)), ((480, 640), (240, 320)),
    ((480, 640), (256, 256)), ((480, 640), (96, 1000)), ((240, 320), (512, 512)),
    ((240, 320), (224, 398)), ((720, 1280), (224, 224)), ((720, 1280), (480, 854)),
    ((96, 96), (84, 84)), ((256, 256), (255, 3)), ((100, 30), (333, 31)), ((1080, 1920), (17, 19)),
]  # fmt: skip


@pytest.mark.parametrize("size,wanted", RESIZES)
@pytest.mark.parametrize("extremes", [False, True])
def test_resize_equals_torchvision(converter, size, wanted, extremes):
    height, width = size
    generator = np.random.default_rng(height * width + wanted[0])
    planes = []
    for rows, columns in [(height, width), (height // 2, width // 2), (height // 2, width // 2)]:
        values = generator.integers(0, 256, (rows, columns), np.uint8)
        planes.append(np.where(values > 127, 255, 0).astype(np.uint8) if extremes else values)
    image = Image(1, converter.avutil_format("yuv420p"), width, height, 2, 1)
    for index, plane in enumerate(planes):
        image.plane[index] = plane.ctypes.data
        image.stride[index] = plane.strides[0]
    whole = torch.from_numpy(converter.convert(image, width, height))
    ours = torch.from_numpy(converter.convert(image, wanted[1], wanted[0]))
    want = tv_functional.resize(whole, list(wanted), antialias=True)
    assert torch.equal(ours, want)
    floats = torch.from_numpy(converter.convert(image, wanted[1], wanted[0], np.float32))
    assert torch.equal(floats, want.float() / 255)
