/** Closing, and calls that are made at once. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { HolographicMemoryTool } from "../dist/index.js";
import { Deferred } from "./support/deferred.js";
import { TestGateway } from "./support/gateway.js";
import { json, loopback } from "./support/loopback.js";

const CLOSED = { message: "This memory tool has been closed. Connect a new one." };
const path = "/memories/a.md";
const view = { command: "view", path } as const;

let gateway: TestGateway;
before(async () => {
  gateway = await TestGateway.start();
});
after(() => gateway?.remove());

function connect(namespace: string, url = gateway.url) {
  return HolographicMemoryTool.connect({ gateway: url, namespace });
}

test("close can be called again, and every use afterwards is one clear error", async () => {
  const tool = await connect("closed");
  const [asTool, recallTool] = [tool.asTool(), tool.recallTool()];
  await tool.close();
  await tool.close();
  await assert.rejects(tool.execute(view), CLOSED);
  await assert.rejects(tool.view(view), CLOSED);
  await assert.rejects(tool.recall("one"), CLOSED);
  await assert.rejects(async () => asTool.run(view), CLOSED);
  await assert.rejects(async () => recallTool.run({ query: "one" }), CLOSED);
});

test("close waits for the calls already made and lets no other in", async () => {
  const arrived = new Deferred<() => void>();
  const server = await loopback((_, response) => {
    const answer = () => json(response, 200, { content: "fine", is_error: false });
    if (server.received.length === 1) arrived.resolve(answer);
    else answer();
  });
  try {
    const tool = await connect("closing", server.url);
    const events: string[] = [];
    const calls = ["first", "second"].map((name) =>
      tool.execute(view).then(() => events.push(name)),
    );
    const answer = await arrived.promise;
    const closing = tool.close().then(() => events.push("closed"));
    await assert.rejects(tool.execute(view), CLOSED);
    assert.deepEqual(events, []);
    answer();
    await Promise.all([...calls, closing]);
    assert.deepEqual(events, ["first", "second", "closed"]);
    assert.equal(server.received.length, 2);
  } finally {
    await server.close();
  }
});

test("calls made at once are carried out in order, and a failure stops none of them", async () => {
  const tool = await connect("order");
  const inserts = Array.from({ length: 30 }, (_, line) =>
    tool.insert({ command: "insert", path, insert_line: line, insert_text: `line ${line}` }),
  );
  await Promise.allSettled(inserts); // the file is missing: all fail
  const outcomes = await Promise.allSettled([
    tool.create({ command: "create", path, file_text: "" }),
    tool.create({ command: "create", path, file_text: "" }),
    ...inserts.map((_, line) =>
      tool.insert({ command: "insert", path, insert_line: line, insert_text: `line ${line}` }),
    ),
    tool.view(view),
    tool.recall("line"),
  ]);
  const failed = outcomes.flatMap(({ status }, index) => (status === "rejected" ? [index] : []));
  assert.deepEqual(failed, [1]);
  const viewed = await tool.view(view);
  assert.deepEqual(
    viewed.split("\n").slice(1),
    inserts.map((_, line) => `${String(line + 1).padStart(6)}\tline ${line}`),
  );
});

test("a tool sends one request at a time, two tools do not wait for each other", async () => {
  let running = 0;
  let most = 0;
  const both = new Deferred<void>();
  const server = await loopback(async ({ headers }, response) => {
    running += 1;
    most = Math.max(most, running);
    // The first requests of the two tools are answered when both have arrived.
    const namespaces = new Set(server.received.map((one) => one.headers["x-memory-namespace"]));
    if (namespaces.size === 2) both.resolve();
    await both.promise;
    running -= 1;
    json(response, 200, { content: String(headers["x-memory-namespace"]), is_error: false });
  });
  try {
    const [one, two] = await Promise.all([connect("one", server.url), connect("two", server.url)]);
    const answers = await Promise.all(
      [one, two].flatMap((tool) => [tool.view(view), tool.view(view), tool.view(view)]),
    );
    assert.deepEqual(answers, ["one", "one", "one", "two", "two", "two"]);
    assert.equal(most, 2);
  } finally {
    await server.close();
  }
});

test("tools of different namespaces share nothing, those of one namespace share all", async () => {
  const [one, same, other] = await Promise.all(
    ["shared", "shared", "Shared"].map((namespace) => connect(namespace)),
  );
  await one!.create({ command: "create", path, file_text: "mine\n" });
  await one!.close();
  assert.match(await same!.view(view), /\tmine$/);
  await assert.rejects(other!.view(view), { message: /does not exist/ });
});
