/** All of the repository's conformance cases, through the SDK's tool runner. */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { HolographicMemoryTool } from "../dist/index.js";
import { ROOT, TestGateway } from "./support/gateway.js";
import { Model, type ToolResult } from "./support/model.js";

interface Step {
  readonly repeat?: readonly [string, number];
  readonly tail?: string;
  readonly [field: string]: unknown;
}

interface Case {
  readonly name: string;
  readonly setup: readonly Step[];
  readonly command: Step;
  readonly expect: { readonly ok: boolean | null; readonly text: string | null };
}

const cases = JSON.parse(
  await readFile(join(ROOT, "tests/conformance.json"), "utf8"),
) as readonly Case[];
const AT_ONCE = 8;

let gateway: TestGateway;
let model: Model;
const outcomes = new Map<string, readonly ToolResult[]>();

/** Each case in a namespace of its own: its steps and its command are the calls of one turn. */
before(async () => {
  [gateway, model] = await Promise.all([TestGateway.start(), Model.start()]);
  const waiting = cases.entries();
  const work = async () => {
    for (const [index, one] of waiting) outcomes.set(one.name, await results(index, one));
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
});
after(() => Promise.all([gateway?.remove(), model?.close()]));

async function results(index: number, { setup, command }: Case): Promise<readonly ToolResult[]> {
  const namespace = `case-${index}`;
  const tool = await HolographicMemoryTool.connect({ gateway: gateway.url, namespace });
  const calls = [...setup, command].map((step) => ({
    name: "memory" as const,
    input: expanded(step),
  }));
  const { results } = await model.play(tool, [calls]);
  return results[0]!;
}

/** A step as it is sent: `repeat` and `tail` stand for a long text. */
function expanded({ repeat, tail = "", ...input }: Step): Record<string, unknown> {
  if (repeat === undefined) return input;
  const [part, times] = repeat;
  return { ...input, file_text: part.repeat(times) + tail };
}

test("there are cases, each with a name of its own", () => {
  assert.ok(cases.length > 200);
  assert.equal(outcomes.size, cases.length);
});

for (const { name, setup, expect } of cases) {
  test(name, () => {
    const answers = outcomes.get(name)!;
    assert.equal(answers.length, setup.length + 1);
    for (const step of answers.slice(0, -1)) assert.equal(step.is_error, undefined, step.content);
    const last = answers.at(-1)!;
    const isOk = last.is_error !== true;
    if (expect.ok !== null) assert.equal(isOk, expect.ok, last.content);
    // The runner marks what was thrown, once.
    const text = isOk ? last.content : last.content.replace(/^Error: /, "");
    assert.equal(text.startsWith("Error: "), false);
    if (expect.text !== null) assert.equal(text, expect.text);
  });
}
