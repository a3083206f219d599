"""A place elsewhere for snapshots: objects under keys, in S3, GCS or Azure, through obstore.

Invariants:
- What an object is changes only where ``replace`` is asked to, if it still is what was read; all
  else is written under keys that nobody reads yet, or holds the same bytes.
- Nothing of obstore leaves this module: what is not there is None, everything else that the world
  does is PlaceUnavailable, and nothing is known of what was written then.
- Whether the server keeps to conditions is tried before it is relied on.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from foldlog.errors import PlaceUnavailable, Usage

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "https")

CONNECT_SECONDS, SILENT_SECONDS, WHOLE_SECONDS = 5, 20, 600
"""How long a server may take to be reached, between two pieces of an answer, and for all of it."""

RETRY_SECONDS, RETRIES_MAX = 15, 4
"""A question is asked again so long and so often; who waits for more asks anew by himself."""

CHUNK_BYTES = 1 << 20

CONDITIONAL = "conditional"
"""An object that tells whether the server keeps to conditions."""

_NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound|bucket does not exist")


@dataclass(frozen=True, slots=True)
class Found:
    """An object's bytes, and what ``replace`` compares."""

    data: bytes
    tag: str


class Place(Protocol):
    """Where objects lie under keys. Any thread may call any method; PlaceUnavailable of any."""

    @property
    def url(self) -> str:
        """What it is called."""

    def read(self, key: str) -> Found | None:
        """A small object, or None."""

    def chunks(self, key: str) -> Iterator[bytes] | None:
        """An object's bytes in pieces, or None."""

    def write(self, key: str, data: bytes | Path) -> None:
        """Put bytes, or those of a file, under a key; durable on return. OSError of that file."""

    def replace(self, key: str, data: bytes, tag: str | None) -> bool:
        """Put bytes under a key if what is there has this tag (None: nothing is); whether it had.

        After an outage it may have been done although False comes: read it again.
        """

    def sizes(self, prefix: str) -> Iterator[tuple[str, int]]:
        """The keys below a prefix, and how many bytes each has."""

    def remove(self, keys: Iterable[str]) -> None:
        """Take objects away; those that are not there are no error."""


def check_url(url: str) -> None:
    """Usage unless this names a place."""
    scheme, colon, rest = url.partition("://")
    if not colon or scheme not in SCHEMES or not rest.strip("/"):
        raise Usage(
            f"{url!r} names no place for snapshots: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or"
            " az://CONTAINER/PREFIX (a folder is named by FOLDLOG_SNAPSHOT_DIR)"
        )


def open_place(url: str) -> Place:
    """The place that a URL names; Usage if it names none, or obstore is not installed.

    Nothing is asked yet. Credentials and endpoints are those of obstore: AWS_*, GOOGLE_*, AZURE_*.
    """
    check_url(url)
    try:
        from obstore.store import from_url
    except ImportError:
        raise Usage(f"{url} needs obstore: pip install 'foldlog[remote]'") from None
    seconds = timedelta(seconds=RETRY_SECONDS)
    options: dict[str, Any] = {
        "client_options": {
            "connect_timeout": f"{CONNECT_SECONDS}s",
            "read_timeout": f"{SILENT_SECONDS}s",
            "timeout": f"{WHOLE_SECONDS}s",
            # Options of our own would hide what the environment says of this one.
            "allow_http": os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true"),
        },
        "retry_config": {"max_retries": RETRIES_MAX, "retry_timeout": seconds},
    }
    try:
        return Objects(url, from_url(url, **options))
    except Exception as error:  # its own kinds have no common base
        raise Usage(f"{url} cannot be used: {_first_line(error)}") from error


class Objects:
    """A Place in an object store."""

    def __init__(self, url: str, store: ObjectStore) -> None:
        self.url = url
        self._store = store
        self._is_tried = False

    def read(self, key: str) -> Found | None:
        """See Place.read."""
        import obstore

        with self._told():
            try:
                found = obstore.get(self._store, key)
                return Found(bytes(found.bytes()), found.meta["e_tag"] or "")
            except FileNotFoundError as error:
                self._check_bucket(error)
                return None

    def chunks(self, key: str) -> Iterator[bytes] | None:
        """See Place.chunks."""
        import obstore

        with self._told():
            try:
                found = obstore.get(self._store, key)
            except FileNotFoundError as error:
                self._check_bucket(error)
                return None
        return self._chunks(iter(found.stream(min_chunk_size=CHUNK_BYTES)))

    def _chunks(self, stream: Iterator[Any]) -> Iterator[bytes]:
        while True:
            with self._told():
                chunk = next(stream, None)
            if chunk is None:
                return
            yield bytes(chunk)

    def write(self, key: str, data: bytes | Path) -> None:
        """See Place.write."""
        import obstore

        if isinstance(data, Path):
            data.stat()  # a file that is gone is no fault of the place
        with self._told():
            obstore.put(self._store, key, data)

    def replace(self, key: str, data: bytes, tag: str | None) -> bool:
        """See Place.replace."""
        if not self._is_tried:
            self._try_conditions()
        return self._replaced(key, data, tag)

    def _replaced(self, key: str, data: bytes, tag: str | None) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with self._told():
            try:
                obstore.put(
                    self._store, key, data, mode="create" if tag is None else {"e_tag": tag}
                )
            except (AlreadyExistsError, PreconditionError):
                return False
            return True

    def _try_conditions(self) -> None:
        # The first may make it; nothing may ever make it again, nor change it under another tag.
        self._replaced(CONDITIONAL, b"", None)
        if self._replaced(CONDITIONAL, b"", None) or self._replaced(CONDITIONAL, b"", '"none"'):
            what = "it writes whatever the condition, so two writers could undo each other's work"
            raise PlaceUnavailable(f"{self.url}: {what}; use a server with conditional writes")
        self._is_tried = True

    def sizes(self, prefix: str) -> Iterator[tuple[str, int]]:
        """See Place.sizes."""
        import obstore

        with self._told():
            for rows in obstore.list(self._store, prefix):
                for row in rows:
                    yield row["path"], row["size"]

    def remove(self, keys: Iterable[str]) -> None:
        """See Place.remove."""
        import obstore

        with self._told():
            for key in keys:
                with contextlib.suppress(FileNotFoundError):
                    obstore.delete(self._store, key)

    def _check_bucket(self, error: Exception) -> None:
        if _NO_BUCKET.search(str(error)):
            raise PlaceUnavailable(f"{self.url}: there is no such bucket; make it, or name another")

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """What obstore raises, as PlaceUnavailable."""
        try:
            yield
        except PlaceUnavailable:
            raise
        except Exception as error:  # its own kinds have no common base
            raise PlaceUnavailable(f"{self.url}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:500] or type(error).__name__
