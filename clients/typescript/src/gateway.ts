/** The gateway over HTTP: build a request, send it until it is answered, read the answer. */

import {
  type FailedAttempt,
  NEVER_TRIED,
  type Reply,
  TIMED_OUT,
  field,
  fromMalformed,
  fromStatus,
  fromThrown,
  parseJson,
  report,
  sentence,
} from "./failures.js";
import type { Settings } from "./options.js";
import { waitMilliseconds } from "./retry.js";
import { TIME_OVER, now, sleep, within } from "./time.js";

/** What every route answers. */
export interface Answer {
  readonly content: string;
  readonly isError: boolean;
}

/** A request that can be sent as often as it takes. */
export interface Request<T> {
  readonly route: "command" | "recall";
  readonly body: string;
  /** By it the gateway knows an attempt as one of the same command. */
  readonly idempotencyKey?: string;
  /** Whether it can change the memory. */
  readonly isWrite: boolean;
  /** Reads the JSON of an answer; undefined where that is no answer. */
  readonly read: (json: unknown) => T | undefined;
}

type Outcome<T> = { readonly answer: T } | { readonly failed: FailedAttempt };

/** Speaks to one gateway, for one namespace. */
export class Gateway {
  readonly #settings: Settings;

  constructor(settings: Settings) {
    this.#settings = settings;
  }

  /**
   * Send a request, again where that can help, until its deadline or an abort.
   *
   * @throws Error with a sentence for Claude.
   */
  async deliver<T>(
    request: Request<T>,
    deadline: number,
    signal: AbortSignal | undefined,
  ): Promise<T> {
    try {
      return await this.#persist(request, deadline, signal);
    } catch (error) {
      throw signal?.aborted ? new Error("The call of the memory was aborted.") : error;
    }
  }

  async #persist<T>(
    request: Request<T>,
    deadline: number,
    signal: AbortSignal | undefined,
  ): Promise<T> {
    let failed = NEVER_TRIED;
    let attempts = 0;
    let mayHaveRun = false;
    while (now() < deadline) {
      const outcome = await this.#attempt(request, deadline - now(), signal);
      if ("answer" in outcome) return outcome.answer;
      failed = outcome.failed;
      attempts += 1;
      mayHaveRun ||= failed.mayHaveRun;
      const wait = nextWait(failed, attempts, deadline - now());
      if (wait === undefined) break;
      await sleep(wait, signal);
    }
    this.#report(failed, attempts);
    throw new Error(sentence(failed, request.isWrite && mayHaveRun));
  }

  async #attempt<T>(
    request: Request<T>,
    remaining: number,
    signal: AbortSignal | undefined,
  ): Promise<Outcome<T>> {
    const milliseconds = Math.min(this.#settings.attemptMilliseconds, remaining);
    try {
      const reply = await within(milliseconds, signal, (ending) => this.#fetch(request, ending));
      return outcomeOf(request, reply);
    } catch (error) {
      if (signal?.aborted) throw error;
      return { failed: error === TIME_OVER ? TIMED_OUT : fromThrown(error) };
    }
  }

  async #fetch<T>(request: Request<T>, signal: AbortSignal): Promise<Reply> {
    const { fetch, url, headers } = this.#settings;
    const { idempotencyKey, body } = request;
    const response = await fetch(`${url}/memory/${request.route}`, {
      method: "POST",
      headers: {
        ...headers,
        ...(idempotencyKey !== undefined && { "Idempotency-Key": idempotencyKey }),
      },
      body,
      // A redirect could take the text to another server; "error" is unknown to some edge runtimes.
      redirect: "manual",
      signal,
    });
    return { status: response.status, headers: response.headers, text: await response.text() };
  }

  #report(last: FailedAttempt, attempts: number): void {
    try {
      this.#settings.onFailure(report(last, attempts));
    } catch {
      // The sentence for Claude matters more than what a log could not take.
    }
  }
}

/** What every route answers, out of its JSON. */
export function readAnswer(json: unknown): Answer | undefined {
  const content = field(json, "content");
  const isError = field(json, "is_error");
  return typeof content === "string" && typeof isError === "boolean"
    ? { content, isError }
    : undefined;
}

function outcomeOf<T>(request: Request<T>, reply: Reply): Outcome<T> {
  if (reply.status !== 200) return { failed: fromStatus(reply) };
  const answer = request.read(parseJson(reply.text));
  return answer === undefined ? { failed: fromMalformed(reply) } : { answer };
}

function nextWait(failed: FailedAttempt, attempts: number, remaining: number): number | undefined {
  if (!failed.isRetryable) return undefined;
  return waitMilliseconds({
    attempts,
    random: Math.random(),
    retryAfterSeconds: failed.retryAfterSeconds,
    remainingMilliseconds: remaining,
  });
}
