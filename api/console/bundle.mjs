// Bundles the console: `node bundle.mjs <folder>` writes index.html and assets/ with hashed names.
import { build } from "esbuild";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { basename, join } from "node:path";

const target = process.argv[2];
await mkdir(join(target, "assets"), { recursive: true });
const result = await build({
  entryPoints: { console: "src/main.tsx" },
  outdir: join(target, "assets"),
  entryNames: "[name]-[hash]",
  bundle: true,
  minify: true,
  format: "esm",
  target: ["es2022", "chrome109", "firefox115", "safari16.4"],
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "eof",
  charset: "utf8",
  metafile: true,
});
const names = Object.keys(result.metafile.outputs).map((path) => basename(path));
const page = await readFile("index.html", "utf8");
const named = (end) => `assets/${names.find((name) => name.endsWith(end))}`;
await writeFile(join(target, "index.html"), page.replace("{script}", named(".js")).replace("{style}", named(".css")));
