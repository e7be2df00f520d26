// One socket per tab (/ws/v1/live). Channels are read by cursor, so a lost connection costs time and never an item:
// watchers drop what comes twice and fetch what is missing by REST.
import { CloseCode } from "./close-codes";

export interface Frame {
  ch: string;
  from: number;
  to: number;
  items: unknown[];
  [state: string]: unknown;
}

export interface Watcher {
  /** Number of the last item that this watcher has, -1 for "from now on"; read again at every reconnect. */
  cursor(): number;
  frame(frame: Frame): void;
  /** Items that the server left out; fetch them by REST. lost: they were never stored. */
  gap?(from: number, to: number, lost: boolean): void;
  error?(code: string, message: string): void;
  /** Not subscribed while the tab is hidden; then resumed at its cursor. */
  heavy?: boolean;
}

/** ended: the session is over. refused: the server does not accept this page; only a reload helps. */
export type Status = "connecting" | "live" | "stale" | "ended" | "refused";

const BACKOFF_S = [0.5, 1, 2, 4, 8, 15];
const STALE_MS = 5_000; // the server sends a frame on every socket every 2 s
const DEAD_MS = 12_000;
const PING_MS = 15_000;
const HIDDEN_MS = 30_000;

class Live extends EventTarget {
  status: Status = "connecting";
  receivedAt = Date.now();
  retryAt = 0;
  private failures = 0;
  private socket: WebSocket | undefined;
  private timer = 0;
  private readonly watchers = new Map<string, Set<Watcher>>();
  private sleeping = false;

  start(): void {
    if (this.timer) return;
    this.timer = window.setInterval(() => this.check(), 500);
    window.setInterval(() => this.send({ op: "ping" }), PING_MS);
    addEventListener("online", () => this.retryNow());
    addEventListener("pageshow", () => this.retryNow());
    document.addEventListener("visibilitychange", () => this.visibility());
    this.connect();
  }

  /** Watch a channel; returns a function that stops it. */
  watch(ch: string, watcher: Watcher): () => void {
    const watchers = this.watchers.get(ch) ?? new Set();
    this.watchers.set(ch, watchers.add(watcher));
    this.subscribe(ch);
    this.start();
    return () => {
      watchers.delete(watcher);
      if (watchers.size) return;
      this.watchers.delete(ch);
      this.send({ op: "unsub", ch });
    };
  }

  retryNow(): void {
    if (this.over) return;
    const open = this.socket && this.socket.readyState <= WebSocket.OPEN;
    if (open && Date.now() - this.receivedAt < STALE_MS) return;
    this.connect();
  }

  /** Connect again in a new session. */
  reconnect(): void {
    this.become("stale");
    this.connect();
  }

  private get over(): boolean {
    return this.status === "ended" || this.status === "refused";
  }

  private connect(): void {
    this.socket?.close();
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const socket = new WebSocket(`${scheme}://${location.host}/ws/v1/live`);
    this.socket = socket;
    this.retryAt = 0;
    const openedAt = Date.now();
    socket.onopen = () => {
      for (const ch of this.watchers.keys()) this.subscribe(ch);
      this.send({ op: "ping" });
      this.notify();
    };
    socket.onmessage = (event: MessageEvent<string>) => {
      if (socket === this.socket) this.receive(event.data);
    };
    socket.onclose = (event) => {
      if (socket === this.socket) this.closed(event.code, Date.now() - openedAt);
    };
  }

  private closed(code: number, lastedMs: number): void {
    this.socket = undefined;
    if (code === CloseCode.unauthorized) return this.become("ended");
    if (code === CloseCode.forbidden || code === CloseCode.noSuchSocket) return this.become("refused");
    if (lastedMs > 10_000) this.failures = 0; // not at the first message: a server may accept and then fail, each time
    const base = BACKOFF_S[Math.min(this.failures, BACKOFF_S.length - 1)] ?? 15;
    this.failures += 1;
    this.retryAt = Date.now() + base * 1000 * (0.7 + 0.6 * Math.random());
    this.notify();
  }

  private receive(text: string): void {
    this.receivedAt = Date.now();
    if (this.status !== "live") this.become("live");
    const frame = JSON.parse(text) as Frame & { op?: string; gap?: { from: number; to: number; lost?: boolean }; error?: { code: string; message: string } };
    if (frame.op) return;
    for (const watcher of this.watchers.get(frame.ch) ?? []) {
      if (frame.error) watcher.error?.(frame.error.code, frame.error.message);
      else if (frame.gap) watcher.gap?.(frame.gap.from, frame.gap.to, frame.gap.lost ?? false);
      else if (frame.items) watcher.frame(frame);
    }
  }

  private check(): void {
    const silence = Date.now() - this.receivedAt;
    if (this.over) return;
    if (silence > STALE_MS && this.status !== "stale") this.become("stale");
    if (this.socket && silence > DEAD_MS && !document.hidden) {
      this.receivedAt = Math.max(this.receivedAt, Date.now() - STALE_MS); // one try per period
      this.connect();
    }
    if (!this.socket && this.retryAt && Date.now() >= this.retryAt) this.connect();
    if (this.status === "stale") this.notify();
  }

  private visibility(): void {
    if (document.hidden) {
      window.setTimeout(() => document.hidden && this.sleep(true), HIDDEN_MS);
    } else {
      this.sleep(false);
      this.retryNow();
    }
  }

  private sleep(sleeping: boolean): void {
    if (this.sleeping === sleeping) return;
    this.sleeping = sleeping;
    for (const [ch, watchers] of this.watchers) {
      if (![...watchers].every((watcher) => watcher.heavy)) continue;
      if (sleeping) this.send({ op: "unsub", ch });
      else this.subscribe(ch);
    }
  }

  private subscribe(ch: string): void {
    const watchers = [...(this.watchers.get(ch) ?? [])];
    if (this.sleeping && watchers.every((watcher) => watcher.heavy)) return;
    const after = Math.min(...watchers.map((watcher) => watcher.cursor()));
    this.send({ op: "sub", ch, ...(after < 0 ? {} : { after }) });
  }

  private send(frame: Record<string, unknown>): void {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(frame));
  }

  private become(status: Status): void {
    const before = this.status;
    this.status = status;
    this.notify();
    if (status === "live" && before === "stale") this.dispatchEvent(new Event("resumed"));
  }

  private notify(): void {
    this.dispatchEvent(new Event("change"));
  }
}

export const live = new Live();
