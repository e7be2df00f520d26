// An archive or a folder as the code, chosen in a dialog or dropped.
import { ApiError, api } from "../api";
import { toast } from "../toast";
import { chosen, type Found, ofDrop, ofInput, packed } from "./folder";
import { texts } from "./texts";

const ARCHIVE = /\.(zip|tar\.gz|tgz)$/i;

/** Send what is chosen or dropped, and then use it. */
export function takeUploads(page: HTMLElement, tenant: string, use: (id: string) => void): void {
  const archive = page.querySelector<HTMLInputElement>("[data-upload]");
  const folder = page.querySelector<HTMLInputElement>("[data-folder]");
  const place = page.querySelector<HTMLElement>("[data-drop]");

  async function send(name: string, file: Blob, skipped: string[] = []): Promise<void> {
    const body = new FormData();
    body.append("archive", file, ARCHIVE.test(name) ? name : `${name}.tar.gz`);
    try {
      const answer = await api<{ id: string; files: number }>("POST", `/tenants/${tenant}/uploads`, body);
      toast(texts.uploaded(name, answer.files, skipped), "success");
      use(answer.id);
    } catch (error) {
      toast(error instanceof ApiError ? error.message : texts.uploadFailed, "error");
    }
  }

  async function pack(name: string, found: Found[]): Promise<void> {
    const { files, skipped } = chosen(found);
    if (!files.length) return toast(texts.noFiles, "error");
    const blob = await packed(files).catch(() => null);
    if (!blob) return toast(texts.unreadable, "error");
    await send(name, blob, skipped);
  }

  archive?.addEventListener("change", () => {
    const file = archive.files?.[0];
    if (file) void send(file.name, file);
  });
  page.querySelector("[data-choose-folder]")?.addEventListener("click", () => folder?.click());
  folder?.addEventListener("change", () => {
    const [first] = folder.files ?? [];
    if (folder.files && first) void pack(first.webkitRelativePath.split("/")[0] ?? texts.dropped, ofInput(folder.files));
    folder.value = ""; // the same folder can be chosen again after a change
  });
  place?.addEventListener("dragover", (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    place.dataset.over = "";
  });
  place?.addEventListener("dragleave", () => delete place.dataset.over);
  place?.addEventListener("drop", (event) => {
    if (!event.dataTransfer?.files.length) return;
    event.preventDefault();
    delete place.dataset.over;
    const [first, ...more] = event.dataTransfer.files;
    if (first && !more.length && ARCHIVE.test(first.name)) return void send(first.name, first);
    const name = first && !more.length ? first.name : texts.dropped;
    void ofDrop(event.dataTransfer).then(
      (found) => pack(name, found),
      () => toast(texts.unreadable, "error"),
    );
  });
}
