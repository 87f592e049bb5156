"""`storage_options`: what a user may say about remote roots, checked."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
from typing import Any
from urllib.parse import urlsplit

from . import env
from .errors import UnsupportedMediaError, make_error, redact
from .hub_calls import NETWORK_TIMEOUT_S

DATA_DOWNLOAD_LIMIT = 4 << 30  # bytes of data/ that are fetched whole
MAX_CONNECTIONS = 256

_TEXTS = ("ca_file", "proxy", "access_key_id", "secret_access_key", "session_token", "profile",
          "region", "endpoint_url")  # fmt: skip
_FLAGS = ("offline", "allow_http", "allow_private_hosts", "anonymous")
_SECRETS = ("proxy", "access_key_id", "secret_access_key", "session_token")


def _secret() -> Any:
    return dataclasses.field(default=None, repr=False)


@dataclasses.dataclass(frozen=True)
class Options:
    """`storage_options`. A pickle leaves out what is secret: the proxy (it may hold a password) and
    S3's keys. disk_cache: "auto", bytes, or 0 for none.
    """

    network_timeout: float = NETWORK_TIMEOUT_S
    offline: bool = False
    allow_http: bool = False
    max_connections: int | None = None
    disk_cache: int | str = "auto"
    data_download_limit: int = DATA_DOWNLOAD_LIMIT
    allow_private_hosts: bool = False
    ca_file: str | None = None
    proxy: str | None = _secret()
    anonymous: bool = False
    access_key_id: str | None = _secret()
    secret_access_key: str | None = _secret()
    session_token: str | None = _secret()
    profile: str | None = None
    region: str | None = None
    endpoint_url: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in _SECRETS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(dict.fromkeys(_SECRETS), **state)

    @property
    def is_offline(self) -> bool:
        """True if no socket may be opened."""
        return self.offline or env.hub_offline()


def _number(name: str, value: Any) -> int:
    """A number of bytes; the error names the key."""
    try:
        return env.parse_bytes(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"storage_options[{name!r}]: {error}") from None


def _checked(name: str, value: Any) -> Any:
    if name in _FLAGS:
        return bool(value)
    if name in _TEXTS:
        if name == "ca_file" and isinstance(value, os.PathLike):
            value = os.fspath(value)
        if value is not None and not (isinstance(value, str) and value and value.isprintable()):
            raise ValueError(
                f"storage_options[{name!r}] must be a text, without control characters"
            )
        return value
    if name == "network_timeout":
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise ValueError(f"network_timeout must be a number of seconds above 0, not {value!r}")
        return float(value)
    if name == "max_connections":
        fits = type(value) is int and 1 <= value <= MAX_CONNECTIONS
        if value is not None and not fits:
            raise ValueError(f"max_connections must be 1 to {MAX_CONNECTIONS}, not {value!r}")
        return value
    if name == "disk_cache":
        if value is False or value is None:
            return 0
        if value is True or value == "auto":
            return "auto"
    return _number(name, value)


def parse_options(options: dict | None) -> Options:
    """`storage_options` checked. TypeError for an unknown key, ValueError for a bad value; neither
    holds the value of a secret.
    """
    given = dict(options or {})
    names = {field.name for field in dataclasses.fields(Options)}
    unknown = sorted(str(key) for key in set(given) - names)
    if unknown:
        raise TypeError(
            f"storage_options has no key {unknown[0]!r}; there are {', '.join(sorted(names))}"
        )
    return Options(**{name: _checked(name, value) for name, value in given.items()})


def is_private(host: str) -> bool:
    """Whether a host is this machine or an address of a private network, by its name alone."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return address.is_private


def client_keywords(url: str, options: Options) -> dict[str, Any]:
    """Keywords of `_core.HttpClient` for a root at `url`: proxy and CA file by options, else by the
    environment. ValueError for a proxy or CA file that cannot be used.
    """
    from urllib.parse import urlsplit

    from . import __version__

    parts = urlsplit(url)
    proxies = env.proxies()
    keywords: dict[str, Any] = {
        "network_timeout": options.network_timeout,
        "allow_http": options.allow_http,
        # Who names an own server trusts where it leads; a public one may not lead inside.
        "allow_private_hosts": options.allow_private_hosts or is_private(parts.hostname or ""),
        "user_agent": f"reelpool/{__version__}",
        "proxy": options.proxy or proxies.get(parts.scheme) or proxies.get("all"),
        "no_proxy": None if options.proxy else proxies.get("no"),
        "ca_file": options.ca_file or env.ca_file(),
    }
    if keywords["ca_file"] is None and parts.scheme == "https":
        keywords["ca_file"] = certifi_file()
    elif keywords["ca_file"] is not None and not os.path.isfile(keywords["ca_file"]):
        raise ValueError(f"the CA file {redact(keywords['ca_file'])} is not there")
    return {name: value for name, value in keywords.items() if value is not None}


def certifi_file() -> str | None:
    """The certificates of the package certifi; None without it: those of the system are taken."""
    try:
        import certifi
    except ImportError:
        return None
    return certifi.where()


def check_amount(url: str, size: int, options: Options) -> None:
    """UnsupportedMediaError if so many bytes of data/ may not be copied."""
    if size > options.data_download_limit:
        raise make_error(
            UnsupportedMediaError,
            f"{url}: the Parquet files in data/ that are wanted have {size} bytes, more than the "
            f"{options.data_download_limit} that are copied\n  Raise "
            "storage_options={'data_download_limit': bytes}, or choose fewer episodes=",
            dataset=url, file="data/",
        )  # fmt: skip


def origin_of(url: str) -> str:
    """Scheme, host and port of a URL."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
