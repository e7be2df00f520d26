// Which cookie the chosen theme is read from and written to.
import { equal, match } from "node:assert/strict";
import { test } from "node:test";
import { chosenTheme, themeCookie } from "../../static/src/ts/theme-cookie";

test("over https, a cookie without the prefix has nothing to say, wherever it stands", () => {
  equal(chosenTheme("theme=dark; __Host-theme=light", "https:"), "light");
  equal(chosenTheme("theme=dark", "https:"), undefined);
  equal(chosenTheme("a=b; theme=dark", "http:"), "dark");
  equal(chosenTheme("my-theme=dark", "http:"), undefined);
});

test("what is written is read again, and the system's theme removes it", () => {
  for (const protocol of ["http:", "https:"]) {
    const pair = themeCookie("dark", protocol).split("; ")[0] ?? "";
    equal(chosenTheme(pair, protocol), "dark");
    match(themeCookie("", protocol), /max-age=0/);
  }
  match(themeCookie("dark", "https:"), /; Secure$/);
});
