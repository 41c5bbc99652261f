"""The key file of encrypted texts: made once, readable by its owner only, and never replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.errors import SettingsError
from service.setup.kafka import connection_of
from service.setup.settings import load_settings
from service.setup.text_key import fingerprint_of, load_text_key, make_text_key


def test_a_key_is_made_once(tmp_path: Path) -> None:
    """A second call, on any machine that has the file, gives the same key; another file is another key."""
    path = tmp_path / "text-key"
    key = make_text_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert make_text_key(path) == load_text_key(path) == key
    assert [file.name for file in tmp_path.iterdir()] == ["text-key"]
    assert fingerprint_of(key) != fingerprint_of(make_text_key(tmp_path / "other"))
    assert fingerprint_of(key) not in path.read_text()


@pytest.mark.parametrize("content", [None, "", "no key", "ab" * 31, b"\xff" * 32])
def test_a_file_without_a_key_is_named_with_its_setting(tmp_path: Path, content: str | bytes | None) -> None:
    """A server must not start without encryption because its file is missing, empty or truncated; and nothing is overwritten."""
    path = tmp_path / "text-key"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    settings = load_settings(kafka="broker:9092", text_key_file=path)
    with pytest.raises(SettingsError, match="DRIFTLINE_TEXT_KEY_FILE"):
        connection_of(settings)
    if content is not None:
        with pytest.raises(SettingsError):
            make_text_key(path)
        assert path.read_bytes() == (content if isinstance(content, bytes) else content.encode())


def test_the_key_is_not_in_what_is_printed(tmp_path: Path) -> None:
    """Connections are logged, and so are errors with their values."""
    key = make_text_key(tmp_path / "text-key")
    connection = connection_of(load_settings(kafka="broker:9092", text_key_file=tmp_path / "text-key"))
    assert connection.text_secret == key
    assert repr(key)[2:-1] not in repr(connection)
    assert key.hex() not in repr(connection)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The command is for people, who mistype."""
    with pytest.raises(SettingsError, match="nowhere"):
        make_text_key(tmp_path / "nowhere" / "text-key")
