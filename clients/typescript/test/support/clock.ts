/** Time that passes when a test says so. */

import { mock } from "node:test";

export class Clock {
  #now = 0;

  constructor() {
    mock.timers.enable({ apis: ["setTimeout"] });
    mock.method(performance, "now", () => this.#now);
  }

  get seconds(): number {
    return this.#now / 1000;
  }

  restore(): void {
    mock.timers.reset();
    mock.restoreAll();
  }

  /** Let time pass, in steps of 10 ms, until a promise has settled. */
  async until<T>(promise: Promise<T>, maxSeconds = 200): Promise<PromiseSettledResult<T>> {
    let settled: PromiseSettledResult<T> | undefined;
    void Promise.allSettled([promise]).then(([outcome]) => (settled = outcome));
    await allDone();
    while (settled === undefined) {
      if (this.seconds > maxSeconds) throw new Error(`not settled after ${maxSeconds} seconds`);
      this.#now += 10;
      mock.timers.tick(10);
      await allDone();
    }
    return settled;
  }
}

/** Everything that can be done without time passing has been done. */
async function allDone(): Promise<void> {
  await new Promise((resolve) => setImmediate(resolve));
}
