/** The packed tarball, in an empty project: what ships, and the README's example. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, readFile, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import { HolographicMemoryTool } from "../dist/index.js";
import { TestGateway } from "./support/gateway.js";
import { Model, memory } from "./support/model.js";

const run = promisify(execFile);
const PACKAGE = fileURLToPath(new URL("../", import.meta.url));
const manifest = JSON.parse(await readFile(join(PACKAGE, "package.json"), "utf8")) as {
  readonly name: string;
  readonly version: string;
  readonly dependencies?: unknown;
};

let project: string;
let packed: readonly string[];
before(async () => {
  project = await mkdtemp(join(tmpdir(), "hms-package-"));
  const { stdout } = await run("npm", ["pack", "--json", "--ignore-scripts", PACKAGE], {
    cwd: project,
  });
  const [listing] = JSON.parse(stdout) as readonly { files: readonly { path: string }[] }[];
  packed = listing!.files.map(({ path }) => path);
  await writeFile(join(project, "package.json"), '{ "private": true, "type": "module" }');
  const tarball = `./${manifest.name}-${manifest.version}.tgz`;
  const wanted = [tarball, await asHere("@anthropic-ai/sdk"), await asHere("@types/node")];
  await run("npm", ["install", "--no-audit", "--no-fund", "--prefer-offline", ...wanted], {
    cwd: project,
  });
});
after(() => rm(project, { recursive: true, force: true }));

/** A package in the version that is installed here. */
async function asHere(name: string): Promise<string> {
  const text = await readFile(join(PACKAGE, "node_modules", name, "package.json"), "utf8");
  return `${name}@${(JSON.parse(text) as { readonly version: string }).version}`;
}

test("the tarball holds the compiled modules, their types, README and licence", async () => {
  const sources = await readdir(join(PACKAGE, "src"));
  const modules = sources.filter((name) => name.endsWith(".ts")).map((name) => name.slice(0, -3));
  const compiled = modules.flatMap((name) => [`dist/${name}.d.ts`, `dist/${name}.js`]);
  assert.deepEqual(
    [...packed].sort(),
    [...compiled, "LICENSE", "README.md", "package.json"].sort(),
  );
});

test("the package depends on nothing, and imports the SDK's helper alone", async () => {
  assert.equal(manifest.dependencies, undefined);
  const installed = join(project, "node_modules", manifest.name, "dist");
  const imports = new Set<string>();
  for (const name of await readdir(installed)) {
    if (!name.endsWith(".js")) continue;
    const text = await readFile(join(installed, name), "utf8");
    for (const [, from] of text.matchAll(/\bfrom "([^.][^"]*)"/g)) imports.add(from!);
    assert.doesNotMatch(text, /\brequire\(|\bimport\(|\bBuffer\b/);
  }
  assert.deepEqual([...imports], ["@anthropic-ai/sdk/helpers/beta/memory"]);
});

test("the README's example compiles and runs in a project of its own", async () => {
  const readme = await readFile(join(project, "node_modules", manifest.name, "README.md"), "utf8");
  const [, example] = /^```ts\n(.*?)^```$/ms.exec(readme)!;
  const model = await Model.start();
  const gateway = await TestGateway.start();
  try {
    const address = "http://127.0.0.1:8080";
    assert.ok(example!.includes(address));
    await writeFile(join(project, "example.ts"), example!.replace(address, gateway.url));
    await compile();
    const note = { path: "/memories/acme.md", file_text: "Acme Corp prefers email follow-ups.\n" };
    const { baseURL, requests } = model.script([[memory("create", note)]]);
    const { stdout } = await run(process.execPath, ["example.js"], {
      cwd: project,
      env: { ...process.env, ANTHROPIC_BASE_URL: baseURL, ANTHROPIC_API_KEY: "none" },
    });
    assert.match(stdout, /text: 'Done\.'/);
    assert.match(stdout, /^\/memories\/acme\.md 1 Acme Corp prefers email follow-ups\.$/m);
    assert.equal(requests.length, 2);
    const memories = await HolographicMemoryTool.connect({
      gateway: gateway.url,
      namespace: "alice@example.com",
    });
    assert.match(await memories.view({ command: "view", path: note.path }), /prefers email/);
  } finally {
    await Promise.all([model.close(), gateway.remove()]);
  }
});

/** With the strictest settings that a user of the package may have. */
async function compile(): Promise<void> {
  const compilerOptions = {
    target: "ES2022",
    module: "NodeNext",
    lib: ["ES2022"],
    types: ["node"],
    strict: true,
    noUncheckedIndexedAccess: true,
    exactOptionalPropertyTypes: true,
    skipLibCheck: true,
  };
  const config = { compilerOptions, files: ["example.ts"] };
  await writeFile(join(project, "tsconfig.json"), JSON.stringify(config));
  const tsc = join(PACKAGE, "node_modules/.bin/tsc");
  await run(tsc, ["--project", project]);
}
