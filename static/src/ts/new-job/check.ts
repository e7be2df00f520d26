// Have the server validate the spec shortly after the last keystroke; only the newest answer counts.
import { api, ApiError, Yaml } from "../api";
import { texts } from "./texts";

export interface Finding {
  path: string;
  code: string;
  message: string;
  line?: number;
  column?: number;
  near?: string | null;
}

/** The tenant's quota and what the job requests, in slots. */
export interface Quota {
  slot_type: string;
  limit: number;
  used: number;
  asked: number;
}

export interface Check {
  name: string;
  result: "passed" | "waits" | "failed" | "skipped";
  message: string;
}

export interface Estimate {
  from: string | null;
  to: string | null;
  message: string;
}

export interface Verdict {
  errors: Finding[];
  warnings: Finding[];
  now?: { starts: boolean; nodes: string[]; code: string; actor: "wait" | "ask" | "fix" | null; message: string; numbers: Record<string, unknown>; estimate: Estimate } | null;
  quota?: Quota | null;
  checks?: Check[];
  problem?: string;
}

const DELAY_MS = 400;

export class Checker {
  private timer = 0;
  private running: AbortController | null = null;

  constructor(
    private readonly tenant: string,
    private readonly done: (verdict: Verdict, text: string) => void,
  ) {}

  soon(text: string): void {
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => void this.now(text), DELAY_MS);
  }

  async now(text: string): Promise<void> {
    clearTimeout(this.timer);
    this.running?.abort();
    const running = (this.running = new AbortController());
    const verdict = await validate(this.tenant, text, running.signal);
    if (!running.signal.aborted) this.done(verdict, text);
  }
}

async function validate(tenant: string, text: string, signal: AbortSignal): Promise<Verdict> {
  try {
    const source = new URLSearchParams(location.search).get("from"); // a clone keeps its source's code
    const query = source ? `?cloned_from=${encodeURIComponent(source)}` : "";
    const answer = await api<Partial<Verdict>>("POST", `/tenants/${tenant}/jobs:validate${query}`, new Yaml(text), { signal });
    return { ...answer, errors: answer.errors ?? [], warnings: answer.warnings ?? [] };
  } catch (error) {
    if (!(error instanceof ApiError)) return { errors: [], warnings: [], problem: texts.unreachable };
    const { errors, detail, title } = error.problem;
    return errors.length ? { errors, warnings: [] } : { errors: [], warnings: [], problem: detail || title };
  }
}
