"""From a URL to the kind of root that reads it."""

from __future__ import annotations

from .remote_options import Options
from .remote_root import RemoteRoot
from .roots import INFO_FILE, refuse_remote


def open_remote(
    location: str, token: str | bool | None, options: Options, probe: str = INFO_FILE
) -> RemoteRoot:
    """The root at an hf://buckets, http(s):// or s3:// URL, pinned to what its folder of `probe`
    holds now.

    NotFoundError if there is no `probe`, UnsupportedMediaError for another scheme, ValueError for
    a malformed URL, and the errors of `RemoteRoot`.
    """
    scheme = location.partition(":")[0].lower()
    root: RemoteRoot
    if scheme == "hf" and location.lower().startswith("hf://buckets/"):
        from .remote_root_bucket import BucketRoot

        root = BucketRoot.of_url(location, token, options)
    elif scheme in ("http", "https"):
        from .remote_root_http import HttpRoot

        root = HttpRoot.of_url(location, options)
    elif scheme == "s3":
        from .remote_root_s3 import S3Root

        root = S3Root.of_url(location, options)
    else:
        raise refuse_remote(f"{scheme}:// root")
    return root.open(probe)
