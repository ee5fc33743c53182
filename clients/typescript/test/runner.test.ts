/** The SDK's tool runner, a real gateway and a real engine; Claude alone is played. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { HolographicMemoryTool } from "../dist/index.js";
import { TestGateway } from "./support/gateway.js";
import { type Call, Model, memory, recall } from "./support/model.js";

let gateway: TestGateway;
let model: Model;
let namespaces = 0;

before(async () => {
  [gateway, model] = await Promise.all([TestGateway.start(), Model.start()]);
});
after(() => Promise.all([gateway?.remove(), model?.close()]));

function connect(options: { cacheControl?: { type: "ephemeral" } } = {}) {
  const namespace = `runner-${namespaces++}`;
  return HolographicMemoryTool.connect({ gateway: gateway.url, namespace, ...options });
}

const path = "/memories/notes/a.md";
const EVERY_COMMAND: readonly Call[] = [
  memory("create", { path, file_text: "one\ntwo\n" }),
  memory("str_replace", { path, old_str: "two", new_str: "three" }),
  memory("insert", { path, insert_line: 1, insert_text: "two" }),
  memory("view", { path }),
  recall("three"),
  memory("rename", { old_path: "/memories/notes", new_path: "/memories/kept" }),
  memory("view", { path: "/memories/kept/a.md", view_range: [2, 3] }),
  memory("delete", { path: "/memories/kept" }),
  memory("view", { path: "/memories" }),
];
const ITS_ANSWERS = [
  `File created successfully at: ${path}`,
  "The memory file has been edited. Here is the snippet showing the change (with line numbers):\n" +
    "     1\tone\n     2\tthree",
  `The file ${path} has been edited.`,
  `Here's the content of ${path} with line numbers:\n     1\tone\n     2\ttwo\n     3\tthree`,
  /^Memory files that match, best first:\n\n1\. \/memories\/notes\/a\.md \(score 1\.00\)\n/,
  "Successfully renamed /memories/notes to /memories/kept",
  "Here's the content of /memories/kept/a.md with line numbers:\n     2\ttwo\n     3\tthree",
  "Successfully deleted /memories/kept",
  "Here're the files and directories up to 2 levels deep in /memories, " +
    "excluding hidden items and node_modules:\n0B\t/memories",
];

function assertAnswers(given: readonly string[]): void {
  assert.equal(given.length, ITS_ANSWERS.length);
  for (const [index, expected] of ITS_ANSWERS.entries()) {
    if (typeof expected === "string") assert.equal(given[index], expected);
    else assert.match(given[index] ?? "", expected);
  }
}

for (const [name, options, continued] of [
  ["with message threads", {}, "continue"],
  ["without message threads", { thread: false }, undefined],
] as const) {
  test(`every command is dispatched, a turn for each, ${name}`, async () => {
    const { requests, results } = await model.play(
      await connect(),
      EVERY_COMMAND.map((call) => [call]),
      options,
    );
    assertAnswers(results.map(([result]) => result!.content));
    assert.ok(results.every(([result]) => result!.is_error === undefined));

    const [first, second] = requests;
    assert.deepEqual(first!.tools![0], { type: "memory_20250818", name: "memory" });
    assert.equal(first!.tools![1]!["name"], "memory_recall");
    assert.equal(second!.thread?.["type"], continued);
    assert.equal(second!.tools === undefined, continued !== undefined);
  });

  test(`all calls of one turn are answered in the model's order, ${name}`, async () => {
    const { results } = await model.play(await connect(), [EVERY_COMMAND], options);
    assertAnswers(results[0]!.map(({ content }) => content));
    assert.deepEqual(
      results[0]!.map((result) => result.tool_use_id),
      EVERY_COMMAND.map((_, index) => `toolu_0_${index}`),
    );
  });
}

test("the declared tools are those of the gateway", async () => {
  const { requests } = await model.play(await connect(), []);
  const answer = await fetch(`${gateway.url}/memory/tools`);
  assert.deepEqual({ tools: requests[0]!.tools }, await answer.json());
});

test("cacheControl and the properties given to asTool are in the definition", async () => {
  const tool = await connect({ cacheControl: { type: "ephemeral" } });
  const { requests } = await model.play(tool, []);
  assert.deepEqual(requests[0]!.tools![0], {
    type: "memory_20250818",
    name: "memory",
    cache_control: { type: "ephemeral" },
  });
  const { run, parse, ...definition } = tool.asTool({ cache_control: null, defer_loading: true });
  assert.deepEqual(definition, {
    type: "memory_20250818",
    name: "memory",
    cache_control: null,
    defer_loading: true,
  });
});

test("a long turn of dependent calls, some of which fail, is carried out in order", async () => {
  const lines = Array.from({ length: 20 }, (_, index) => `line ${index}`);
  const { results } = await model.play(await connect(), [
    [
      memory("view", { path }),
      memory("create", { path, file_text: "" }),
      memory("create", { path, file_text: "again" }),
      ...lines.map((line, index) =>
        memory("insert", { path, insert_line: index, insert_text: line }),
      ),
      memory("str_replace", { path, old_str: "absent", new_str: "" }),
      memory("view", { path }),
    ],
  ]);
  const failed = results[0]!.flatMap(({ is_error }, index) => (is_error ? [index] : []));
  assert.deepEqual(failed, [0, 2, 23]);
  const numbered = lines.map((line, index) => `${String(index + 1).padStart(6)}\t${line}`);
  assert.equal(
    results[0]!.at(-1)!.content,
    [`Here's the content of ${path} with line numbers:`, ...numbered].join("\n"),
  );
});

// What the SDK's own dispatch would answer for, or do to the tool, goes to the gateway.
const REFUSED: readonly (readonly [string, Call, RegExp])[] = [
  [
    "a traversal",
    memory("view", { path: "/memories/../etc/passwd" }),
    /^Error: Path \/memories\/\.\.\/etc\/passwd would escape \/memories directory$/,
  ],
  [
    "a missing file",
    memory("view", { path: "/memories/none" }),
    /^Error: The path \/memories\/none does not exist\. Please provide a valid path\.$/,
  ],
  ["an unknown command", memory("append", { path }), /^Error: .*command.*view/],
  ["a command named like a method of the tool", memory("close"), /^Error: .*command.*view/],
  ["a command named like one of all objects", memory("toString"), /^Error: .*command.*view/],
  ["no command", { name: "memory", input: {} }, /^Error: .*command/],
  ["a command that is no text", { name: "memory", input: { command: 1 } }, /^Error: .*command/],
  ["a missing field", memory("create", { path }), /^Error: .*file_text/],
  ["half of a surrogate pair", memory("create", { path, file_text: "\ud83d" }), /file_text/],
  ["a recall without a query", { name: "memory_recall", input: {} }, /^Error: .*query/],
];

for (const [name, call, sentence] of REFUSED) {
  test(`${name} comes back as an error with the gateway's sentence`, async () => {
    const { results } = await model.play(await connect(), [
      [call],
      [memory("view", { path: "/memories" })],
    ]);
    const [refused, viewed] = results.map(([result]) => result!);
    assert.equal(refused!.is_error, true);
    assert.match(refused!.content, sentence);
    assert.equal(viewed!.is_error, undefined, viewed!.content);
  });
}

test("recall returns typed results", async () => {
  const tool = await connect();
  await tool.create({ command: "create", path, file_text: "# Acme\nPrefers email.\n" });
  const [best, ...others] = await tool.recall("Acme email");
  assert.deepEqual(others, []);
  const { lexicalScore, ...rest } = best!;
  assert.deepEqual(rest, {
    path,
    score: 1,
    excerpt: "# Acme\nPrefers email.",
    startLine: 1,
    endLine: 2,
  });
  assert.ok(lexicalScore > 0);
  await assert.rejects(tool.recall("Acme", 0), { message: /k/ });
});

test("the handlers answer and throw as the runner expects", async () => {
  const tool = await connect();
  const other = "/memories/b.md";
  await tool.create({ command: "create", path, file_text: "a\n" });
  assert.match(await tool.view({ command: "view", path }), /\ta$/);
  assert.match(
    await tool.str_replace({ command: "str_replace", path, old_str: "a", new_str: "b" }),
    /\tb$/,
  );
  await tool.insert({ command: "insert", path, insert_line: 1, insert_text: "c" });
  await tool.rename({ command: "rename", old_path: path, new_path: other });
  assert.match(await tool.view({ command: "view", path: other }), /1\tb\n {5}2\tc$/);
  await tool.delete({ command: "delete", path: other });
  await assert.rejects(tool.view({ command: "view", path: other }), (error) => {
    assert.equal(Object.getPrototypeOf(error), Error.prototype);
    assert.equal(
      (error as Error).message,
      `The path ${other} does not exist. Please provide a valid path.`,
    );
    return true;
  });
});
