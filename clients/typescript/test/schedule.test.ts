/** The schedule of retries, and the queue. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Queue } from "../dist/queue.js";
import { parseRetryAfter, waitMilliseconds } from "../dist/retry.js";

const PLENTY = 1_000_000;
const situation = { attempts: 1, random: 0.5, retryAfterSeconds: undefined };

test("the longest wait doubles up to a limit", () => {
  const waits = [1, 2, 3, 4, 5, 6, 7, 2000].map((attempts) =>
    waitMilliseconds({ ...situation, attempts, random: 1, remainingMilliseconds: PLENTY }),
  );
  assert.deepEqual(waits, [250, 500, 1000, 2000, 4000, 5000, 5000, 5000]);
});

test("jitter is full: a wait is anything from nothing to the longest", () => {
  const waits = [0, 0.25, 0.5].map((random) =>
    waitMilliseconds({ ...situation, random, remainingMilliseconds: PLENTY }),
  );
  assert.deepEqual(waits, [0, 62.5, 125]);
});

test("what the gateway asks for comes before the jitter", () => {
  const wait = waitMilliseconds({
    ...situation,
    retryAfterSeconds: 3,
    remainingMilliseconds: PLENTY,
  });
  assert.equal(wait, 3125);
});

test("there is no wait that would use up the time that is left", () => {
  assert.equal(waitMilliseconds({ ...situation, remainingMilliseconds: 226 }), 125);
  assert.equal(waitMilliseconds({ ...situation, remainingMilliseconds: 225 }), undefined);
  assert.equal(waitMilliseconds({ ...situation, remainingMilliseconds: -1 }), undefined);
});

for (const [value, seconds] of [
  [null, undefined],
  ["0", 0],
  ["7", 7],
  [" 7 ", 7],
  ["-1", undefined],
  ["1.5", undefined],
  ["", undefined],
  ["Wed, 21 Oct 2026 07:28:00 GMT", undefined],
  ["9".repeat(400), undefined],
] as const) {
  test(`Retry-After ${value?.slice(0, 30)} is ${seconds} seconds`, () => {
    assert.equal(parseRetryAfter(value), seconds);
  });
}

test("a task starts when the one before it has ended, however that ended", async () => {
  const queue = new Queue();
  const events: string[] = [];
  const task = (name: string, failure?: Error) => async () => {
    events.push(`${name} starts`);
    await Promise.resolve();
    events.push(`${name} ends`);
    if (failure) throw failure;
    return name;
  };
  const failure = new Error("no");
  const outcomes = Promise.allSettled([
    queue.run(task("first")),
    queue.run(task("second", failure)),
    queue.run(task("third")),
  ]);
  await queue.drained();
  assert.deepEqual(
    events,
    ["first", "second", "third"].flatMap((name) => [`${name} starts`, `${name} ends`]),
  );
  assert.deepEqual(await outcomes, [
    { status: "fulfilled", value: "first" },
    { status: "rejected", reason: failure },
    { status: "fulfilled", value: "third" },
  ]);
});
