/** Waiting, always bounded and always ended by an abort. */

/** The reason of the signal that {@link within} gives its work when the time is over. */
export const TIME_OVER: unique symbol = Symbol("time over");

/** Milliseconds of a clock that no change of the date moves. */
export function now(): number {
  return performance.now();
}

/**
 * Run work that ends, at the latest, when the time is over or the outer signal aborts.
 *
 * It then rejects with the reason ({@link TIME_OVER}, or the outer signal's) even if the work does
 * not heed the signal that it is given.
 */
export async function within<T>(
  milliseconds: number,
  outer: AbortSignal | undefined,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  outer?.throwIfAborted();
  const controller = new AbortController();
  const { signal } = controller;
  const ended = new Promise<never>((_, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
  });
  const abort = () => controller.abort(outer?.reason);
  const timer = setTimeout(() => controller.abort(TIME_OVER), milliseconds);
  outer?.addEventListener("abort", abort, { once: true });
  try {
    return await Promise.race([work(signal), ended]);
  } finally {
    clearTimeout(timer);
    outer?.removeEventListener("abort", abort);
  }
}

/** Wait; rejects with the signal's reason when it aborts. */
export async function sleep(milliseconds: number, signal: AbortSignal | undefined): Promise<void> {
  signal?.throwIfAborted();
  await new Promise<void>((resolve, reject) => {
    const abort = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      resolve();
    }, milliseconds);
    signal?.addEventListener("abort", abort, { once: true });
  });
}
