import assert from "node:assert/strict";
import { test } from "node:test";
import { unpackTar } from "modern-tar";
import { chosen, type Found, ofDrop, ofInput, packed, tooMuch } from "../../../static/src/ts/new-job/folder";

interface Fake {
  name: string;
  isDirectory: boolean;
  file?: (done: (file: Blob) => void) => void;
  createReader?: () => { readEntries: (done: (some: Fake[]) => void) => void };
}

const file = (name: string, text = ""): Fake => ({ name, isDirectory: false, file: (done) => done(new Blob([text])) });

/** A folder whose reader gives a hundred entries at a time, as browsers do; reads: how often it was asked. */
const folder = (name: string, entries: Fake[], reads = { count: 0 }): Fake => ({
  name,
  isDirectory: true,
  createReader: () => {
    let at = 0;
    return {
      readEntries: (done) => {
        reads.count += 1;
        at += 100;
        done(entries.slice(at - 100, at));
      },
    };
  },
});

const drop = (...entries: Fake[]): DataTransfer => ({ items: entries.map((entry) => ({ webkitGetAsEntry: () => entry })), files: [] }) as unknown as DataTransfer;
const many = (count: number): Fake[] => Array.from({ length: count }, (_, n) => file(`${n}.txt`));
const paths = (found: Found[]): string[] => found.map(({ path }) => path);
const sized = (path: string, size: number): Found => ({ path, file: { size } as Blob });
const LIMITS = { files: 3, bytes: 3 * 2 ** 20, packed: 2 ** 20 };

test("a dropped folder gives its content, several things each its name", async () => {
  const program = folder("program", [file("main.py", "print(1)"), folder("pack", [file("words.py")])]);
  const found = await ofDrop(drop(program), 10);
  assert.deepEqual(paths(found), ["main.py", "pack/words.py"]);
  assert.equal(await found[0]?.file.text(), "print(1)");
  assert.deepEqual(paths(await ofDrop(drop(program, file("run.sh")), 10)), ["program/main.py", "program/pack/words.py", "run.sh"]);
  assert.deepEqual(paths(await ofDrop(drop(folder("empty", [])), 10)), []);
});

test("a chosen folder gives its content, under names as they are", () => {
  const one = (webkitRelativePath: string, name: string): File => ({ webkitRelativePath, name }) as File;
  const files = [one("program/main.py", "main.py"), one("program/pack/a/b.py", "a\\b.py"), one("", "alone.py")];
  assert.deepEqual(paths(ofInput(files)), ["main.py", "pack/a\\b.py", "alone.py"]);
});

test("a folder is read to its end, however many times its reader is asked", async () => {
  const found = await ofDrop(drop(folder("program", [folder("pack", many(250)), file("main.py")])), 1000);
  assert.equal(found.length, 251);
  assert.equal(new Set(paths(found)).size, 251);
});

test("a folder with too many files is not read to its end; what is left out is not counted, nor read", async () => {
  const reads = { count: 0 };
  assert.equal((await ofDrop(drop(folder("program", many(1000), reads)), 150)).length, 151);
  assert.equal(reads.count, 2);
  const within = { count: 0 };
  const found = await ofDrop(drop(folder("program", [folder(".git", many(500), within), file(".env"), file("a.py"), file("b.py")])), 2);
  assert.deepEqual(paths(found), [".git", ".env", "a.py", "b.py"]);
  assert.equal(within.count, 0);
});

test("a folder that cannot be read is an error", async () => {
  const broken = { name: "program", isDirectory: true, createReader: () => ({ readEntries: (_: unknown, failed: (why: Error) => void) => failed(new Error("gone")) }) };
  const why = await ofDrop(drop(broken as unknown as Fake), 10).catch((error: Error) => error.message);
  assert.equal(why, "gone");
});

test("what no program needs is left out at any depth, and named", () => {
  const found = ["a.py", ".env", "pack/.DS_Store", "pack/Icon\r", "pack/.git/HEAD", "pack/.git/config", ".environment"].map((path) => sized(path, 1));
  const { files, skipped } = chosen(found);
  assert.deepEqual(paths(files), ["a.py", ".environment"]);
  assert.deepEqual(skipped, [".DS_Store", ".env", ".git", "Icon"]);
});

test("too many files are refused with the folder that has most", () => {
  const files = ["main.py", "data/1", "data/2", "pack/1"].map((path) => sized(path, 1));
  assert.equal(tooMuch(files.slice(1), LIMITS), "");
  assert.equal(tooMuch(files, LIMITS), "It has more than 3 files, many of them in data/. Data belongs below the data root.");
  const flat = ["1", "2", "3", "4"].map((path) => sized(path, 1));
  assert.equal(tooMuch(flat, LIMITS), "It has more than 3 files. Data belongs below the data root.");
});

test("too many bytes are refused with what has most", () => {
  const files = [sized("main.py", 1), sized("data/1", 2 ** 21), sized("data/2", 2 ** 20 - 1)];
  assert.equal(tooMuch(files, LIMITS), "");
  const more = [sized("main.py", 2), ...files.slice(1)];
  assert.equal(tooMuch(more, LIMITS), "It has 3.0 MiB, and code can have 3.0 MiB. The largest part is data/. Data belongs below the data root.");
  assert(tooMuch([sized("model.bin", 2 ** 22)], LIMITS).includes("The largest part is model.bin."));
});

test("scripts and Linux programs are executable, and a file of before 1970 is packed", async () => {
  const old = Object.assign(new Blob(["x"]), { lastModified: -86_400_000 });
  const files = [
    { path: "run.sh", file: new Blob(["#!/bin/sh\n"]) },
    { path: "tool", file: new Blob(["\x7fELF\x02\x01"]) },
    { path: "main.py", file: new Blob(["print('#!')"]) },
    { path: "old.txt", file: old },
    { path: "empty", file: new Blob() },
  ];
  const archive = await packed(files);
  const tar = await new Response(archive.stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
  const entries = await unpackTar(new Uint8Array(tar));
  assert.deepEqual(
    entries.map(({ header: { name, mode, mtime } }) => [name, mode, mtime?.getTime()]),
    [
      ["run.sh", 0o755, 0],
      ["tool", 0o755, 0],
      ["main.py", 0o644, 0],
      ["old.txt", 0o644, 0],
      ["empty", 0o644, 0],
    ],
  );
});

test("packing ends once another folder is chosen", async () => {
  const stop = new AbortController();
  stop.abort();
  const archive = await packed([{ path: "a", file: new Blob(["x"]) }], stop.signal).catch(() => null);
  assert.equal(archive, null);
});
