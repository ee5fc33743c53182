/** What can be connected, and what is refused at once. */

import assert from "node:assert/strict";
import { afterEach, test } from "node:test";

import { type ConnectOptions, type Fetch, HolographicMemoryTool } from "../dist/index.js";

const gateway = "http://127.0.0.1:1";
const namespace = "alice@example.com";
const given = process.env["HMS_GATEWAY_TOKEN"];

afterEach(() => {
  if (given === undefined) delete process.env["HMS_GATEWAY_TOKEN"];
  else process.env["HMS_GATEWAY_TOKEN"] = given;
});

const REFUSED: readonly (readonly [string, Record<string, unknown>, RegExp])[] = [
  ["no gateway", { namespace }, /^`gateway` is missing/],
  ["an empty gateway", { gateway: "", namespace }, /^`gateway` is missing/],
  ["no URL", { gateway: "memory", namespace }, /^`gateway` .*http/],
  ["a host without a scheme", { gateway: "localhost:8080", namespace }, /^`gateway` .*http/],
  ["another scheme", { gateway: "file:///memory", namespace }, /^`gateway` .*http/],
  ["a password in the URL", { gateway: "http://a:secret@memory", namespace }, /^`gateway` .*token/],
  ["a query in the URL", { gateway: "http://memory/?a=secret", namespace }, /^`gateway` .*query/],
  ["no namespace", { gateway }, /^`namespace` /],
  ["an empty namespace", { gateway, namespace: "" }, /^`namespace` /],
  ["a namespace that is no text", { gateway, namespace: 42 }, /^`namespace` /],
  ["a namespace of 257 characters", { gateway, namespace: "n".repeat(257) }, /^`namespace` .*256/],
  ["a namespace with a control character", { gateway, namespace: "a\n" }, /^`namespace` /],
  ["a namespace beyond ASCII", { gateway, namespace: "zoë" }, /^`namespace` .*ASCII/],
  ["a namespace that HTTP would trim", { gateway, namespace: "alice " }, /^`namespace` .*space/],
  ["a token with a line break", { gateway, namespace, token: "secret\n" }, /token .*ASCII/],
  ["a token that is no text", { gateway, namespace, token: 42 }, /token .*ASCII/],
  ["no time", { gateway, namespace, totalSeconds: 0 }, /^`totalSeconds` /],
  ["a time without end", { gateway, namespace, totalSeconds: Infinity }, /^`totalSeconds` /],
  ["a time that is no number", { gateway, namespace, attemptSeconds: "5" }, /^`attemptSeconds` /],
];

for (const [name, options, message] of REFUSED) {
  test(`${name} is refused`, async () => {
    const connecting = HolographicMemoryTool.connect(options as unknown as ConnectOptions);
    await assert.rejects(connecting, (error: Error) => {
      assert.match(error.message, message);
      assert.doesNotMatch(error.message, /secret/);
      assert.equal(error.cause, undefined);
      return true;
    });
  });
}

/** What is sent for one command. */
async function sent(options: Partial<ConnectOptions>) {
  const requests: { url: string; init: RequestInit; receiver: unknown }[] = [];
  const recording = async function (this: unknown, url: string, init: RequestInit) {
    requests.push({ url, init, receiver: this });
    return Response.json({ content: "yes", is_error: false });
  } satisfies Fetch;
  const tool = await HolographicMemoryTool.connect({
    gateway,
    namespace,
    fetch: recording,
    ...options,
  });
  assert.equal(await tool.execute({ command: "view", path: "/memories" }), "yes");
  assert.equal(requests.length, 1);
  const [{ url, init, receiver }] = requests as [(typeof requests)[0]];
  return { url, init, receiver, headers: new Headers(init.headers) };
}

test("a command is one POST with the headers of the contract and the input as it is", async () => {
  const { url, init, headers } = await sent({ token: "t0ken" });
  assert.equal(url, `${gateway}/memory/command`);
  assert.equal(init.method, "POST");
  assert.equal(init.body, '{"command":"view","path":"/memories"}');
  assert.equal(init.redirect, "manual");
  assert.match(headers.get("Idempotency-Key") ?? "", /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/);
  headers.delete("Idempotency-Key");
  assert.deepEqual(Object.fromEntries(headers), {
    authorization: "Bearer t0ken",
    "content-type": "application/json",
    "x-memory-namespace": namespace,
  });
});

test("fetch is called as a plain function, as edge runtimes want it", async () => {
  assert.equal((await sent({})).receiver, undefined);
});

test("an answered call leaves no timer behind that would keep the process running", async () => {
  const timers = () => process.getActiveResourcesInfo().filter((name) => name === "Timeout").length;
  const before = timers();
  await sent({});
  assert.equal(timers(), before);
});

for (const [name, options, variable, authorization] of [
  ["the token of the environment is used", {}, "from-env", "Bearer from-env"],
  ["a token that is given wins", { token: "given" }, "from-env", "Bearer given"],
  ["an empty token is none", { token: "" }, "from-env", null],
  ["an empty variable is no token", {}, "", null],
] as const) {
  test(name, async () => {
    process.env["HMS_GATEWAY_TOKEN"] = variable;
    assert.equal((await sent(options)).headers.get("Authorization"), authorization);
  });
}

for (const [url, route] of [
  ["http://memory", "http://memory/memory/command"],
  ["http://memory/", "http://memory/memory/command"],
  ["https://memory:8443/base//", "https://memory:8443/base/memory/command"],
  ["http://memory/?", "http://memory/memory/command"],
  [new URL("http://[::1]:8080"), "http://[::1]:8080/memory/command"],
] as const) {
  test(`commands for ${url} go to ${route}`, async () => {
    assert.equal((await sent({ gateway: url })).url, route);
  });
}

for (const namespace of ["a", "auth0|42", "two words", "~".repeat(256)]) {
  test(`the namespace ${namespace.slice(0, 20)} is sent as it is`, async () => {
    assert.equal((await sent({ namespace })).headers.get("X-Memory-Namespace"), namespace);
  });
}
