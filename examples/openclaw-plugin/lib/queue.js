/**
 * A queue on disk that a kill cannot harm: files of lines that are only ever appended to, and a place up to which they were delivered.
 *
 * 1. `append` returns at once. One writer takes what has gathered and appends it; with `fsync` it is forced onto the disk before it
 *    counts as kept. A process always begins a new file, so that a line torn by a kill stays the last of its file and is skipped.
 * 2. `window` reads on from the place; `commit` moves it. A kill between delivery and commit delivers a window again, under the same
 *    ids, which the server counts once.
 * 3. Beyond `maxBytes` the oldest file is dropped, and `onDrop` is told what was lost of each session.
 * 4. Each append has its place in its file before it is begun. `keepNow` writes what is under way into the same place: a process that
 *    ends in the middle of an append leaves each line once.
 */
import { closeSync, constants, openSync, writeSync } from "node:fs";
import { mkdir, open, readFile, readdir, rename, stat, unlink, writeFile } from "node:fs/promises";
import { join } from "node:path";

import { lostOf, readLines } from "./lines.js";

/** Names of the files of a queue. */
export const SEGMENT = /^(\d{10})\.jsonl$/;
const WINDOW_BYTES = 1024 * 1024;
const MAX_PENDING_BYTES = 16 * 1024 * 1024;
const RETRY_MS = 5000;
/** Appends know their places, and two that write the same do so into one. */
const WRITING = constants.O_WRONLY | constants.O_CREAT;

export class Queue {
  /** Use `Queue.open`. */
  constructor(folder, { maxBytes, fsync, onDrop = () => {}, onFault = () => {} }) {
    this.folder = folder;
    this.counters = { delivered: 0, dropped: 0, refused: 0 };
    this._options = { maxBytes, fsync, onDrop, onFault };
    this._segmentBytes = Math.max(16 * 1024, Math.floor(maxBytes / 8));
    this._segments = new Map();
    this._cursor = { segment: 0, offset: 0 };
    this._pending = [];
    this._pendingBytes = 0;
    this._waiting = [];
    this._underWay = null;
    this._file = null;
    this._active = 0;
    this._writing = null;
    this._closed = false;
    this._turn = Promise.resolve();
  }

  /** The queue in a folder, made where there is none. */
  static async open(folder, options) {
    const queue = new Queue(folder, options);
    await mkdir(folder, { recursive: true, mode: 0o700 });
    for (const name of (await readdir(folder)).sort()) {
      const match = SEGMENT.exec(name);
      if (match) {
        queue._segments.set(Number(match[1]), (await stat(join(folder, name))).size);
      }
    }
    try {
      const { counters, cursor } = JSON.parse(await readFile(join(folder, "state.json"), "utf8"));
      Object.assign(queue.counters, counters);
      queue._cursor = cursor;
    } catch {
      // Nothing was delivered yet; should the file be damaged, what is there is delivered again.
    }
    queue._active = Math.max(0, ...queue._segments.keys(), queue._cursor.segment);
    return queue;
  }

  /** Bytes that are kept and not delivered, about. */
  get bytes() {
    const sizes = [...this._segments.values()].reduce((sum, size) => sum + size, 0);
    return Math.max(0, sizes - (this._segments.has(this._cursor.segment) ? this._cursor.offset : 0)) + this._pendingBytes;
  }

  /** Append a record. */
  append(record) {
    let line;
    try {
      line = Buffer.from(`${JSON.stringify(record)}\n`);
    } catch (error) {
      this._options.onFault(error);
      return;
    }
    this._pending.push(line);
    this._pendingBytes += line.length;
    // Only a disk that takes nothing lets it come to this.
    while (this._pendingBytes > MAX_PENDING_BYTES) {
      this._pendingBytes -= this._pending.shift().length;
      this.counters.dropped += 1;
    }
    this._writing ??= this._write();
  }

  /** Wait until all that was appended is kept. */
  async kept() {
    await this._writing;
  }

  /** Keep at once what is not kept yet, because the process ends; what was being written is written into its place once more. */
  keepNow() {
    const { bytes, place } = this._underWay ?? { bytes: Buffer.alloc(0), place: null };
    const more = Buffer.concat(this._pending.splice(0));
    this._pendingBytes = 0;
    const { segment, offset } = place ?? this._nextPlace(bytes.length + more.length);
    if (bytes.length + more.length > 0) {
      const file = openSync(this._pathOf(segment), WRITING, 0o600);
      writeSync(file, Buffer.concat([bytes, more]), 0, bytes.length + more.length, offset);
      closeSync(file);
    }
  }

  /** Wait until there is something to deliver, or the queue is closed. */
  async waitForMore() {
    if (this._closed || this._hasMore()) {
      return;
    }
    await new Promise((resolve) => this._waiting.push(resolve));
  }

  /** The next records, oldest first, and the place after them. */
  window() {
    return this._exclusively(async () => {
      let end = this._cursor;
      for (const [segment, size] of [...this._segments].sort(([one], [other]) => one - other)) {
        const offset = segment === this._cursor.segment ? this._cursor.offset : 0;
        if (segment < this._cursor.segment || offset >= size) {
          continue;
        }
        const found = await this._read(segment, offset, size);
        if (found.records.length) {
          return found;
        }
        end = found.end;
      }
      return { records: [], end };
    });
  }

  /** Everything before `end` was delivered, or set aside. */
  commit(end, { delivered = 0, refused = 0 } = {}) {
    return this._exclusively(async () => {
      this.counters.delivered += delivered;
      this.counters.refused += refused;
      if (end.segment > this._cursor.segment || (end.segment === this._cursor.segment && end.offset > this._cursor.offset)) {
        this._cursor = end;
      }
      await this._saveState();
      for (const [segment, size] of [...this._segments]) {
        const isDone = segment < this._cursor.segment || (segment === this._cursor.segment && this._cursor.offset >= size);
        if (isDone && (segment !== this._active || !this._file)) {
          await this._remove(segment);
        }
      }
    });
  }

  /** Keep what was appended, and stop. */
  async close() {
    this._closed = true;
    await this._writing;
    await this._turn;
    await this._file?.close();
    this._file = null;
    this._wake();
  }

  _hasMore() {
    const { segment: at, offset } = this._cursor;
    return [...this._segments].some(([segment, size]) => (segment === at ? size > offset : segment > at && size > 0));
  }

  _wake() {
    for (const resolve of this._waiting.splice(0)) {
      resolve();
    }
  }

  /** One after another: nothing is dropped while it is read, and no state is saved twice at once. */
  _exclusively(work) {
    const result = this._turn.then(work);
    this._turn = result.catch(() => {});
    return result;
  }

  async _write() {
    // What comes within the same turn of the event loop is one append.
    await new Promise(setImmediate);
    while (this._pending.length) {
      const lines = this._pending.splice(0, this._countOfNext());
      const bytes = Buffer.concat(lines);
      this._pendingBytes -= bytes.length;
      this._underWay = { bytes, place: null };
      try {
        await this._exclusively(() => this._appended(this._underWay));
        this._underWay = null;
        this._wake();
      } catch (error) {
        this._options.onFault(error);
        this._underWay = null;
        this._pending = [...lines, ...this._pending];
        this._pendingBytes += bytes.length;
        if (this._closed) {
          break;
        }
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS).unref());
      }
    }
    this._writing = null;
  }

  /** How many of the lines that wait are appended at once: what fits into a file, and one at least. */
  _countOfNext() {
    let bytes = 0;
    const beyond = this._pending.findIndex((line, index) => (bytes += line.length) > this._segmentBytes && index > 0);
    return beyond < 0 ? this._pending.length : beyond;
  }

  /** Where an append of this length goes: behind what is there, or into a file of its own. */
  _nextPlace(length) {
    const offset = this._segments.get(this._active);
    const isFull = !this._file || offset === undefined || offset + length > this._segmentBytes;
    return isFull ? { segment: this._active + 1, offset: 0 } : { segment: this._active, offset };
  }

  async _appended(underWay) {
    const { bytes } = underWay;
    const { segment, offset: place } = this._nextPlace(bytes.length);
    underWay.place = { segment, offset: place };
    if (segment !== this._active) {
      await this._file?.close();
      this._file = null;
      // Somebody may have tidied up.
      await mkdir(this.folder, { recursive: true, mode: 0o700 });
      this._file = await open(this._pathOf(segment), WRITING, 0o600);
      this._active = segment;
      this._segments.set(segment, 0);
    }
    try {
      await writeAll(this._file, bytes, place);
      if (this._options.fsync) {
        await this._file.datasync();
      }
    } catch (error) {
      // Half a line may stand there: what is written next begins a file of its own.
      this._segments.set(this._active, (await this._file.stat()).size);
      await this._file.close();
      this._file = null;
      throw error;
    }
    this._segments.set(this._active, place + bytes.length);
    await this._dropOldest();
  }

  async _dropOldest() {
    while (this.bytes - this._pendingBytes > this._options.maxBytes && this._segments.size > 1) {
      const oldest = Math.min(...this._segments.keys());
      const offset = oldest === this._cursor.segment ? this._cursor.offset : 0;
      const { records } = await this._read(oldest, offset, this._segments.get(oldest), Infinity);
      await this._remove(oldest);
      this.counters.dropped += records.length;
      this._cursor = { segment: oldest + 1, offset: 0 };
      await this._saveState();
      if (records.length) {
        this._options.onDrop(lostOf(records));
      }
    }
  }

  _read(segment, offset, size, most = WINDOW_BYTES) {
    const isWritten = segment === this._active && this._file !== null;
    return readLines(this._pathOf(segment), { segment, offset, size, most, isWritten });
  }

  async _remove(segment) {
    await unlink(this._pathOf(segment)).catch(() => {});
    this._segments.delete(segment);
  }

  async _saveState() {
    const path = join(this.folder, "state.json");
    await writeFile(`${path}.new`, JSON.stringify({ cursor: this._cursor, counters: this.counters }), { mode: 0o600 });
    await rename(`${path}.new`, path);
  }

  _pathOf(segment) {
    return join(this.folder, `${String(segment).padStart(10, "0")}.jsonl`);
  }
}

/** Write all of it: a disk that is nearly full may take a part. */
async function writeAll(file, bytes, place) {
  for (let done = 0; done < bytes.length; ) {
    const { bytesWritten } = await file.write(bytes, done, bytes.length - done, place + done);
    done += bytesWritten;
  }
}
