/** What Claude sees, through the SDK's tool runner, when no answer of the memory arrives. */

import assert from "node:assert/strict";
import type { ServerResponse } from "node:http";
import { after, before, test } from "node:test";

import {
  type ConnectOptions,
  type Fetch,
  HolographicMemoryTool,
  type MemoryFailure,
} from "../dist/index.js";
import { TestGateway } from "./support/gateway.js";
import { json, loopback } from "./support/loopback.js";
import { type Call, Model, type Turn, memory, recall } from "./support/model.js";

const UNREACHABLE =
  "Error: The memory cannot be reached at the moment. Continue without it, or try again later.";
const UNCONFIRMED =
  "Error: The memory did not confirm the change, which may or may not have been made. " +
  "View the path before trying again.";
const TOO_LARGE =
  "Error: The input is too large for the memory. Please split the content into several files.";

const TOKEN = "right-token";
const MAX_BODY_BYTES = 100_000;
const UNUSED_PORT = 2; // nothing listens there, and no program is given it by chance
const path = "/memories/a.md";
const view = memory("view", { path });
const create = memory("create", { path, file_text: "one\n" });

let model: Model;
let gateway: TestGateway;

before(async () => {
  const env = { HMS_GATEWAY_TOKEN: TOKEN, HMS_GATEWAY_MAX_BODY_BYTES: String(MAX_BODY_BYTES) };
  [model, gateway] = await Promise.all([Model.start(), TestGateway.start({ env })]);
});
after(() => Promise.all([model?.close(), gateway?.remove()]));

/** Play turns with a tool; the results as Claude gets them, and what the developer is told. */
async function play(options: Partial<ConnectOptions>, turns: readonly Turn[]) {
  const failures: MemoryFailure[] = [];
  const tool = await HolographicMemoryTool.connect({
    gateway: gateway.url,
    namespace: "failures",
    token: TOKEN,
    onFailure: (failure) => failures.push(failure),
    ...options,
  });
  const { results } = await model.play(tool, turns);
  return { results: results.flat(), failures };
}

async function texts(options: Partial<ConnectOptions>, calls: readonly Call[]) {
  const { results, failures } = await play(options, [calls]);
  assert.ok(results.every(({ is_error }) => is_error === true));
  return { texts: results.map(({ content }) => content), failures };
}

test("a gateway that is down", async () => {
  const options = { gateway: `http://127.0.0.1:${UNUSED_PORT}`, totalSeconds: 2 };
  const seen = await texts(options, [view, create, recall("one")]);
  assert.deepEqual(seen.texts, [UNREACHABLE, UNREACHABLE, UNREACHABLE]);
  assert.equal(seen.failures[0]!.reason, "unreachable");
});

test("a wrong token, and none", async () => {
  for (const token of ["wrong-token", ""]) {
    const seen = await texts({ token }, [view, create, recall("one")]);
    assert.deepEqual(seen.texts, [UNREACHABLE, UNREACHABLE, UNREACHABLE]);
    const [{ requestId, ...failure }] = seen.failures as [MemoryFailure];
    assert.deepEqual(failure, {
      reason: "refused",
      status: 401,
      code: "unauthorized",
      attempts: 1,
    });
    assert.ok(requestId);
  }
});

test("a namespace that the gateway refuses", async () => {
  const namespace = `alice--${"0".repeat(32)}`;
  const seen = await texts({ namespace }, [view]);
  assert.deepEqual(seen.texts, [UNREACHABLE]);
  assert.equal(seen.failures[0]!.code, "namespace_invalid");
});

test("a text that is too large for a request, and one that is far too large", async () => {
  for (const size of [MAX_BODY_BYTES, 200 * MAX_BODY_BYTES]) {
    const large = memory("create", { path, file_text: "x".repeat(size) });
    const seen = await texts({}, [large]);
    assert.deepEqual(seen.texts, [TOO_LARGE]);
    assert.equal(seen.failures[0]!.attempts, 1);
  }
});

const PAGE = "<html><body><h1>Bad Gateway</h1><p>http://10.0.0.1 said secret</p></body></html>";

const ANSWERS: readonly (readonly [
  string,
  (response: ServerResponse) => void,
  reading: string,
  writing: string,
])[] = [
  [
    "an HTML page of a proxy that says all is well",
    (response) => response.writeHead(200, { "Content-Type": "text/html" }).end(PAGE),
    UNREACHABLE,
    UNCONFIRMED,
  ],
  [
    "an HTML page of a proxy with 502",
    (response) => response.writeHead(502, { "Content-Type": "text/html" }).end(PAGE),
    UNREACHABLE,
    UNCONFIRMED,
  ],
  ["an empty body", (response) => response.writeHead(200).end(), UNREACHABLE, UNCONFIRMED],
  ["JSON that is no object", (response) => json(response, 200, null), UNREACHABLE, UNCONFIRMED],
  [
    "JSON without is_error",
    (response) => json(response, 200, { content: "secret" }),
    UNREACHABLE,
    UNCONFIRMED,
  ],
  [
    "JSON with a content that is no text",
    (response) => json(response, 200, { content: ["secret"], is_error: false, results: [] }),
    UNREACHABLE,
    UNCONFIRMED,
  ],
  [
    "JSON that ends too early",
    (response) => response.writeHead(200).end('{"content": "secret", "is_err'),
    UNREACHABLE,
    UNCONFIRMED,
  ],
  [
    "403 with a problem document",
    (response) => json(response, 403, { code: "host_refused", detail: "secret" }),
    UNREACHABLE,
    UNREACHABLE,
  ],
  [
    "413 of a proxy",
    (response) => response.writeHead(413, { "Content-Type": "text/html" }).end(PAGE),
    TOO_LARGE,
    TOO_LARGE,
  ],
  [
    "500 with a stack trace",
    (response) => response.writeHead(500).end("Traceback: secret"),
    UNREACHABLE,
    UNCONFIRMED,
  ],
];

for (const [name, answer, reading, writing] of ANSWERS) {
  test(name, async () => {
    const server = await loopback((_, response) => answer(response));
    try {
      const seen = await texts({ gateway: server.url }, [view, create, recall("one")]);
      assert.deepEqual(seen.texts, [reading, writing, reading]);
      assert.equal(server.received.length, 3);
      assert.equal(seen.failures.length, 3);
      assert.doesNotMatch(JSON.stringify(seen.failures), /secret|http|token/);
    } finally {
      await server.close();
    }
  });
}

test("results of a recall that are none", async () => {
  for (const results of [undefined, {}, [null], [{ path: "/memories/a" }]]) {
    const body = { content: "secret", is_error: false, results };
    const server = await loopback((_, response) => json(response, 200, body));
    try {
      const seen = await texts({ gateway: server.url }, [recall("one")]);
      assert.deepEqual(seen.texts, [UNREACHABLE]);
    } finally {
      await server.close();
    }
  }
});

test("a redirect is not followed: no other server gets the request", async () => {
  const other = await loopback((_, response) => {
    json(response, 200, { content: "secret", is_error: false });
  });
  const server = await loopback(({ url }, response) => {
    response.writeHead(307, { Location: other.url + url }).end();
  });
  try {
    const seen = await texts({ gateway: server.url }, [view, create]);
    assert.deepEqual(seen.texts, [UNREACHABLE, UNREACHABLE]);
    assert.equal(seen.failures[0]!.status, 307);
    assert.deepEqual(other.received, []);
  } finally {
    await Promise.all([server.close(), other.close()]);
  }
});

test("503, then 200: Claude sees the answer alone, and the key stays the same", async () => {
  const busy = { code: "at_capacity", detail: "secret" };
  const server = await loopback((_, response) => {
    if (server.received.length === 1) json(response, 503, busy, { "Retry-After": "0" });
    else json(response, 200, { content: "fine", is_error: false });
  });
  try {
    const { results, failures } = await play({ gateway: server.url }, [[create, view]]);
    assert.deepEqual(
      results.map(({ content, is_error }) => [content, is_error]),
      [
        ["fine", undefined],
        ["fine", undefined],
      ],
    );
    assert.deepEqual(failures, []);
    const [first, again, next] = server.received.map(({ headers }) => headers["idempotency-key"]);
    assert.ok(first);
    assert.equal(again, first);
    assert.notEqual(next, first);
  } finally {
    await server.close();
  }
});

test("an answer that hangs", async () => {
  const server = await loopback(() => undefined);
  try {
    const seen = await texts({ gateway: server.url, totalSeconds: 0.5 }, [view]);
    assert.deepEqual(seen.texts, [UNREACHABLE]);
    assert.equal(seen.failures[0]!.reason, "timed_out");
  } finally {
    await server.close();
  }
});

/** The real fetch, to wherever the gateway is now: each start gives it another port. */
const toGateway: Fetch = (url, init) => fetch(url.replace(/^http:\/\/gateway/, gateway.url), init);

test("a gateway that is restarted in mid-run is waited for", async () => {
  let restarted: Promise<void> | undefined;
  // The gateway starts again once an attempt has met its absence.
  const restarting: Fetch = async (url, init) => {
    try {
      return await toGateway(url, init);
    } catch (error) {
      restarted ??= gateway.start();
      throw error;
    }
  };
  const options = { gateway: "http://gateway", namespace: "restarted", fetch: restarting };
  const { results, failures } = await play(options, [
    [create],
    async () => {
      await gateway.stop();
      return [memory("insert", { path, insert_line: 1, insert_text: "two" }), view];
    },
  ]);
  assert.deepEqual(failures, []);
  assert.ok(restarted);
  await restarted;
  assert.deepEqual(
    results.map(({ content }) => content),
    [
      `File created successfully at: ${path}`,
      `The file ${path} has been edited.`,
      `Here's the content of ${path} with line numbers:\n     1\tone\n     2\ttwo`,
    ],
  );
});

test("a change whose answer gets lost is made once, across a restart too", async () => {
  let answered = 0;
  const losing: Fetch = async (url, init) => {
    const response = await toGateway(url, init);
    answered += 1;
    if (answered % 2 === 0) return response;
    await response.text();
    if (answered === 9) {
      await gateway.stop();
      await gateway.start();
    }
    throw new TypeError("fetch failed");
  };
  const lines = ["one", "two", "three", "four", "five", "six", "seven"];
  const { results, failures } = await play(
    { gateway: "http://gateway", namespace: "lost", fetch: losing },
    [
      [
        memory("create", { path, file_text: "" }),
        ...lines.map((text) => memory("insert", { path, insert_line: 0, insert_text: text })),
        view,
      ],
    ],
  );
  assert.deepEqual(failures, []);
  assert.equal(answered, 2 * results.length);
  assert.deepEqual(
    results.at(-1)!.content.split("\n").slice(1),
    lines.toReversed().map((text, index) => `     ${index + 1}\t${text}`),
  );
});
