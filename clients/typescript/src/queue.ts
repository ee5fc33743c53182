/** Runs tasks one at a time, in the order in which they were given. */
export class Queue {
  #last: Promise<unknown> = Promise.resolve();

  /** Run a task after all earlier ones, whether those went well or not. */
  run<T>(task: () => Promise<T>): Promise<T> {
    const outcome = this.#last.then(task);
    this.#last = outcome.catch(() => undefined);
    return outcome;
  }

  /** Wait until every task given so far has ended. */
  async drained(): Promise<void> {
    await this.#last;
  }
}
