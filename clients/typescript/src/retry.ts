/** The schedule of retries. Pure: chance and time come in as numbers. */

const BASE_MILLISECONDS = 250;
const MAX_MILLISECONDS = 5_000;
/** An attempt that is cut short leaves open what became of it; none is begun with less than this. */
const ATTEMPT_MILLISECONDS = 100;

/** What decides how long to wait. */
export interface Situation {
  /** Attempts that have failed, the last one included. */
  readonly attempts: number;
  /** A number from 0 to 1 (exclusive), drawn anew each time. */
  readonly random: number;
  /** What the gateway asked for, if it did. */
  readonly retryAfterSeconds: number | undefined;
  /** What is left of the total time. */
  readonly remainingMilliseconds: number;
}

/**
 * How long to wait before the next attempt; undefined where the time left does not allow one.
 *
 * Exponential back-off with full jitter. `Retry-After` is waited out first and the jitter stays on
 * top of it, so that all who were told the same do not come back at the same moment.
 */
export function waitMilliseconds(situation: Situation): number | undefined {
  const { attempts, random, retryAfterSeconds = 0, remainingMilliseconds } = situation;
  const ceiling = Math.min(BASE_MILLISECONDS * 2 ** (attempts - 1), MAX_MILLISECONDS);
  const wait = retryAfterSeconds * 1000 + random * ceiling;
  return wait + ATTEMPT_MILLISECONDS < remainingMilliseconds ? wait : undefined;
}

/** The seconds of a `Retry-After` header; undefined where it is missing, or a date. */
export function parseRetryAfter(value: string | null): number | undefined {
  return value !== null && /^\d{1,9}$/.test(value.trim()) ? Number(value) : undefined;
}
