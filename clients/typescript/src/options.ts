/** The options of `connect`, and the settings that they make once they have been checked. */

import type Anthropic from "@anthropic-ai/sdk";

import type { MemoryFailure } from "./failures.js";

/** What the tool needs of `fetch`. */
export type Fetch = (url: string, init: RequestInit) => Promise<Response>;

/** Where the memory is, and whose it is. */
export interface ConnectOptions {
  /** The URL of the hms-memory-gateway. */
  readonly gateway: string | URL;
  /**
   * The gateway's token. Default: the variable `HMS_GATEWAY_TOKEN` where there is an environment;
   * an empty one is none.
   */
  readonly token?: string | undefined;
  /**
   * Whose memory it is: printable ASCII, 1 to 256 bytes. Take it from your own session, never from
   * a prompt.
   */
  readonly namespace: string;
  /** The longest a call may take, with its wait for earlier calls and all retries. Default: 60. */
  readonly totalSeconds?: number | undefined;
  /** The longest that one attempt of a call may take. Default: 30. */
  readonly attemptSeconds?: number | undefined;
  /** A `fetch` to use in place of the built-in one. */
  readonly fetch?: Fetch | undefined;
  /** A cache breakpoint for the definition of the memory tool. */
  readonly cacheControl?: Anthropic.Beta.BetaCacheControlEphemeral | undefined;
  /**
   * Called when a call gets no answer, with what Claude is not told: such as that the token is
   * wrong. What it throws is passed over.
   */
  readonly onFailure?: ((failure: MemoryFailure) => void) | undefined;
}

/** Options that have been checked. */
export interface Settings {
  /** Without a final slash. */
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly totalMilliseconds: number;
  readonly attemptMilliseconds: number;
  readonly fetch: Fetch;
  readonly onFailure: (failure: MemoryFailure) => void;
}

const DEFAULT_TOTAL_SECONDS = 60;
const DEFAULT_ATTEMPT_SECONDS = 30;
const MAX_SECONDS = 86_400;

/**
 * Check what was given; the input may come from plain JavaScript.
 *
 * @throws Error that names the option and what it has to be, and never repeats a token or URL.
 */
export function check(options: ConnectOptions): Settings {
  const token = options.token ?? environmentToken();
  return {
    url: gatewayUrl(options.gateway),
    headers: {
      "Content-Type": "application/json",
      "X-Memory-Namespace": checkedNamespace(options.namespace),
      ...(token !== "" && { Authorization: `Bearer ${checkedToken(token)}` }),
    },
    totalMilliseconds: milliseconds("totalSeconds", options.totalSeconds, DEFAULT_TOTAL_SECONDS),
    attemptMilliseconds: milliseconds(
      "attemptSeconds",
      options.attemptSeconds,
      DEFAULT_ATTEMPT_SECONDS,
    ),
    // Called as plain functions: edge runtimes refuse a fetch that is called as a method.
    fetch: options.fetch ?? ((url, init) => fetch(url, init)),
    onFailure: options.onFailure ?? (() => undefined),
  };
}

function gatewayUrl(given: string | URL | undefined): string {
  if (given === undefined || given === "") {
    throw new Error("`gateway` is missing: give the URL of the hms-memory-gateway.");
  }
  const url = parsedUrl(String(given));
  if (url === undefined || !/^https?:$/.test(url.protocol)) {
    throw new Error("`gateway` has to be a URL that starts with http:// or https://.");
  }
  if (url.username || url.password || url.search || url.hash) {
    throw new Error(
      "`gateway` has to be a URL without user, password, query and fragment. " +
        "The token goes into `token`.",
    );
  }
  return (url.origin + url.pathname).replace(/\/+$/, "");
}

function parsedUrl(given: string): URL | undefined {
  try {
    return new URL(given);
  } catch {
    return undefined;
  }
}

function checkedNamespace(given: string | undefined): string {
  if (typeof given !== "string" || !/^[\x20-\x7e]{1,256}$/.test(given)) {
    throw new Error("`namespace` has to be 1 to 256 characters of printable ASCII.");
  }
  // HTTP drops spaces around a header's value, and two namespaces would become one.
  if (given.trim() !== given) {
    throw new Error("`namespace` may not start or end with a space.");
  }
  return given;
}

function checkedToken(given: string): string {
  if (typeof given !== "string" || !/^[\x21-\x7e]+$/.test(given)) {
    throw new Error("The gateway's token has to be printable ASCII without spaces.");
  }
  return given;
}

function environmentToken(): string {
  const { process } = globalThis as {
    process?: { env?: Readonly<Record<string, string | undefined>> };
  };
  return process?.env?.["HMS_GATEWAY_TOKEN"] ?? "";
}

function milliseconds(name: string, given: number | undefined, fallback: number): number {
  const seconds = given ?? fallback;
  if (typeof seconds !== "number" || !(seconds > 0 && seconds <= MAX_SECONDS)) {
    throw new Error(`\`${name}\` has to be a number above 0 and at most ${MAX_SECONDS}.`);
  }
  return seconds * 1000;
}
