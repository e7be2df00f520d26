// A folder as the code of a job: its files are packed here, as a person would with tar, with paths below the folder.
import { createTarPacker } from "modern-tar";

export interface Found {
  path: string;
  file: Blob & { lastModified?: number };
}

/** What no program needs from the folder it was written in; by name, at any depth. */
const LEFT_OUT = new Set([".git", ".venv", "__pycache__", "node_modules"]);

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
  const { readable, controller } = createTarPacker();
  const archive = new Response(readable.pipeThrough(new CompressionStream("gzip"))).blob();
  try {
    for (const { path, file } of files) {
      const mode = (await file.slice(0, 2).text()) === "#!" ? 0o755 : 0o644;
      const mtime = new Date(file.lastModified ?? 0);
      await file.stream().pipeTo(controller.add({ name: path, size: file.size, type: "file", mode, mtime }));
    }
    controller.finalize();
  } catch (error) {
    controller.error(error);
  }
  return archive;
}
