// SPDX-License-Identifier: MIT OR Apache-2.0
// Builds the page into the assets that the report crate embeds, and writes a fingerprint of the sources
// beside them: a test of that crate recomputes it, so a stale bundle fails even where there is no Node.
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { defineConfig } from "vite";

const assets = "../crates/view/report/assets";

/** FNV-1a, 64 bit, over names and contents of everything that goes into the bundle. */
function fingerprint() {
  const files = ["package.json", "package-lock.json", "tsconfig.json", "vite.config.js"];
  files.push(...readdirSync("src").sort().map((name) => `src/${name}`));
  let hash = 0xcbf29ce484222325n;
  for (const file of files) {
    for (const byte of Buffer.concat([Buffer.from(`${file}\0`), readFileSync(file), Buffer.from("\0")])) {
      hash = ((hash ^ BigInt(byte)) * 0x100000001b3n) & 0xffffffffffffffffn;
    }
  }
  return hash.toString(16).padStart(16, "0");
}

/** Licences of what a bundle holds, as a comment: every page carries copies of these packages. */
function licences(modules) {
  const names = new Set(modules.map((id) => /node_modules\/([^/]+)\//.exec(id)?.[1]).filter(Boolean));
  const texts = [...names].sort().map((name) => {
    const { version, license } = JSON.parse(readFileSync(`node_modules/${name}/package.json`, "utf8"));
    return `${name} ${version} (${license})\n${readFileSync(`node_modules/${name}/LICENSE`, "utf8").trim()}`;
  });
  if (names.size === 0) return "";
  return `/*!\n${texts.join("\n\n").replaceAll("*/", "* /")}\n*/\n`;
}

/** `vite build` makes the report, `vite build --mode diff` the comparison, `boot` a boot's chart, `cover` coverage,
 * `tlb` TLB misses, `probe` what probes collected, `compare` two runs of those. */
const ENTRIES = {
  production: ["src/main.ts", "report"],
  diff: ["src/diff.ts", "diff"],
  boot: ["src/boot.ts", "boot"],
  cover: ["src/cover.ts", "cover"],
  tlb: ["src/tlb.ts", "tlb"],
  probe: ["src/probe.ts", "probe"],
  compare: ["src/compare.ts", "compare"],
};

export default defineConfig(({ mode }) => {
  const [entry, name] = ENTRIES[mode];
  return {
    build: {
      outDir: assets,
      emptyOutDir: false,
      target: "es2022",
      modulePreload: false,
      lib: { entry, name: "kprism", formats: ["iife"], fileName: () => `${name}.js`, cssFileName: name },
    },
    plugins: [
      {
        name: "licences-and-fingerprint",
        generateBundle: (_options, bundle) => {
          for (const part of Object.values(bundle)) if (part.type === "chunk") part.code = licences(part.moduleIds) + part.code;
        },
        writeBundle: () => writeFileSync(`${assets}/report.sources`, `${fingerprint()}\n`),
      },
    ],
  };
});
