/** From records to the server: a lane, its queue, its sender, signs of life. One of it serves all that is registered in a process. */
import { readFileSync } from "node:fs";
import { mkdir } from "node:fs/promises";
import { join } from "node:path";

import { keeper } from "./aside.js";
import { Client, DONE } from "./client.js";
import { TOUCH_MS, claim, claimLeft, keepInLaneOf, release, touch } from "./lanes.js";
import { Log } from "./log.js";
import { Losses } from "./losses.js";
import { Queue } from "./queue.js";
import { Recorder } from "./recorder.js";
import { Sender } from "./sender.js";
import { Voice } from "./voice.js";

/** Records that wait for the queue to be opened. */
const MAX_EARLY = 500;
/** After how long a queue that could not be opened is opened again. */
const REOPEN_MS = 60_000;
/** How often lanes are looked for that nobody owns any more: those of commands, which end before all is delivered. */
const ADOPTION_MS = 15_000;
/** The version of the plugin that this code is of. */
export const VERSION = JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8")).version;

export class Pipeline {
  /** `settings` as of config.js, `log` with info, warn and error; it begins when the one `before` it has let go of the lane. */
  constructor(settings, log, before = null) {
    this.version = VERSION;
    this.settings = settings;
    this.log = new Log(log);
    const take = (record) => this._take(record);
    // What is known of sessions under way goes on; another version may know it in another form.
    this.recorder = before?.version === VERSION ? before.recorder.handTo(settings, take) : new Recorder(settings, take);
    this._voice = new Voice(this.log);
    this._losses = new Losses(this.log, take, settings.queueMaxBytes);
    this._client = new Client(settings);
    this._queue = null;
    this._early = [];
    this._unkept = 0;
    this._reopenAt = 0;
    this._touching = null;
    this._stopped = null;
    this.isStopped = false;
    this._senders = [];
    this._work = [];
    this._faults = new Set();
    this._beat = null;
    this._adoption = null;
    this._started = null;
    this._before = before;
  }

  /** Begin, or go on, in the background. */
  start() {
    if (!this._started && Date.now() >= this._reopenAt) {
      this._started = this._start().catch((error) => {
        this.fault(error);
        this._started = null;
        this._reopenAt = Date.now() + REOPEN_MS;
      });
    }
    return this._started;
  }

  /** Keep at once what was recorded, because the process ends. */
  keepNow() {
    this.recorder.settle();
    if (this._queue) {
      this._queue.keepNow();
    } else if (this._early.length) {
      keepInLaneOf(this.settings.queueDir, this._early.splice(0));
    }
  }

  /** Wait until all that was recorded is kept on disk. */
  async kept() {
    await this._started;
    await this._queue?.kept();
  }

  /** What there is to tell of it. */
  status() {
    const { unattributed } = this.recorder;
    const trouble = this._senders.map((sender) => sender.trouble).find(Boolean) ?? null;
    const dropped = (this._queue?.counters.dropped ?? 0) + this._unkept;
    return { ...this._queue?.counters, dropped, queuedBytes: this._queue?.bytes ?? 0, unattributed, trouble };
  }

  /** Keep what was recorded, stop sending, and let go of the lane; once, because the lane may be another's afterwards. */
  stop() {
    this._stopped ??= this._stop();
    return this._stopped;
  }

  async _stop() {
    this.recorder.settle();
    await this._started;
    clearInterval(this._beat);
    clearInterval(this._adoption);
    clearInterval(this._touching);
    this._senders.forEach((sender) => sender.stop());
    await this._queue?.close();
    await Promise.all(this._work);
    if (this._queue) {
      await release(this._queue.folder);
    }
    this.isStopped = true;
  }

  /** Send a sign of life of a session; it is worth nothing later, so it is sent once. */
  async beat(session) {
    if (!this._senders.some((sender) => sender.trouble)) {
      const { outcome } = await this._client.post("/api/audit/heartbeat", { session_id: session });
      return outcome === DONE;
    }
    return false;
  }

  /** Tell of a fault of the plugin, once for each sort. */
  fault(error) {
    const words = error?.code ?? error?.message ?? String(error);
    if (!this._faults.has(words) && this._faults.size < 100) {
      this._faults.add(words);
      this.log.error(`driftline: ${words}`);
    }
  }

  async _start() {
    const { queueDir, queueMaxBytes: maxBytes, fsync, heartbeatSeconds } = this.settings;
    await this._before?.stop();
    this._before = null;
    // Node loads its HTTP client at the first use, which takes a while: now, and not while an agent is at work.
    await fetch("data:,");
    await mkdir(queueDir, { recursive: true, mode: 0o700 });
    const onFault = (error) => this.fault(error);
    const folder = await claim(queueDir);
    this._queue = await Queue.open(folder, { maxBytes, fsync, onFault, onDrop: (lost) => this._losses.add(lost) });
    this._touching = setInterval(() => touch(folder).catch(onFault), TOUCH_MS).unref();
    this._early.splice(0).forEach((record) => this._queue.append(record));
    this._work.push(this._senderOf(this._queue).run().catch(onFault));
    const adopt = async () => {
      const left = await claimLeft(queueDir);
      this._work.push(...left.map((lane) => this._sendLeft(lane, { maxBytes, fsync, onFault })));
    };
    await adopt();
    this._adoption = setInterval(() => adopt().catch(onFault), ADOPTION_MS).unref();
    if (heartbeatSeconds > 0) {
      this._beat = setInterval(() => this.recorder.busy().forEach((session) => this.beat(session)), heartbeatSeconds * 1000);
      this._beat.unref();
    }
  }

  async _sendLeft(folder, options) {
    const queue = await Queue.open(folder, options);
    const sender = this._senderOf(queue);
    await sender.run(true).catch((error) => this.fault(error));
    await queue.close();
    await release(folder);
    this._senders = this._senders.filter((one) => one !== sender);
  }

  _senderOf(queue) {
    const aside = keeper(queue.folder, (error) => this.fault(error));
    const sender = new Sender(queue, this._client, aside, this.settings, this.log, this._voice);
    sender.onDelivered = () => this._losses.settle(this._queue.bytes);
    this._senders.push(sender);
    return sender;
  }

  _take(record) {
    if (this._queue) {
      this._queue.append(record);
      return;
    }
    this._early.push(record);
    if (this._early.length > MAX_EARLY) {
      // Only a folder that cannot be written lets it come to this.
      this._early.shift();
      this._unkept += 1;
      this.fault(new Error(`nothing can be kept in ${this.settings.queueDir}: records are lost`));
    }
  }

  /** Where it keeps its queue; for tests and for words to people. */
  get folder() {
    return this._queue?.folder ?? join(this.settings.queueDir, "lane-?");
  }
}
