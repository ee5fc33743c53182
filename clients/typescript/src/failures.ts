/** What keeps an answer of the memory from arriving, and what Claude is told about it. */

import { parseRetryAfter } from "./retry.js";

const UNREACHABLE =
  "The memory cannot be reached at the moment. Continue without it, or try again later.";
const UNCONFIRMED =
  "The memory did not confirm the change, which may or may not have been made. " +
  "View the path before trying again.";
const TOO_LARGE =
  "The input is too large for the memory. Please split the content into several files.";

/** Codes of failed connections that end before anything is sent. */
const NEVER_SENT: ReadonlySet<unknown> = new Set([
  "ECONNREFUSED",
  "ENOTFOUND",
  "EAI_AGAIN",
  "UND_ERR_CONNECT_TIMEOUT",
]);

/** Why a call got no answer, for the developer's log; it holds no URL, token or memory text. */
export interface MemoryFailure {
  /**
   * `unreachable`: no connection, or one that broke. `timed_out`: no answer in time. `refused`: a
   * status other than 200. `malformed`: a 200 that is no answer of a gateway.
   */
  readonly reason: "unreachable" | "timed_out" | "refused" | "malformed";
  /** The HTTP status of the last attempt, where it had one. */
  readonly status?: number;
  /** The `code` of the gateway's problem document, such as `unauthorized`. */
  readonly code?: string;
  /** The id under which the gateway's log has the request. */
  readonly requestId?: string;
  /** How many times the call was sent. */
  readonly attempts: number;
}

/** One attempt that failed. */
export interface FailedAttempt extends Omit<MemoryFailure, "attempts"> {
  readonly isRetryable: boolean;
  /** Whether the command may have been carried out all the same. */
  readonly mayHaveRun: boolean;
  readonly retryAfterSeconds?: number;
}

/** What has arrived, read to its end. */
export interface Reply {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
}

/** The time ran out before the call's turn came. */
export const NEVER_TRIED: FailedAttempt = {
  reason: "timed_out",
  isRetryable: false,
  mayHaveRun: false,
};

/** No answer within the time of an attempt. */
export const TIMED_OUT: FailedAttempt = {
  reason: "timed_out",
  isRetryable: true,
  mayHaveRun: true,
};

/** What `fetch` rejected with. */
export function fromThrown(error: unknown): FailedAttempt {
  const cause = field(error, "cause");
  return {
    reason: "unreachable",
    isRetryable: true,
    mayHaveRun: !NEVER_SENT.has(field(cause, "code")),
  };
}

/** A 200 that does not hold what the route answers: a proxy's page, nothing, or other JSON. */
export function fromMalformed(reply: Reply): FailedAttempt {
  return { ...described(reply), reason: "malformed", isRetryable: false, mayHaveRun: true };
}

/** A status other than 200. */
export function fromStatus(reply: Reply): FailedAttempt {
  const failure = described(reply);
  const retryAfterSeconds = parseRetryAfter(reply.headers.get("Retry-After"));
  return {
    ...failure,
    reason: "refused",
    isRetryable: reply.status === 503 || reply.status === 504,
    mayHaveRun: mayHaveRun(reply.status, failure.code),
    ...(retryAfterSeconds !== undefined && { retryAfterSeconds }),
  };
}

/** The sentence for Claude. */
export function sentence(last: FailedAttempt, isUnconfirmedWrite: boolean): string {
  if (isUnconfirmedWrite) return UNCONFIRMED;
  return last.status === 413 ? TOO_LARGE : UNREACHABLE;
}

/** The same for the developer. */
export function report(last: FailedAttempt, attempts: number): MemoryFailure {
  const { reason, status, code, requestId } = last;
  return {
    reason,
    ...(status !== undefined && { status }),
    ...(code !== undefined && { code }),
    ...(requestId !== undefined && { requestId }),
    attempts,
  };
}

/** A value that is JSON; undefined for anything else. */
export function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** A field of a value that may be anything. */
export function field(value: unknown, name: string): unknown {
  return typeof value === "object" && value !== null
    ? (value as Record<string, unknown>)[name]
    : undefined;
}

function mayHaveRun(status: number, code: string | undefined): boolean {
  if (status < 500 || status === 503) return false;
  return !(status === 504 && code === "timed_out");
}

function described({ status, headers, text }: Reply): Pick<FailedAttempt, "status" | "code"> {
  const code = field(parseJson(text), "code");
  const requestId = headers.get("X-Request-Id");
  return {
    status,
    ...(typeof code === "string" && /^[a-z_]{1,64}$/.test(code) && { code }),
    ...(requestId !== null && /^[\w.:-]{1,128}$/.test(requestId) && { requestId }),
  };
}
