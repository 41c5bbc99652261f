"""Files of exchanges for an import: profiled one by one, and then read accordingly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from audit.redaction import Redactor
from schemas.errors import InputError
from schemas.records import Exchange
from service.write.imports.input_files import Found, files_below, require
from streams.sources.exchange_files.mapping import Fields
from streams.sources.exchange_files.profiling import PROFILED_ROWS, FileProfile, Layout, profile_file
from streams.sources.exchange_files.reading import Labels, read_exchange_file
from streams.sources.exchange_files.rows import PATTERNS, WORDS, unlike_exchanges
from streams.sources.exchange_files.span_exports import LANGFUSE, LANGFUSE_TRACES
from streams.sources.exchange_files.tables import EXCHANGES
from streams.sources.source import FileSort, FileSource, LineFault, Reading, ReadingContext, SessionRange

NAME = "exchanges"
SORT = FileSort(f"exchanges as {WORDS}", PATTERNS, unlike_exchanges)
SHOWN = 10
"""Exchanges that a dry run shows of a file."""


@dataclass
class Source:
    """The files at some paths by their first looks, those in folders that are something else, and how many hold other tables of ours."""

    looks: dict[Path, FileProfile] = field(default_factory=dict)
    refused: list[InputError] = field(default_factory=list)
    other_tables: int = 0

    def found(self) -> Found:
        """Return the files that can be read, and the refused ones."""
        return Found(list(self.looks), self.refused)

    def layouts(self, redactor: Redactor) -> dict[Path, Layout]:
        """Return how each file is read; InputError where a required field has no column, or two files tell of the same traces."""
        exports = {one.export for one in self.looks.values()}
        if {LANGFUSE, LANGFUSE_TRACES} <= exports:
            raise InputError(
                "traces and observations of Langfuse tell of the same exchanges", hint="Import the files of one of the two."
            )
        return {path: one.layout(redactor) for path, one in self.looks.items()}


def looked_at(paths: Iterable[Path], given: Fields | None, redactor: Redactor, *, whole: bool = True) -> Source:
    """Look at the files at the paths, by the rules of `service.write.imports.input_files`.

    InputError for a refused path, or if no file is left. Not `whole`: a table may lack columns of required fields.
    """
    looked, paths = Source(), list(paths)
    files = dict.fromkeys(file for path in paths for file in (files_below(path, PATTERNS) if path.is_dir() else [path]))
    for file in files:
        is_named = file in paths
        try:
            require(file, SORT)
            found = profile_file(file, given)
            if found.own_table not in (None, EXCHANGES) and not is_named:
                looked.other_tables += 1
                continue
            if whole:
                found.layout(redactor)
        except InputError as error:
            if is_named:
                raise
            looked.refused.append(error)
        else:
            looked.looks[file] = found
    if not looked.looks:
        raise looked.refused[0] if looked.refused else InputError("no file with exchanges", hint=f"Give {WORDS}.")
    return looked


def exchange_source(layouts: Mapping[Path, Layout], labels: Labels) -> FileSource:
    """Return the source that reads each file by its layout; `labels` are the attributes of spans that tell each label."""

    def read(path: Path, context: ReadingContext, _sessions: SessionRange) -> Iterator[Reading]:
        return read_exchange_file(path, context, layouts[path], labels)

    return FileSource(name=NAME, description=SORT.description, patterns=SORT.patterns, unlike=SORT.unlike, read=read)


def exchanges_in(layouts: Mapping[Path, Layout], context: ReadingContext, labels: Labels) -> Iterator[Exchange]:
    """Return the exchanges of files as an import would take them, one after the other."""
    for path, layout in layouts.items():
        for reading in read_exchange_file(path, context, layout, labels):
            yield from reading.exchanges


def first_exchanges(
    path: Path, context: ReadingContext, layout: Layout, labels: Labels
) -> tuple[Sequence[Exchange], Sequence[LineFault]]:
    """Return the first exchanges as an import would take them, and the faults among the rows that were read for them."""
    exchanges: list[Exchange] = []
    faults: list[LineFault] = []
    for reading in read_exchange_file(path, context, layout, labels, rows=PROFILED_ROWS):
        exchanges += islice(reading.exchanges, SHOWN - len(exchanges))
        faults += reading.faults
    return exchanges, faults
