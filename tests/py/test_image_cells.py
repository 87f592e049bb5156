"""Image-dtype cells: modes, values, paths below the root, damage; read by row group."""

import contextlib
import io

import numpy as np
import pyarrow as pa
import pytest
from reelpool.errors import (
    DecodeError,
    FormatError,
    MissingExtraError,
    NotFoundError,
    ReelpoolError,
    UnsupportedMediaError,
)
from reelpool.image_cells import RowGroupCache, decode_image_cell, scale_depth
from reelpool.metadata import LeRobotDatasetMetadata
from reelpool.roots import LocalRoot
from reelpool.tables import load_table
from written_datasets import NUMBERS, rows, write_v2, write_v30

Image = pytest.importorskip("PIL.Image")
PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 4), dtype=np.uint8)


def encoded(array, mode=None, format="PNG", **options):
    stream = io.BytesIO()
    picture = Image.fromarray(array)
    (picture.convert(mode) if mode else picture).save(stream, format, **options)
    return stream.getvalue()


@pytest.fixture
def root(tmp_path):
    return LocalRoot(tmp_path)


@pytest.mark.parametrize(
    "channels, pixels", [(3, PIXELS[..., :3]), (4, PIXELS), (1, PIXELS[..., 0])]
)
def test_bytes_become_u8_over_255(root, channels, pixels):
    got = decode_image_cell({"bytes": encoded(pixels), "path": None}, root)
    want = pixels.reshape(5, 7, channels).transpose(2, 0, 1).astype(np.float32) / np.float32(255)
    assert got.dtype == np.float32 and got.flags.c_contiguous
    np.testing.assert_array_equal(got, want)


def test_palette_indices(root):
    picture = Image.fromarray(PIXELS[..., :3]).quantize(16)
    stream = io.BytesIO()
    picture.save(stream, "PNG")
    got = decode_image_cell(stream.getvalue(), root)
    np.testing.assert_array_equal(got[0], np.asarray(picture).astype(np.float32) / np.float32(255))


@pytest.mark.parametrize(
    "array, format, dtype",
    [
        (np.array([[0, 1], [40000, 65535]], np.uint16), "PNG", np.float32),
        (np.array([[0, 1], [40000, 65535]], np.uint16), "TIFF", np.float32),
        (np.array([[0.5, 1e6]], np.float32), "TIFF", np.float32),
        (np.array([[-5, 2**30]], np.int32), "TIFF", np.int32),
    ],
)
def test_deep_pictures_keep_native_units(root, array, format, dtype):
    got = decode_image_cell({"bytes": encoded(array, format=format)}, root)
    assert got.dtype == dtype and got.shape == (1, *array.shape)
    np.testing.assert_array_equal(got[0], array)


def test_jpeg_with_orientation_is_turned(root):
    exif = Image.Exif()
    exif[0x0112] = 6
    plain = decode_image_cell(encoded(PIXELS[..., :3], format="JPEG"), root)
    turned = decode_image_cell(encoded(PIXELS[..., :3], format="JPEG", exif=exif), root)
    np.testing.assert_array_equal(turned, np.rot90(plain, -1, (1, 2)))


def test_path_below_the_root(root):
    (root.path / "images").mkdir()
    (root.path / "images/a.png").write_bytes(encoded(PIXELS))
    assert decode_image_cell({"bytes": None, "path": "images/a.png"}, root).shape == (4, 5, 7)
    with pytest.raises(NotFoundError, match=r"images/b\.png"):
        decode_image_cell({"bytes": None, "path": "images/b.png"}, root)


@pytest.mark.parametrize(
    "path", ["../a.png", "/etc/hostname", "images/../../a.png", "a\\b", "a\0b"]
)
def test_hostile_path(root, path):
    with pytest.raises(FormatError):
        decode_image_cell({"bytes": None, "path": path}, root)


def test_path_through_a_link_out_of_the_root(tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "a.png").write_bytes(encoded(PIXELS))
    (tmp_path / "set/a.png").symlink_to(tmp_path / "a.png")
    with pytest.raises(FormatError, match="leads out"):
        decode_image_cell({"path": "a.png"}, LocalRoot(tmp_path / "set"))


@pytest.mark.parametrize("cell", [None, {"bytes": None, "path": None}, {}, 5])
def test_empty_cell(root, cell):
    with pytest.raises(FormatError, match="episode 2"):
        decode_image_cell(cell, root, camera="top", episode=2, frame=1)


def test_damaged_bytes_never_give_a_picture(root):
    data = encoded(PIXELS)
    for cut in (b"", b"nonsense", data[: len(data) // 2], data[:-20] + bytes(20)):
        with pytest.raises(DecodeError, match="camera top, episode 2, frame 1") as caught:
            decode_image_cell({"bytes": cut}, root, camera="top", episode=2, frame=1)
        assert (caught.value.camera, caught.value.episode, caught.value.frame) == ("top", 2, 1)


def test_bit_flips_give_a_typed_error_or_a_picture(root):
    data = encoded(PIXELS)
    rng = np.random.default_rng(1)
    for _ in range(300):
        flipped = bytearray(data)
        flipped[rng.integers(len(data))] ^= 1 << rng.integers(8)
        with contextlib.suppress(ReelpoolError):
            decode_image_cell({"bytes": bytes(flipped)}, root)


def test_decompression_bomb(root, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    with pytest.raises(DecodeError):
        decode_image_cell({"bytes": encoded(PIXELS)}, root)


def test_unknown_mode(root):
    with pytest.raises(UnsupportedMediaError, match="CMYK"):
        decode_image_cell(encoded(PIXELS[..., :3], "CMYK", "JPEG"), root)


def test_without_pillow(root, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(MissingExtraError, match="pip install pillow"):
        decode_image_cell({"bytes": b""}, root)


def test_depth_units():
    picture = np.array([[[1.5, 0.25]]], np.float32)
    assert scale_depth(picture, "m", "mm").tolist() == [[[1500, 250]]]
    assert scale_depth(picture, "mm", "m").dtype == np.float32
    assert scale_depth(picture, "mm", "m")[0, 0, 0] == np.float32(1.5) / np.float32(1000)
    assert scale_depth(picture, None, "mm") is picture and scale_depth(picture, "m", "m") is picture


CELL = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def image_set(root, write, **options):
    cells = [{"bytes": bytes([i]) * 100, "path": f"{i}.png"} for i in range(12)]
    feature = {"dtype": "image", "shape": [5, 7, 3], "names": ["height", "width", "channels"]}
    columns = {"cam": pa.array(cells, CELL), **rows((3, 4, 5), state=False)}
    return write(root, features={"cam": feature, **NUMBERS}, columns=columns, **options)


@pytest.mark.parametrize("row_group_size", [None, 1, 5])
@pytest.mark.parametrize("files", [[0, 0, 0], [0, 1, 1]])
@pytest.mark.parametrize("episodes", [None, [1], [0, 2]])
def test_cells_by_row(tmp_path, row_group_size, files, episodes):
    root = image_set(tmp_path / "s", write_v30, row_group_size=row_group_size, files=files)
    table = load_table(LeRobotDatasetMetadata("t/t", root), episodes)
    cells = table.cells["cam"]
    assert table.keys[0] == "cam" and len(cells) == table.num_rows
    for row in reversed(range(table.num_rows)):
        i = int(table.index[row])
        assert cells.cell(row) == {"bytes": bytes([i]) * 100, "path": f"{i}.png"}
    with pytest.raises(IndexError):
        cells.cell(table.num_rows)


def test_cells_of_v21(tmp_path):
    table = load_table(LeRobotDatasetMetadata("t/t", image_set(tmp_path / "s", write_v2)))
    assert [table.cells["cam"].cell(i)["path"] for i in (0, 3, 11)] == ["0.png", "3.png", "11.png"]


def test_cache_keeps_a_bounded_number_of_bytes(tmp_path):
    root = image_set(tmp_path / "s", write_v30, row_group_size=3)
    path = str(root / "data/chunk-000/file-000.parquet")
    cache = RowGroupCache(limit=700)
    for group in (0, 1, 2, 3, 0):
        assert len(cache.get(path, "f", group, "cam")) == 3
        assert 0 < cache.held <= 700
    first = cache.get(path, "f", 0, "cam")
    assert cache.get(path, "f", 0, "cam") is first
    with pytest.raises(NotFoundError, match="f is gone"):
        cache.get(path + "x", "f", 0, "cam")
