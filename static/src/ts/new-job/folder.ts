// A folder as the code of a job: its files are packed here, as a person would with tar, with paths below the folder.
import { createTarPacker } from "modern-tar";
import { texts } from "./texts";

export interface Found {
  path: string;
  file: Blob & { lastModified?: number };
}

/** What the server takes as code: number of files, their bytes, and the bytes of the archive. */
export interface Limits {
  files: number;
  bytes: number;
  packed: number;
}

/** What no program needs from the folder it was written in, and secrets beside it; by name, at any depth. The icon that macOS
 * gives to a folder has a control character in its name, for which the server would refuse the folder. */
const LEFT_OUT = new Set([".git", ".venv", "__pycache__", "node_modules", ".env", ".DS_Store", "Icon\r"]);
const leftOut = (path: string): string | undefined => path.split("/").find((one) => LEFT_OUT.has(one));

/** Can this browser pack? Safari can from 16.4 on. */
export const packs = (): boolean => "CompressionStream" in globalThis;

/** Without what no program needs; skipped: the names of what was left out, once each. */
export function chosen(found: Found[]): { files: Found[]; skipped: string[] } {
  const skipped = new Set<string>();
  const files = found.filter(({ path }) => {
    const part = leftOut(path);
    if (part) skipped.add(part.trim());
    return !part;
  });
  return { files, skipped: [...skipped].sort() };
}

/** Why the server would refuse these files, with what there is most of; "" if it takes them. Said before they are packed. */
export function tooMuch(files: Found[], limits: Limits): string {
  if (files.length > limits.files) {
    const nested = files.filter(({ path }) => path.includes("/"));
    return texts.tooManyFiles(limits.files, largest(nested, () => 1));
  }
  const bytes = files.reduce((sum, { file }) => sum + file.size, 0);
  return bytes > limits.bytes ? texts.tooLarge(bytes, limits.bytes, largest(files, ({ file }) => file.size)) : "";
}

/** The folder or file at the top that has most of something; "" if there is none. */
function largest(files: Found[], weight: (one: Found) => number): string {
  const sums = new Map<string, number>();
  for (const one of files) {
    const [top = "", ...rest] = one.path.split("/");
    const name = rest.length ? `${top}/` : top;
    sums.set(name, (sums.get(name) ?? 0) + weight(one));
  }
  return [...sums].reduce((most, one) => (one[1] > most[1] ? one : most), ["", 0] as [string, number])[0];
}

/** What was chosen in a file dialog for folders. The name of the folder is not part of the paths. Chromium writes a backslash of a
 * name as / in the path alone: the file would arrive under another name. */
export const ofInput = (files: File[]): Found[] =>
  files.map((file) => {
    const path = file.webkitRelativePath.split("/").slice(1).join("/");
    return { path: path.slice(0, -file.name.length) + file.name, file };
  });

/** What was dropped: a single folder's content, or each thing under its name; no more than one file above `most`, as a folder may be
 * endless. To be called within the event, which forgets its items. */
export async function ofDrop(data: DataTransfer, most: number): Promise<Found[]> {
  const entries = [...data.items].map((item) => item.webkitGetAsEntry()).filter((entry) => entry !== null);
  if (!entries.length) return [...data.files].map((file) => ({ path: file.name, file }));
  const [first] = entries;
  const found: Found[] = [];
  let kept = 0;
  for await (const one of entries.length === 1 && first?.isDirectory ? below(first as FileSystemDirectoryEntry, "") : all(entries, "")) {
    found.push(one);
    if (!leftOut(one.path)) kept += 1;
    if (kept > most) break;
  }
  return found;
}

async function* all(entries: FileSystemEntry[], above: string): AsyncGenerator<Found> {
  for (const entry of entries) yield* within(entry, above);
}

async function* within(entry: FileSystemEntry, above: string): AsyncGenerator<Found> {
  const path = `${above}${entry.name}`;
  if (LEFT_OUT.has(entry.name)) yield { path, file: new Blob() }; // not read: it may be large
  else if (entry.isDirectory) yield* below(entry as FileSystemDirectoryEntry, `${path}/`);
  else yield { path, file: await new Promise<File>((done, failed) => (entry as FileSystemFileEntry).file(done, failed)) };
}

async function* below(folder: FileSystemDirectoryEntry, above: string): AsyncGenerator<Found> {
  const reader = folder.createReader();
  for (;;) {
    const some = await new Promise<FileSystemEntry[]>((done, failed) => reader.readEntries(done, failed));
    if (!some.length) return; // a reader gives a hundred at a time
    yield* all(some, above);
  }
}

/** A .tar.gz. Scripts with #! and Linux programs are executable: a browser does not know the files' modes. */
export async function packed(files: Found[], signal?: AbortSignal): Promise<Blob> {
  const { readable, controller } = createTarPacker();
  const archive = new Response(readable.pipeThrough(new CompressionStream("gzip"))).blob();
  try {
    for (const { path, file } of files) {
      const mode = /^(#!|\x7fELF)/.test(await file.slice(0, 4).text()) ? 0o755 : 0o644;
      const mtime = new Date(Math.max(0, file.lastModified ?? 0)); // a header has no time before 1970
      await file.stream().pipeTo(controller.add({ name: path, size: file.size, type: "file", mode, mtime }), { signal });
    }
    controller.finalize();
  } catch (error) {
    controller.error(error);
  }
  return archive;
}
