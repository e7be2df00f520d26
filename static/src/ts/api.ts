// REST from the browser: session cookie, CSRF header, an idempotency key for each POST, problems as exceptions.
import { texts } from "./texts";

export interface Problem {
  status: number;
  code: string;
  title: string;
  detail: string;
  errors: { path: string; code: string; message: string; got?: string | null; line?: number; column?: number }[];
  request_id?: string;
  allowed_actions?: string[];
}

export class ApiError extends Error {
  constructor(readonly problem: Problem) {
    super(problem.detail || problem.title);
  }
}

/** Over https the cookie has the prefix; one without it may be left from before, or be another host's. */
export const csrfToken = (): string =>
  /(?:^|; )__Host-csrftoken=([^;]+)/.exec(document.cookie)?.[1] ?? /(?:^|; )csrftoken=([^;]+)/.exec(document.cookie)?.[1] ?? "";

/** key: of a POST that may repeat an earlier one; without it, each POST is new. */
export async function api<T>(method: string, path: string, body?: unknown, { signal, key }: { signal?: AbortSignal; key?: string } = {}): Promise<T> {
  const headers: Record<string, string> = { Accept: "application/json" };
  if (method !== "GET") headers["X-CSRFToken"] = csrfToken();
  if (method === "POST") headers["Idempotency-Key"] = key ?? crypto.randomUUID();
  const payload = encode(body, headers);
  const answer = await fetch(`/api/v1${path}`, {
    method,
    headers,
    credentials: "same-origin",
    ...(payload === undefined ? {} : { body: payload }),
    ...(signal ? { signal } : {}),
  });
  if (answer.ok) return (answer.status === 204 ? undefined : await answer.json()) as T;
  const problem = (await answer.json().catch(() => null)) as Partial<Problem> | null;
  throw new ApiError({
    code: "unknown",
    title: answer.statusText || texts.api.unexpected,
    detail: "",
    errors: [],
    ...problem,
    status: answer.status,
  });
}

/** YAML text as itself, a form as multipart, everything else as JSON. */
export class Yaml {
  constructor(readonly text: string) {}
}

function encode(body: unknown, headers: Record<string, string>): BodyInit | undefined {
  if (body === undefined || body instanceof FormData) return body;
  headers["Content-Type"] = body instanceof Yaml ? "application/yaml" : "application/json";
  return body instanceof Yaml ? body.text : JSON.stringify(body);
}

const unanswered = new WeakMap<HTMLFormElement, string>();

/** The field with the key by which the server acts on a form once (portal/pages/form_once.py). */
export const keyField = (form: HTMLFormElement): HTMLInputElement | null => form.querySelector("[name=form_key]");

/** Send with the form's key. It is kept where send rejects, for there was no response: a repeat has the key of the first time, even if
 * the page, and the key in it, was refreshed in between. */
export async function withKey<Answer>(form: HTMLFormElement, send: (key: string) => Promise<Answer>): Promise<Answer> {
  const key = unanswered.get(form) ?? keyField(form)?.value ?? crypto.randomUUID();
  unanswered.set(form, key);
  const answer = await send(key);
  unanswered.delete(form);
  return answer;
}
