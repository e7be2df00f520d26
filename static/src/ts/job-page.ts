// The job page stays current while it is open: numbers that change often in place, everything else by fetching the page
// again and morphing its parts.
import { ApiError, api, keyField, withKey } from "./api";
import { Metrics } from "./chart/metrics";
import { duration, hours, metric } from "./format";
import { live, type Frame } from "./live";
import type { Rendered } from "./newest";
import { fetchPage, morph, morphParts } from "./parts";
import { texts } from "./texts";
import { toast, type Kind } from "./toast";

interface Job {
  id: string;
  name: string;
  state: string;
  phase: string;
  attempt: number;
  restarts_used: number;
  max_restarts: number;
  slot_seconds: number;
  progress: { step: number | null; total: number | null; percent: number | null };
  throughput: { seconds_left: number | null; steps_per_second: number | null };
  metrics: Record<string, unknown>;
  reason: unknown;
  estimate: unknown;
}

const RECHECK_MS = 15_000; // these change without an event: ways to start sooner, the time of the last heartbeat, the learners' throughput
const DIALOGS = ["halt-dialog", "cancel-dialog"];
const REFRESH_MS = 400; // several events at once are one refresh

class JobPage extends HTMLElement {
  private stop: (() => void) | undefined;
  private seq = 0;
  private wait: string | undefined; // why the job waits and until when, as last received
  private metrics!: Metrics;
  private waiting = 0;
  private recheck = 0;
  private refreshing: AbortController | undefined;

  connectedCallback(): void {
    this.seq = Number(this.dataset.seq);
    this.metrics = Metrics.of(this.dataset.job ?? "");
    this.metrics.addEventListener("newest", this.showMetrics);
    this.metrics.addEventListener("gap", this.refreshSoon);
    this.takeMetrics(this.dataset);
    this.stop = live.watch(`job:${this.dataset.job}`, {
      cursor: () => this.seq,
      frame: (frame) => this.onFrame(frame),
      gap: (_from, to) => {
        this.seq = to;
        this.refreshSoon();
      },
      error: (code) => code === "not_found" && toast(texts.job.noAccess, "error"),
    });
    this.addEventListener("submit", this.onSubmit);
    document.addEventListener("click", this.onClick);
    document.addEventListener("submit", this.onDialog);
    live.addEventListener("resumed", this.refreshSoon);
    this.recheck = window.setInterval(() => this.querySelector("[data-recheck]") && !document.hidden && this.refreshSoon(), RECHECK_MS);
    favicon(document.querySelector("#job-badge .badge"));
    this.querySelector(".tabs [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  }

  disconnectedCallback(): void {
    this.stop?.();
    clearInterval(this.recheck);
    live.removeEventListener("resumed", this.refreshSoon);
    this.metrics.removeEventListener("newest", this.showMetrics);
    this.metrics.removeEventListener("gap", this.refreshSoon);
  }

  private onFrame(frame: Frame): void {
    const job = frame.job as Job | undefined;
    if (job) this.show(job);
    const wait = job && JSON.stringify([job.reason, job.estimate]);
    const changed = wait !== undefined && this.wait !== undefined && wait !== this.wait;
    this.wait = wait ?? this.wait;
    if (frame.to <= this.seq && !changed) return;
    this.seq = Math.max(this.seq, frame.to);
    this.refreshSoon();
  }

  /** Numbers that change often, in place. */
  private show(job: Job): void {
    const { step, total, percent } = job.progress;
    const { seconds_left: left, steps_per_second: speed } = job.throughput;
    const steps = total ? texts.job.steps(step ?? 0, total) : "";
    const values: Record<string, string> = {
      restarts: texts.job.restarts(job.restarts_used, job.max_restarts),
      hours: hours(job.slot_seconds / 3600),
    };
    if (percent !== null) {
      values.progress = texts.job.percent(percent);
      values["progress:small"] = steps;
      values.steps = texts.job.percentOf(percent, steps);
    } else if (step !== null) values.progress = texts.job.step(step);
    if (left !== null) {
      values.left = duration(left);
      values["left:small"] = texts.job.speed(speed ?? 0);
    }
    this.write(values);
    const bar = this.querySelector("[data-value=bar]");
    if (bar && percent !== null) {
      bar.setAttribute("aria-valuenow", String(Math.round(percent)));
      bar.querySelector("rect")?.setAttribute("width", String(percent));
    }
    const done = percent === null || job.state !== "PROCESSING" ? "" : `${texts.job.percent(percent)} `;
    document.title = texts.job.title(done, job.phase, job.name);
    if (Object.keys(job.metrics).length && !this.querySelector("x-chart") && this.querySelector("#job-charts, #job-metrics")) this.refreshSoon();
  }

  /** The newest value of each metric, in its tile and in the header of its chart. */
  private readonly showMetrics = (): void => {
    const values: Record<string, string> = {};
    for (const name of this.metrics.newest.names()) {
      const newest = this.metrics.newest.of(name);
      if (!newest) continue;
      values[`metric:${name}`] = metric(newest.value);
      if (newest.step !== null) values[`metric:${name}:small`] = texts.job.place(newest.step, newest.axis);
    }
    this.write(values);
  };

  /** Texts of the cells that change often, by their data-value. */
  private write(values: Record<string, string>): void {
    for (const cell of this.querySelectorAll<HTMLElement>("[data-value]")) {
      const text = values[cell.dataset.value ?? ""];
      if (text !== undefined && cell.textContent !== text) cell.textContent = text;
    }
  }

  private takeMetrics({ metrics }: DOMStringMap): void {
    if (metrics) this.metrics.render(JSON.parse(metrics) as Rendered);
  }

  private readonly refreshSoon = (): void => {
    if (this.waiting) return;
    this.waiting = window.setTimeout(() => {
      this.waiting = 0;
      void this.refresh();
    }, REFRESH_MS);
  };

  private async refresh(): Promise<void> {
    this.refreshing?.abort();
    const { signal } = (this.refreshing = new AbortController());
    const page = await fetchPage(location.pathname + location.search, { signal });
    if (!page || signal.aborted) return;
    const before = document.querySelector("#job-badge .badge")?.textContent;
    morphParts(this, page, { additions: true });
    for (const id of DIALOGS) morphDialog(page, id);
    document.title = page.querySelector("title")?.textContent ?? document.title;
    const fresh = page.querySelector<HTMLElement>("x-job");
    for (const name of ["marks", "attempt", "borders"]) if (fresh?.dataset[name]) this.dataset[name] = fresh.dataset[name];
    if (fresh) this.takeMetrics(fresh.dataset);
    const badge = document.querySelector<HTMLElement>("#job-badge .badge");
    favicon(badge);
    this.dispatchEvent(new CustomEvent("jobchange", { bubbles: true }));
    if (!badge || badge.textContent === before) return;
    // States in which the job stays have a kind of toast; those it passes through are in the header only.
    const kind = badge.parentElement?.dataset.toast as Kind | undefined;
    if (kind) toast(texts.job.changed(this.dataset.name ?? "", badge.textContent.trim()), kind);
  }

  /** A dialog is rendered long before it is opened: what it says is renewed with each opening. */
  private readonly onClick = (event: MouseEvent): void => {
    const target = (event.target as Element).closest<HTMLElement>("[data-dialog],[data-close]");
    const found = target?.dataset.dialog ? document.getElementById(target.dataset.dialog) : target?.closest("dialog");
    if (!(found instanceof HTMLDialogElement)) return;
    event.preventDefault();
    if (!target?.dataset.dialog) return found.close();
    found.showModal();
    void this.refresh();
  };

  private readonly onDialog = (event: Event): void => {
    if ((event.target as Element).closest("dialog")) this.onSubmit(event);
  };

  /** Halt, save, resume and cancel without a reload; without scripts the same forms post and redirect. */
  private readonly onSubmit = (event: Event): void => {
    const form = event.target as HTMLFormElement;
    const verb = form.dataset.action;
    if (!verb || event.defaultPrevented) return;
    event.preventDefault();
    const button = form.querySelector<HTMLButtonElement>("button:not([data-close])");
    if (!button || button.disabled || button.ariaBusy) return;
    button.setAttribute("aria-busy", "true");
    void this.act(verb, form, button);
  };

  private async act(verb: string, form: HTMLFormElement, button: HTMLButtonElement): Promise<void> {
    const chosen = new FormData(form).get("checkpoint");
    try {
      const address = `/jobs/${this.dataset.job}/${verb}`;
      const answer = await withKey(form, (key) => responded(api<Job>("POST", address, chosen ? { checkpoint: Number(chosen) } : {}, { key })));
      const used = keyField(form);
      if (used) used.value = crypto.randomUUID(); // the page stays: another press is another action
      if (answer instanceof ApiError) throw answer;
      const halt = ["QUEUED", "HALTED"].includes(answer.state) ? texts.job.dequeued : texts.job.halting;
      toast(verb === "halt" ? halt : texts.job.requested(verb), "success");
      form.closest("dialog")?.close();
    } catch (error) {
      toast(error instanceof ApiError ? error.message : texts.job.unreachable, "error");
    } finally {
      button.removeAttribute("aria-busy");
      await this.refresh();
    }
  }
}

/** A refusal is a response, too. */
const responded = <T>(answer: Promise<T>): Promise<T | ApiError> =>
  answer.catch((error: unknown) => {
    if (error instanceof ApiError) return error;
    throw error;
  });

/** A dialog before an action exists as long as the action is possible and needs one, and while it is open. An open one
 * keeps its buttons, and says what is at stake now. */
function morphDialog(page: DocumentFragment, id: string): void {
  const old = document.querySelector<HTMLDialogElement>(`#${id}`);
  const fresh = page.querySelector(`#${id}`);
  if (old?.open) {
    const [stakes, now] = [old, fresh].map((dialog) => dialog?.querySelector("[data-stakes]"));
    if (stakes && now) morph(stakes, now);
  } else if (old && fresh) morph(old, fresh);
  else if (old) old.remove();
  else if (fresh) document.body.append(document.importNode(fresh, true));
}

/** A dot in the browser tab, in the color of the state. */
function favicon(badge: Element | null): void {
  const link = document.querySelector<HTMLLinkElement>('link[rel="icon"]');
  if (!badge || !link) return;
  const color = getComputedStyle(badge).getPropertyValue("--solid").trim() || "#6b7483";
  const svg = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><circle cx="8" cy="8" r="7" fill="${color}"/></svg>`;
  link.href = `data:image/svg+xml,${encodeURIComponent(svg)}`;
}

customElements.define("x-job", JobPage);
