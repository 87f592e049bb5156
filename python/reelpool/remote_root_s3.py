"""A dataset in an S3 bucket, or in one of a server that speaks S3."""

from __future__ import annotations

import configparser
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote_plus, urlencode, urlsplit
from xml.etree import ElementTree

from . import env
from .errors import S3_ADVICE, AuthError, NotFoundError, RemoteError, make_error, redact
from .remote_manifest import Entry, make_entry
from .remote_options import Options, client_keywords, origin_of
from .remote_root import RemoteRoot, RootUrl
from .roots import check_path

PAGE_BYTES = 8 << 20
MAX_PAGES = 10_000
REGION = "us-east-1"

_URL = re.compile(r"(?i:s3)://([A-Za-z0-9][\w.-]{1,253}[A-Za-z0-9])(?:/([^?#]*))?", re.ASCII)


class Keys(NamedTuple):
    """S3 credentials; never in a message."""

    access: str
    secret: str
    session: str | None = None

    def __repr__(self) -> str:
        return "Keys(***)"


def _profile(name: str | None) -> dict[str, str]:
    """What AWS's files say of a profile (None: AWS_PROFILE, else default); {} where nothing."""
    wanted = name or env.aws("PROFILE") or "default"
    found: dict[str, str] = {}
    for variable, file, section in (
        ("CONFIG_FILE", "config", wanted if wanted == "default" else f"profile {wanted}"),
        ("SHARED_CREDENTIALS_FILE", "credentials", wanted),
    ):
        path = Path(env.aws(variable) or f"~/.aws/{file}").expanduser()
        parser = configparser.RawConfigParser(default_section="\0", strict=False)
        try:
            parser.read_string(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, configparser.Error):
            continue  # none, or not for us
        if parser.has_section(section):
            found |= dict(parser.items(section))
    if name is not None and not found:
        raise ValueError(f"storage_options: there is no AWS profile {name!r}")
    return found


def find_keys(options: Options) -> Keys | None:
    """The credentials to sign with: those of `storage_options`, of its profile, of the environment,
    of AWS's files; None with `anonymous`. AuthError where there are none, ValueError for half ones.
    """
    if options.anonymous:
        return None
    given = (options.access_key_id, options.secret_access_key)
    if any(given):
        if not all(given):
            raise ValueError("storage_options: access_key_id and secret_access_key go together")
        return Keys(str(given[0]), str(given[1]), options.session_token)
    variables = (env.aws("ACCESS_KEY_ID"), env.aws("SECRET_ACCESS_KEY"))
    if options.profile is None and all(variables):
        return Keys(str(variables[0]), str(variables[1]), env.aws("SESSION_TOKEN"))
    stored = _profile(options.profile)
    pair = (stored.get("aws_access_key_id"), stored.get("aws_secret_access_key"))
    if all(pair):
        return Keys(str(pair[0]), str(pair[1]), stored.get("aws_session_token") or None)
    raise make_error(
        AuthError,
        "no S3 credentials: none in storage_options, the environment or AWS's files\n"
        "  Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY     Or, for a public bucket: "
        "storage_options={'anonymous': True}",
    )


class S3Url(RootUrl):
    """Of a folder in a bucket."""

    __slots__ = ()
    auth_advice = S3_ADVICE


class S3Root(RemoteRoot):
    """`bucket`, and `prefix`: the folder in it that holds meta/; "" for the top."""

    path_type = S3Url

    def __init__(self, bucket: str, prefix: str, options: Options) -> None:
        self.bucket, self.prefix = bucket, prefix
        own = options.profile is not None or env.aws("PROFILE") is not None
        stored = {} if options.anonymous or options.access_key_id else _profile(options.profile)
        self.region = (
            options.region or env.aws("REGION") or env.aws("DEFAULT_REGION")
            or stored.get("region") or REGION
        )  # fmt: skip
        endpoint = options.endpoint_url or env.aws("ENDPOINT_URL_S3") or env.aws("ENDPOINT_URL")
        if endpoint is None and own:
            endpoint = stored.get("endpoint_url")
        self.base = _base(bucket, self.region, endpoint)
        super().__init__(f"{self.base}/{quote(prefix)}" if prefix else self.base, options)

    @classmethod
    def of_url(cls, url: str, options: Options) -> S3Root:
        """The root at s3://BUCKET[/PREFIX]. ValueError for a malformed URL."""
        form = _URL.fullmatch(url.rstrip("/"))
        prefix = (form.group(2) or "") if form else ""
        parts = prefix.split("/") if prefix else []
        if form is None or not url.isprintable() or {"", ".", ".."} & set(parts):
            raise ValueError(f"root={redact(url)!r}: use s3://BUCKET[/PREFIX]")
        return cls(form.group(1), prefix, options)

    def _keywords(self) -> dict[str, Any]:
        keywords = client_keywords(self.url, self.options)
        keywords |= {"s3_origin": origin_of(self.base), "s3_region": self.region}
        keys = find_keys(self.options)
        if keys is not None:
            keywords |= {"s3_access_key": keys.access, "s3_secret_key": keys.secret,
                         "s3_session_token": keys.session}  # fmt: skip
        return keywords

    def _file_url(self, rel: str) -> str:
        return f"{self.url}/{quote(rel)}"

    # -- the list of objects --

    def _list(self, folder: str) -> dict[str, Entry]:
        below = f"{self.prefix}/" if self.prefix else ""
        query = {"list-type": "2", "encoding-type": "url", "prefix": f"{below}{folder}/"}
        found: dict[str, Entry] = {}
        for _ in range(MAX_PAGES):
            page = self._page(urlencode(query, quote_via=quote))
            for key, entry in _objects(page, self.url):
                if key.startswith(below) and not key.endswith("/"):
                    found[check_path(key[len(below) :], self.url)] = entry
            after = _text(page, "NextContinuationToken")
            if _text(page, "IsTruncated") != "true" or after is None:
                return found
            if query.get("continuation-token") == after:
                break
            query["continuation-token"] = after
        raise make_error(RemoteError, f"the list of {self.url} has no end", dataset=self.url)

    def _page(self, query: str) -> ElementTree.Element:
        url = f"{self.base}?{query}" if urlsplit(self.base).path else f"{self.base}/?{query}"
        try:
            body = self.client().get(url, PAGE_BYTES)
        except (AuthError, NotFoundError, RemoteError) as error:
            raise self._explained(error) from None
        if b"<!DOCTYPE" not in body and b"<!ENTITY" not in body:
            try:
                page = ElementTree.fromstring(body)
                if _name(page) == "ListBucketResult":
                    return page
            except ElementTree.ParseError:
                pass  # a page of something else
        raise make_error(
            RemoteError,
            f"{origin_of(self.base)} answers with something that is no list of S3 objects\n"
            "  Check endpoint_url",
            dataset=self.url,
        )

    def _explained(self, error: Any) -> BaseException:
        """An error of the first request, with what to do about it."""
        if isinstance(error, TimeoutError):
            return error
        where = f"bucket {self.bucket} at {origin_of(self.base)}"
        status = error.status
        if isinstance(error, NotFoundError):
            text = f"there is no {where}\n  Check the bucket's name, region= and endpoint_url="
        elif isinstance(error, AuthError):
            kind = "without credentials" if self.options.anonymous else "with these credentials"
            text = (
                f"{where} may not be listed {kind} ({status})\n  Check AWS_ACCESS_KEY_ID, "
                "AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, or profile=, region=, anonymous= of "
                "storage_options; listing needs s3:ListBucket, reading s3:GetObject"
            )
        elif status in (301, 307, 400):
            text = (
                f"{where} answered {status}: it may be of another region than {self.region}\n"
                "  Set AWS_REGION, or storage_options={'region': ...}"
            )
        else:
            return error
        return make_error(type(error), text, dataset=self.url, status=status)

    def fetch_command(self, missing: Sequence[str]) -> str:
        """The command that copies the dataset to this machine."""
        place = f"{self.bucket}/{self.prefix}".rstrip("/")
        return f"aws s3 sync s3://{place} DIR     then pass root=DIR"


def _base(bucket: str, region: str, endpoint: str | None) -> str:
    """URL of a bucket: by its own host name where S3 has one for it."""
    if not re.fullmatch(r"[\w-]{1,64}", region, re.ASCII):
        raise ValueError(f"region={region!r} is no region of S3")
    if endpoint is None and "." not in bucket:
        return f"https://{bucket}.s3.{region}.amazonaws.com"
    place = (endpoint or f"https://s3.{region}.amazonaws.com").rstrip("/")
    parts = urlsplit(place)
    odd = parts.query or parts.fragment or "@" in parts.netloc or not parts.hostname
    if parts.scheme not in ("http", "https") or odd:
        raise ValueError(f"endpoint_url={redact(place)!r}: use http(s)://HOST[:PORT]")
    return f"{place}/{bucket}"


def _name(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _text(element: ElementTree.Element, name: str) -> str | None:
    return next((child.text for child in element if _name(child) == name), None)


def _objects(page: ElementTree.Element, where: str) -> list[tuple[str, Entry]]:
    """(key, entry) of a page. RemoteError for an object without size or ETag."""
    encoded = _text(page, "EncodingType") == "url"
    found = []
    for item in page:
        if _name(item) != "Contents":
            continue
        key, size, etag = (_text(item, name) or "" for name in ("Key", "Size", "ETag"))
        number = int(size) if size.isascii() and size.isdigit() and len(size) < 19 else None
        entry = make_entry(number, f"etag-{etag.strip(chr(34))}")
        if entry is None or not key:
            raise make_error(RemoteError, f"{where} lists an object without size or ETag")
        found.append((unquote_plus(key) if encoded else key, entry))
    return found
