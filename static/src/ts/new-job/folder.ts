// A folder as the code of a job: its files are packed here, as a person would with tar, with paths below the folder.

export interface Found {
  path: string;
  file: Blob & { lastModified?: number };
}

/** What no program needs from the folder it was written in; by name, at any depth. */
const LEFT_OUT = new Set([".git", ".venv", "__pycache__", "node_modules"]);
const BLOCK = 512;
const NAME_BYTES = 100; // of a header; longer paths, and those that are not ASCII, have a record before it
const encoder = new TextEncoder();

/** Without what no program needs; skipped: the names of what was left out, once each. */
export function chosen(found: Found[]): { files: Found[]; skipped: string[] } {
  const skipped = new Set<string>();
  const files = found.filter(({ path }) => {
    const part = path.split("/").find((one) => LEFT_OUT.has(one));
    if (part) skipped.add(part);
    return !part;
  });
  return { files, skipped: [...skipped].sort() };
}

/** What was chosen in a file dialog for folders. The name of the folder is not part of the paths. */
export const ofInput = (files: FileList): Found[] => [...files].map((file) => ({ path: file.webkitRelativePath.split("/").slice(1).join("/") || file.name, file }));

/** What was dropped: a single folder's content, or each thing under its name. To be called within the event, which forgets its items. */
export async function ofDrop(data: DataTransfer): Promise<Found[]> {
  const entries = [...data.items].map((item) => item.webkitGetAsEntry()).filter((entry) => entry !== null);
  if (!entries.length) return [...data.files].map((file) => ({ path: file.name, file }));
  const [first] = entries;
  if (entries.length === 1 && first?.isDirectory) return below(first as FileSystemDirectoryEntry, "");
  return (await Promise.all(entries.map((entry) => within(entry, "")))).flat();
}

async function within(entry: FileSystemEntry, above: string): Promise<Found[]> {
  const path = `${above}${entry.name}`;
  if (LEFT_OUT.has(entry.name)) return [{ path, file: new Blob() }]; // not read: it may be large
  if (entry.isDirectory) return below(entry as FileSystemDirectoryEntry, `${path}/`);
  const file = await new Promise<File>((done, failed) => (entry as FileSystemFileEntry).file(done, failed));
  return [{ path, file }];
}

async function below(folder: FileSystemDirectoryEntry, above: string): Promise<Found[]> {
  const reader = folder.createReader();
  const entries: FileSystemEntry[] = [];
  for (;;) {
    const more = await new Promise<FileSystemEntry[]>((done, failed) => reader.readEntries(done, failed));
    if (!more.length) break; // a reader gives a hundred at a time
    entries.push(...more);
  }
  return (await Promise.all(entries.map((entry) => within(entry, above)))).flat();
}

/** A .tar.gz. A file that begins with #! is executable: a browser does not know the files' modes. */
export async function packed(files: Found[]): Promise<Blob> {
  const parts: BlobPart[] = [];
  for (const { path, file } of files) {
    const name = encoder.encode(path);
    if (name.length > NAME_BYTES || name.length !== path.length) {
      const record = pathRecord(name);
      parts.push(header(encoder.encode("path"), record.length, "x", 0o644), record, padding(record.length));
    }
    const mode = (await file.slice(0, 2).text()) === "#!" ? 0o755 : 0o644;
    parts.push(header(name, file.size, "0", mode, file.lastModified), file, padding(file.size));
  }
  parts.push(new Uint8Array(2 * BLOCK));
  return new Response(new Blob(parts).stream().pipeThrough(new CompressionStream("gzip"))).blob();
}

function header(name: Uint8Array, size: number, type: "0" | "x", mode: number, changed = 0): Uint8Array<ArrayBuffer> {
  const block = new Uint8Array(BLOCK);
  const put = (at: number, text: string): void => block.set(encoder.encode(text), at);
  const octal = (at: number, value: number, digits: number): void => put(at, Math.floor(value).toString(8).padStart(digits, "0"));
  block.set(name.subarray(0, NAME_BYTES), 0);
  octal(100, mode, 7);
  octal(124, size, 11);
  octal(136, changed / 1000, 11);
  put(148, " ".repeat(8)); // the checksum counts itself as spaces
  put(156, type);
  put(257, "ustar\u000000");
  octal(
    148,
    block.reduce((sum, byte) => sum + byte, 0),
    6,
  );
  block[154] = 0;
  return block;
}

/** "<length> path=<name>\n", whose length counts its own digits. */
function pathRecord(name: Uint8Array): Uint8Array<ArrayBuffer> {
  const rest = name.length + encoder.encode(" path=\n").length;
  let length = rest + String(rest).length;
  length = rest + String(length).length;
  const start = encoder.encode(`${length} path=`);
  const record = new Uint8Array(length);
  record.set(start);
  record.set(name, start.length);
  record[length - 1] = 10;
  return record;
}

const padding = (size: number): Uint8Array<ArrayBuffer> => new Uint8Array((BLOCK - (size % BLOCK)) % BLOCK);
