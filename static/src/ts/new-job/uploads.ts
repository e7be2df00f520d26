// An archive or a folder as the code, chosen in a dialog or dropped.
import { ApiError, api } from "../api";
import { toast } from "../toast";
import { chosen, type Found, ofDrop, ofInput, packed, packs, tooMuch } from "./folder";
import { type Refused as NameRefused, type Rules, refused } from "./names";
import { type Refusal, showRefused } from "./refused";
import { texts } from "./texts";

const ARCHIVE = /\.(zip|tar\.gz|tgz)$/i;

interface Code {
  archive: Blob;
  fileName: string;
  skipped: string[];
}

/** What cannot be sent, in words for the person who chose it. */
class Unfit extends Error {}

/** Code that must be changed first, with all that is wrong with it. */
class Refused extends Error {
  constructor(readonly why: Refusal[]) {
    super();
  }
}

/** Throw what is wrong with code that was not sent: a sentence, names, or both. */
function refuse(code: string, sentence: string, names: NameRefused[] = []): never {
  const why: Refusal[] = [{ text: [texts.notSent(code), sentence].filter(Boolean).join(" ") }];
  if (names.length) why.push({ text: texts.rename(names.length), names });
  throw new Refused(why);
}

/** What the server found in an archive; of several problems each with its file. */
function ofServer(name: string, { message, problem: { errors } }: ApiError): Refusal[] {
  if (errors.length === 1) return [{ text: message }];
  return [{ text: texts.rejected(name), names: errors.map(({ got, message: why }) => ({ name: got ?? "", why, files: 1 })) }];
}

/** Send what is chosen or dropped, and then use it; `use` returns whether it did. Returned is whether something is on its way. */
export function takeUploads(page: HTMLElement, tenant: string, use: (id: string) => boolean): () => boolean {
  const archive = page.querySelector<HTMLInputElement>("[data-upload]");
  const folder = page.querySelector<HTMLInputElement>("[data-folder]");
  const place = page.querySelector<HTMLElement>("[data-drop]");
  const status = page.querySelector<HTMLElement>("[data-uploading]");
  const { mostFiles, mostBytes, mostPacked } = place?.dataset ?? {};
  const limits = { files: Number(mostFiles), bytes: Number(mostBytes), packed: Number(mostPacked) };
  const cancel = page.querySelector<HTMLElement>("[data-cancel-upload]");
  const why = page.querySelector<HTMLElement>("[data-refused]");
  const rules = JSON.parse(document.getElementById("path-rules")?.textContent ?? "null") as Rules;
  let current: AbortController | null = null;

  function say(text: string): void {
    if (status) status.textContent = text;
    if (cancel) cancel.hidden = !text;
    page.querySelector("[data-files]")?.setAttribute("aria-busy", String(!!text));
  }

  /** The newest counts: what was chosen before is no longer packed, sent, used or spoken of. */
  async function take(name: string, read: (signal: AbortSignal) => Promise<Code>): Promise<void> {
    current?.abort();
    const mine = new AbortController();
    const { signal } = mine;
    current = mine;
    showRefused(why, []);
    say(texts.packing(name));
    try {
      const code = await read(signal);
      signal.throwIfAborted();
      if (code.archive.size > limits.packed) refuse(name, texts.tooLargePacked(code.archive.size, limits.packed));
      say(texts.uploading(name));
      const body = new FormData();
      body.append("archive", code.archive, code.fileName);
      const answer = await api<{ id: string; files: number }>("POST", `/tenants/${tenant}/uploads`, body, { signal });
      signal.throwIfAborted();
      if (!use(answer.id)) throw new Unfit(texts.notUsed(name));
      toast(texts.uploaded(name, answer.files, code.skipped), "success");
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refused) return showRefused(why, error.why);
      if (error instanceof ApiError && error.problem.errors.length) return showRefused(why, ofServer(name, error));
      toast(error instanceof ApiError || error instanceof Unfit ? error.message : texts.uploadFailed, "error");
    } finally {
      if (current === mine) {
        current = null;
        say("");
      }
    }
  }

  const asItIs = (file: File): Promise<void> => take(file.name, async () => ({ archive: file, fileName: file.name, skipped: [] }));

  const pack = (name: string, from: Found[] | Promise<Found[]>): Promise<void> =>
    take(name, async (signal) => {
      if (!packs()) throw new Unfit(texts.cannotPack);
      const unreadable = (): never => {
        throw new Unfit(texts.unreadable);
      };
      const { files, skipped } = chosen(await Promise.resolve(from).catch(unreadable));
      if (!files.length) refuse(name, texts.noFiles);
      const names = refused(files.map(({ path }) => path), rules);
      const much = tooMuch(files, limits);
      if (much || names.length) refuse(name, much, names);
      return { archive: await packed(files, signal).catch(unreadable), fileName: `${name}.tar.gz`, skipped };
    });

  const instead = (): void => {
    if (archive) archive.value = ""; // it named what is now replaced
  };

  cancel?.addEventListener("click", () => {
    current?.abort();
    current = null;
    say("");
    instead();
  });
  archive?.addEventListener("click", instead); // a file can be chosen again after a change, or after an error
  archive?.addEventListener("change", () => {
    const file = archive.files?.[0];
    if (file) void asItIs(file);
  });
  const choose = page.querySelector<HTMLElement>("[data-choose-folder]");
  choose?.addEventListener("click", () => folder?.click());
  for (const part of [choose, page.querySelector<HTMLElement>(".drop-hint")]) if (part) part.hidden = !packs();
  folder?.addEventListener("change", () => {
    const found = [...(folder.files ?? [])];
    instead();
    void pack(found[0]?.webkitRelativePath.split("/")[0] || texts.dropped, ofInput(found));
    folder.value = ""; // the same folder can be chosen again after a change
  });
  const locked = (): boolean => !!place?.closest("fieldset:disabled"); // which stops no drop
  place?.addEventListener("dragover", (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault(); // also where it is locked: what is dropped is refused in words
    if (!locked()) place.dataset.over = "";
  });
  place?.addEventListener("dragleave", () => delete place.dataset.over);
  place?.addEventListener("drop", (event) => {
    if (!event.dataTransfer?.files.length) return;
    event.preventDefault();
    delete place.dataset.over;
    if (locked()) return toast(texts.locked, "error");
    instead();
    const [first, ...more] = event.dataTransfer.files;
    const alone = first && !more.length ? first : null;
    const isFolder = event.dataTransfer.items[0]?.webkitGetAsEntry()?.isDirectory;
    if (alone && !isFolder && ARCHIVE.test(alone.name)) return void asItIs(alone);
    void pack(alone?.name ?? texts.dropped, ofDrop(event.dataTransfer, limits.files));
  });
  return () => current !== null;
}
