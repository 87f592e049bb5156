"""The C core. Internal: the public classes wrap it."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, final, overload

import numpy as np
from typing_extensions import Buffer

_Field = tuple[str, tuple[int, ...]]

@final
class Engine:
    def __new__(
        cls,
        paths: Sequence[bytes | tuple[bytes, bytes] | tuple[Any, ...]],
        run_first: Buffer,
        run_episode: Buffer,
        run_set: Buffer | None,
        row_index: Buffer,
        timestamp: Buffer,
        tolerance: Buffer,
        cameras: list[tuple[Any, ...]],
        columns: list[tuple[Any, ...]],
        pads: list[Any],
        fields: list[_Field],
        num_threads: int,
        prefetch_batches: int,
        shared: bool,
        keep_bytes: int,
        frame_cache_bytes: int,
        parked_bytes: int,
        index_bytes: int,
        max_decoders: int,
        substitute: bool,
        read_ahead_bytes: int,
        fetch_threads: int,
        device: tuple[int, str | None, bytes | None, int, int] | None,
        /,
    ) -> Engine: ...
    def begin(self, feed: Feed, ahead: int, /) -> None: ...
    def expect(self, rows: Buffer, /) -> None: ...
    def next(
        self, timeout_s: float, waits: Callable[[], object] | None = ..., /
    ) -> Batch | None: ...
    def get(self, rows: Buffer, timeout_s: float, times: Buffer | None = ..., /) -> Batch: ...
    def close(self) -> None: ...
    def stats(self) -> dict[str, Any]: ...
    def notices(self) -> list[tuple[str, int, int, str]]: ...
    def batch_bytes(self, n: int, /) -> int: ...

@final
class Batch:
    @property
    def rows(self) -> np.ndarray: ...
    @property
    def done(self) -> int: ...
    def __len__(self) -> int: ...
    def arrays(self) -> list[np.ndarray] | list[DeviceArray]: ...
    def substitutes(self) -> list[tuple[int, int, int, Exception]]: ...
    def lend(self) -> tuple[int, int, int, int, tuple[int, ...]]: ...

@final
class DeviceArray:
    """One key of a batch in a GPU's memory."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    def __len__(self) -> int: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def numpy(self) -> np.ndarray: ...

@final
class BlockMap:
    def __new__(cls, fd: int, bytes: int) -> BlockMap: ...
    @property
    def leases(self) -> int: ...
    def lease(
        self, fields: list[_Field], offsets: Sequence[int], n: int, /
    ) -> list[np.ndarray]: ...

@final
class Lease: ...

@final
class Feed:
    """Rows of one rank's and worker's batches. sets: (runs, seed, C, U, R, k, g, J, first_row)."""

    def __new__(
        cls,
        sets: list[tuple[Buffer, int, int, int, int, int, int, int, int]],
        epoch: int,
        start: int,
        stop: int,
        batch_size: int,
        rank: int,
        world: int,
        worker: int,
        workers: int,
        drop_last: bool,
        part: int = 0,
        /,
    ) -> Feed: ...
    @classmethod
    def of_rows(cls, rows: Buffer, batch_size: int, drop_last: bool, /) -> Feed: ...
    def next(self) -> tuple[np.ndarray, int, int] | None: ...
    @property
    def batch_size(self) -> int: ...

@final
class HttpClient:
    """Reads ranges of files by http and https; times in seconds, stall_speed in bytes/s."""

    def __new__(
        cls,
        *,
        network_timeout: float = 600,
        connect_timeout: float = 10,
        stall_time: float = 20,
        stall_speed: int = 4096,
        backoff: float = 0.25,
        backoff_max: float = 15,
        gate_margin: float = 1,
        gate_jitter: float = 5,
        probe_time: float = 5,
        max_redirects: int = 5,
        ca_file: str | None = None,
        proxy: str | None = None,
        no_proxy: str | None = None,
        allow_http: bool = False,
        allow_private_hosts: bool = False,
        token_origin: str | None = None,
        token: str | None = None,
        user_agent: str | None = None,
        s3_origin: str | None = None,
        s3_access_key: str | None = None,
        s3_secret_key: str | None = None,
        s3_session_token: str | None = None,
        s3_region: str | None = None,
        url_cache: str | None = None,
        hedge_time: float = 2,
    ) -> HttpClient: ...
    def read(
        self,
        url: str,
        offset: int,
        length: int,
        size: int = -1,
        etag: str | None = None,
        last_modified: str | None = None,
        whole: bool = False,
    ) -> bytearray: ...
    def size(
        self,
        url: str,
        size: int = -1,
        etag: str | None = None,
        last_modified: str | None = None,
    ) -> dict[str, Any]: ...
    @overload
    def get(self, url: str, limit: int, headers: Literal[False] = False) -> bytes: ...
    @overload
    def get(self, url: str, limit: int, headers: Literal[True]) -> tuple[bytes, dict[str, str]]: ...
    def stats(self) -> dict[str, Any]: ...
    def close(self) -> None: ...

@final
class NodeCache:
    """Ranges of remote files on the node's disk, shared by its processes."""

    def __new__(cls, dir: Any, max_bytes: int, *, keep_free: float = 0.1) -> NodeCache: ...
    def read(self, key: str, size: int, offset: int, length: int, /) -> bytes | None: ...
    def claim(self, key: str, size: int, offset: int, length: int, /) -> bool: ...
    def store(self, key: str, size: int, offset: int, data: Buffer, /) -> None: ...
    def release(self, key: str, size: int, offset: int, length: int, /) -> None: ...
    def stats(self) -> dict[str, Any]: ...
    def trouble(self) -> Exception | None: ...

def order_rows(
    runs: Buffer,
    seed: int,
    epoch: int,
    lanes: int,
    unit: int,
    window: int,
    visit: int,
    gop: int,
    span: int,
    out: Buffer,
    /,
) -> None: ...
def order_slice(lanes: int, p: int, q: int, rank: int, world: int, out: Buffer, /) -> int: ...
def hash64(seed: int, epoch: int, tag: int, index: int, /) -> int: ...
def video_info(path: Any, more: bool = False, /) -> dict[str, Any]: ...
def video_signature(path: Any, /) -> bytes: ...
def concat_videos(
    paths: list[bytes], out: bytes | None, later: bool = False, /
) -> list[dict[str, Any]]: ...
def video_sums(path: Any, name: Any, /) -> bytes: ...
def write_sums(path: Any, name: Any, values: Buffer, /) -> bytes: ...
def parse_sums(data: Buffer, /) -> tuple[bytes, int, int, int, bytes]: ...
def video_samples(path: Any, /) -> tuple[bytearray, bytearray]: ...
def check_pictures(
    path: Any, first: int, end: int, strict: bool, /
) -> tuple[int, list[tuple[int, str, str, int, int]]]: ...
def parquet_row_group(
    tail: Buffer, size: int, model: Buffer, at: int, ordinal: int, /
) -> tuple[int, int, bytes] | None: ...
def parquet_footer(model: Buffer, entries: list[bytes], /) -> bytes: ...
def live_objects() -> int: ...
def fork_generation() -> int: ...
def limit_cpu(tier: str, /) -> str: ...
def describe() -> dict[str, Any]: ...
def nvdec_caps(
    ordinal: int = 0, driver: str | None = None, library: str | None = None, /
) -> dict[str, tuple[int, tuple[int, int], tuple[int, int]] | None]: ...
def nvdec_probe(
    paths: tuple[str, ...],
    ordinal: int = 0,
    driver: str | None = None,
    library: str | None = None,
    /,
) -> list[tuple[str, int, int, bool, str]]: ...
def cuda_devices(
    library: str | None = None, /
) -> tuple[int, list[tuple[str, tuple[int, int], int, int]]]: ...
