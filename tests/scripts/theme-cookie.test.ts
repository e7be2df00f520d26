// Which cookie the chosen theme is read from and written to.
import assert from "node:assert/strict";
import { test } from "node:test";
import { chosenTheme, themeCookie } from "../../static/src/ts/theme-cookie";

test("over https, a cookie without the prefix has nothing to say, wherever it stands", () => {
  assert.equal(chosenTheme("theme=dark; __Host-theme=light", "https:"), "light");
  assert.equal(chosenTheme("theme=dark", "https:"), undefined);
  assert.equal(chosenTheme("a=b; theme=dark", "http:"), "dark");
  assert.equal(chosenTheme("my-theme=dark", "http:"), undefined);
});

test("what is written is read again, and the system's theme removes it", () => {
  for (const protocol of ["http:", "https:"]) {
    const pair = themeCookie("dark", protocol).split("; ")[0] ?? "";
    assert.equal(chosenTheme(pair, protocol), "dark");
    assert.equal(themeCookie("", protocol).includes("max-age=0"), true);
  }
  assert.equal(themeCookie("dark", "https:").endsWith("; Secure"), true);
});
