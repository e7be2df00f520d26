/** Bytes as 12.3 MiB. */
export function filesize(bytes: number): string {
  const unit = Math.min(4, Math.floor(Math.log2(Math.max(1, bytes)) / 10));
  return unit ? `${(bytes / 1024 ** unit).toFixed(1)} ${["", "KiB", "MiB", "GiB", "TiB"][unit]}` : `${bytes} B`;
}
