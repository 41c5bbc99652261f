"""The states of a stage's sessions on local disk, as far as this process has read them: memory stays flat with millions of sessions."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

from rocksdict import Options, Rdict, WriteBatch, WriteOptions

from schemas.errors import StoreError

BUFFER_BYTES = 16 * 1024 * 1024
"""Writes that are kept in memory before they go to a file."""


class LocalStates:
    """Values by partition and key, in a folder that goes with the process. What is kept can always be read again from the topic."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="driftline-states-", dir=folder)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(BUFFER_BYTES)
        options.set_max_write_buffer_number(2)
        self._files = Rdict(self._folder.name, options)
        without_log = WriteOptions()
        without_log.disable_wal = True  # type: ignore[method-assign, assignment]  # an attribute, whatever the stubs say
        self._files.set_write_options(without_log)

    def get(self, partition: int, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """The values of those keys that have one."""
        wanted = list(keys)
        places: list[str | int | float | bytes | bool] = [_place(partition, key) for key in wanted]
        try:
            found = cast("list[bytes | None]", self._files[places]) if places else []
        except Exception as error:
            raise StoreError(f"{self._folder.name}: the states cannot be read: {error}", hint=_DISK) from error
        return {key: value for key, value in zip(wanted, found, strict=True) if value is not None}

    def put(self, partition: int, values: Mapping[bytes, bytes | None]) -> None:
        """Keep values; None takes a key away."""
        batch = WriteBatch(raw_mode=True)
        for key, value in values.items():
            if value is None:
                batch.delete(_place(partition, key))
            else:
                batch.put(_place(partition, key), value)
        self._files.write(batch)

    def close(self) -> None:
        """Take the folder away."""
        self._files.close()
        self._folder.cleanup()


_DISK = "Check the disk of the worker's temporary folder (TMPDIR) and start it again: the states are read from their topic."


def _place(partition: int, key: bytes) -> bytes:
    return partition.to_bytes(4, "big") + key
