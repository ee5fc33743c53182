/** When a call is sent again, under which key, and for how long. The time is the test's own. */

import assert from "node:assert/strict";
import { afterEach, beforeEach, mock, test } from "node:test";

import {
  type ConnectOptions,
  type Fetch,
  HolographicMemoryTool,
  type MemoryFailure,
} from "../dist/index.js";
import { Clock } from "./support/clock.js";

const UNREACHABLE =
  "The memory cannot be reached at the moment. Continue without it, or try again later.";
const UNCONFIRMED =
  "The memory did not confirm the change, which may or may not have been made. " +
  "View the path before trying again.";

const view = { command: "view", path: "/memories" };
const create = { command: "create", path: "/memories/a", file_text: "secret" };

let clock: Clock;
beforeEach(() => {
  clock = new Clock();
});
afterEach(() => clock.restore());

type Attempt = () => Response | Promise<Response>;

const fine: Attempt = () => Response.json({ content: "fine", is_error: false });
const hanging: Attempt = () => new Promise(() => undefined);
const broken: Attempt = () => {
  const cause = Object.assign(new Error("127.0.0.1"), { code: "ECONNRESET" });
  throw new TypeError("fetch failed", { cause });
};
const closedPort: Attempt = () => {
  const cause = Object.assign(new Error("127.0.0.1"), { code: "ECONNREFUSED" });
  throw new TypeError("fetch failed", { cause });
};
const problem =
  (status: number, code: string, headers: Record<string, string> = {}): Attempt =>
  () =>
    Response.json({ status, code }, { status, headers });

/** A tool whose requests meet these attempts, the last one again and again. */
async function meeting(attempts: readonly Attempt[], options: Partial<ConnectOptions> = {}) {
  const sent: { at: number; key: string | null; body: unknown }[] = [];
  const failures: MemoryFailure[] = [];
  const scripted: Fetch = async (_, { headers, body }) => {
    const attempt = attempts[Math.min(sent.length, attempts.length - 1)]!;
    sent.push({ at: clock.seconds, key: new Headers(headers).get("Idempotency-Key"), body });
    return attempt();
  };
  const tool = await HolographicMemoryTool.connect({
    gateway: "http://gateway.example",
    namespace: "n",
    fetch: scripted,
    onFailure: (failure) => failures.push(failure),
    ...options,
  });
  return { tool, sent, failures };
}

function message(outcome: PromiseSettledResult<unknown>): string {
  assert.equal(outcome.status, "rejected");
  const error: unknown = outcome.reason;
  assert.ok(error instanceof Error);
  assert.equal(error.cause, undefined);
  return error.message;
}

for (const [name, attempt] of [
  ["a connection that breaks", broken],
  ["a closed port", closedPort],
  ["an attempt without an answer", hanging],
  ["503", problem(503, "at_capacity")],
  ["504", problem(504, "timed_out")],
  ["504 with an unknown outcome", problem(504, "outcome_unknown")],
  ["503 of a proxy", () => new Response("<html>", { status: 503 })],
] as const) {
  test(`${name} is tried again, under the same key`, async () => {
    const { tool, sent, failures } = await meeting([attempt, attempt, attempt, fine], {
      totalSeconds: 100,
    });
    const outcome = await clock.until(tool.execute(create));
    assert.deepEqual(outcome, { status: "fulfilled", value: "fine" });
    assert.equal(sent.length, 4);
    assert.equal(new Set(sent.map(({ key, body }) => `${key} ${body}`)).size, 1);
    assert.deepEqual(failures, []);
  });
}

test("each command has a key of its own, and recall none", async () => {
  const { tool, sent } = await meeting([
    () => Response.json({ content: "fine", is_error: false, results: [] }),
  ]);
  await Promise.all([tool.execute(view), tool.execute(view), tool.recall("query")]);
  const [first, second, third] = sent.map(({ key }) => key);
  assert.ok(first && second);
  assert.notEqual(first, second);
  assert.equal(third, null);
});

for (const status of [201, 204, 301, 307, 400, 401, 403, 404, 409, 413, 422, 429, 500, 502, 505]) {
  test(`${status} is not tried again`, async () => {
    const { tool, sent, failures } = await meeting([() => new Response(null, { status })]);
    await assert.rejects(tool.execute(view));
    assert.equal(sent.length, 1);
    assert.deepEqual(failures, [{ reason: "refused", status, attempts: 1 }]);
  });
}

test("the gateway's refusal of a command is an answer, and not tried again", async () => {
  const { tool, sent, failures } = await meeting([
    () => Response.json({ content: "File /memories/a already exists", is_error: true }),
  ]);
  await assert.rejects(tool.execute(create), { message: "File /memories/a already exists" });
  assert.equal(sent.length, 1);
  assert.deepEqual(failures, []);
});

test("Retry-After is waited out", async () => {
  const { tool, sent } = await meeting([
    problem(503, "at_capacity", { "Retry-After": "7" }),
    problem(503, "at_capacity", { "Retry-After": "3" }),
    fine,
  ]);
  const outcome = await clock.until(tool.execute(view));
  assert.equal(outcome.status, "fulfilled");
  const [first, second, third] = sent.map(({ at }) => at) as [number, number, number];
  assert.equal(first, 0);
  assert.ok(second >= 7 && second < 7.3, `${second}`);
  assert.ok(third - second >= 3 && third - second < 3.6, `${third - second}`);
});

test("a Retry-After beyond the total time ends the call at once", async () => {
  const { tool, failures } = await meeting([
    problem(503, "at_capacity", { "Retry-After": "61" }),
  ]);
  assert.equal(message(await clock.until(tool.execute(view))), UNREACHABLE);
  assert.equal(clock.seconds, 0);
  assert.deepEqual(failures, [
    { reason: "refused", status: 503, code: "at_capacity", attempts: 1 },
  ]);
});

for (const [name, attempt, reason] of [
  ["hangs", hanging, "timed_out"],
  ["is down", closedPort, "unreachable"],
  ["stays at capacity", problem(503, "at_capacity"), "refused"],
] as const) {
  test(`a call ends in the total time when the gateway ${name}`, async () => {
    const { tool, sent, failures } = await meeting([attempt], {
      totalSeconds: 20,
      attemptSeconds: 3,
    });
    assert.equal(message(await clock.until(tool.execute(view))), UNREACHABLE);
    assert.ok(clock.seconds > 10 && clock.seconds <= 20, `${clock.seconds}`);
    assert.ok(sent.length >= 3);
    assert.equal(failures.length, 1);
    assert.equal(failures[0]!.reason, reason);
    assert.equal(failures[0]!.attempts, sent.length);
  });
}

test("the defaults are 30 seconds for an attempt and 60 for a call", async () => {
  const { tool, sent } = await meeting([hanging]);
  await clock.until(tool.execute(view));
  assert.equal(sent.length, 2);
  assert.ok(sent[1]!.at >= 30 && sent[1]!.at < 30.3, `${sent[1]!.at}`);
  assert.equal(clock.seconds, 60);
});

test("a body that never ends is given up like an answer that never starts", async () => {
  const pull = () => new Promise<void>(() => undefined);
  const endless: Attempt = () => new Response(new ReadableStream({ pull }));
  const { tool, sent } = await meeting([endless, fine], { attemptSeconds: 2 });
  const outcome = await clock.until(tool.execute(view));
  assert.equal(outcome.status, "fulfilled");
  assert.equal(sent.length, 2);
});

test("an attempt that is given up is aborted", async () => {
  const signals: AbortSignal[] = [];
  const { tool } = await meeting([], {
    totalSeconds: 5,
    fetch: (_, { signal }) => {
      signals.push(signal!);
      return new Promise(() => undefined);
    },
  });
  await clock.until(tool.execute(view));
  assert.deepEqual(
    signals.map(({ aborted }) => aborted),
    [true],
  );
});

test("the wait for earlier calls counts: a turn takes no longer than one call", async () => {
  const { tool, sent } = await meeting([hanging], { totalSeconds: 20, attemptSeconds: 20 });
  const outcome = await clock.until(
    Promise.allSettled([tool.execute(create), tool.execute(create), tool.execute(view)]),
  );
  assert.equal(outcome.status, "fulfilled");
  // The first was sent and may have been done; the others were never sent.
  assert.deepEqual(outcome.value.map(message), [UNCONFIRMED, UNREACHABLE, UNREACHABLE]);
  assert.equal(sent.length, 1);
  assert.equal(clock.seconds, 20);
});

// What Claude is told of a change that got no answer, by what its attempts met.
for (const [name, attempts, expected] of [
  ["a closed port", [closedPort], UNREACHABLE],
  ["503 alone", [problem(503, "shutting_down")], UNREACHABLE],
  ["504 timed_out", [problem(504, "timed_out")], UNREACHABLE],
  ["504 outcome_unknown", [problem(504, "outcome_unknown")], UNCONFIRMED],
  ["504 of a proxy", [() => new Response("<html>", { status: 504 })], UNCONFIRMED],
  ["a broken connection", [broken], UNCONFIRMED],
  ["no answer", [hanging], UNCONFIRMED],
  ["a broken connection, then a closed port", [broken, closedPort], UNCONFIRMED],
  ["a broken connection, then 401", [broken, problem(401, "unauthorized")], UNCONFIRMED],
  ["a closed port, then 401", [closedPort, problem(401, "unauthorized")], UNREACHABLE],
] as const) {
  test(`a change that met ${name}: ${expected.slice(0, 30)}...`, async () => {
    const { tool } = await meeting(attempts, { totalSeconds: 10 });
    assert.equal(message(await clock.until(tool.execute(create))), expected);
    const { tool: reading } = await meeting(attempts, { totalSeconds: 10 });
    assert.equal(message(await clock.until(reading.execute(view))), UNREACHABLE);
  });
}

test("an onFailure that throws changes nothing for Claude", async () => {
  const { tool } = await meeting([problem(401, "unauthorized")], {
    onFailure: () => {
      throw new Error("secret");
    },
  });
  await assert.rejects(tool.execute(view), { message: UNREACHABLE });
});

test("an abort ends the wait for an answer, for a retry, and for the turn", async () => {
  for (const attempt of [hanging, problem(503, "at_capacity", { "Retry-After": "9" })]) {
    const { tool, sent, failures } = await meeting([attempt, fine]);
    const controller = new AbortController();
    const calls = [
      tool.execute(view, controller.signal),
      tool.execute(view, controller.signal),
      tool.execute(view),
    ];
    const outcomes = Promise.allSettled(calls);
    await new Promise((resolve) => setImmediate(resolve));
    controller.abort(new Error("secret"));
    const [first, second, third] = await outcomes;
    assert.equal(message(first!), "The call of the memory was aborted.");
    assert.equal(message(second!), "The call of the memory was aborted.");
    assert.deepEqual(third, { status: "fulfilled", value: "fine" });
    assert.equal(sent.length, 2);
    assert.equal(clock.seconds, 0);
    assert.deepEqual(failures, []);
  }
});

test("an abort is nobody's failure, even where no time is left for a retry", async () => {
  mock.method(Math, "random", () => 0.999);
  const { tool, failures } = await meeting([hanging], { totalSeconds: 0.1 });
  const controller = new AbortController();
  const outcome = Promise.allSettled([tool.execute(view, controller.signal)]);
  await new Promise((resolve) => setImmediate(resolve));
  controller.abort();
  assert.equal(message((await outcome)[0]), "The call of the memory was aborted.");
  assert.deepEqual(failures, []);
});
