import type Anthropic from "@anthropic-ai/sdk";
import { type MemoryToolHandlers, betaMemoryTool } from "@anthropic-ai/sdk/helpers/beta/memory";
import type { BetaRunnableTool } from "@anthropic-ai/sdk/lib/tools/BetaRunnableTool";

import { field } from "./failures.js";
import { type Answer, Gateway, type Request, readAnswer } from "./gateway.js";
import { type ConnectOptions, type Settings, check } from "./options.js";
import { Queue } from "./queue.js";
import { RECALL_TOOL, type RecallInput, type RecallResult, readRecalled } from "./recall.js";
import { now } from "./time.js";

/** Further properties of the memory tool's definition, such as `cache_control`. */
export type MemoryToolExtra = Omit<Anthropic.Beta.BetaMemoryTool20250818, "type" | "name">;

type Command = keyof MemoryToolHandlers;
type InputOf<Name extends Command> = Parameters<MemoryToolHandlers[Name]>[0];

const WRITES: ReadonlySet<unknown> = new Set<Command>([
  "create",
  "str_replace",
  "insert",
  "delete",
  "rename",
]);

/**
 * The memory of one namespace, for the tool runner of the Anthropic SDK.
 *
 * Calls are carried out one at a time, in the order in which they were made; one that fails does
 * not stop those after it. What the memory refuses, and what keeps an answer from arriving, is an
 * `Error` whose message is a sentence for Claude; it never holds a URL, a token or a server's page.
 *
 * @example
 * ```ts
 * const memory = await HolographicMemoryTool.connect({
 *   gateway: "http://127.0.0.1:8080",
 *   namespace: "alice@example.com",
 * });
 * const tools = [memory.asTool(), memory.recallTool()];
 * ```
 */
export class HolographicMemoryTool implements MemoryToolHandlers {
  readonly #gateway: Gateway;
  readonly #totalMilliseconds: number;
  readonly #extra: MemoryToolExtra;
  readonly #queue = new Queue();
  #isClosed = false;

  private constructor(settings: Settings, extra: MemoryToolExtra) {
    this.#gateway = new Gateway(settings);
    this.#totalMilliseconds = settings.totalMilliseconds;
    this.#extra = extra;
  }

  /**
   * Make a tool for one namespace. Nothing is sent yet.
   *
   * @throws Error when the options cannot work; it names the option.
   */
  static async connect(options: ConnectOptions): Promise<HolographicMemoryTool> {
    const { cacheControl } = options;
    const extra = cacheControl === undefined ? {} : { cache_control: cacheControl };
    return new HolographicMemoryTool(check(options), extra);
  }

  /**
   * The memory tool, for the `tools` of a tool runner.
   *
   * It forwards every input, one that no handler here is made for included, so that Claude is told
   * what is wrong with it. Prefer it to `betaMemoryTool(memory)`, which looks a command up by its
   * name among everything that this object has.
   */
  asTool(extra?: MemoryToolExtra): BetaRunnableTool<unknown> {
    return {
      ...betaMemoryTool(this, { ...this.#extra, ...extra }),
      parse: (input) => input,
      run: (input, context) => this.execute(input, context?.signal ?? undefined),
    };
  }

  /** The companion tool `memory_recall`, by which Claude finds files by their content. */
  recallTool(): BetaRunnableTool<unknown> {
    return {
      ...structuredClone(RECALL_TOOL),
      parse: (input) => input,
      run: async (input, context) => {
        const { content } = await this.#recall(input, context?.signal ?? undefined);
        return content;
      },
    };
  }

  /**
   * Carry out the `input` of a `memory` block as it is.
   *
   * @param signal - gives the call up when it aborts; a change already sent may still be made.
   * @throws Error with the memory's sentence when it refuses.
   */
  async execute(input: unknown, signal?: AbortSignal): Promise<string> {
    const { content } = await this.#send(
      {
        route: "command",
        body: JSON.stringify(input),
        idempotencyKey: crypto.randomUUID(),
        isWrite: WRITES.has(field(input, "command")),
        read: readAnswer,
      },
      signal,
    );
    return content;
  }

  /**
   * Find the files most relevant to a query, best first.
   *
   * @param query - what to look for, in plain words.
   * @param k - the most files to return, 1 to 50.
   */
  async recall(query: string, k = 5): Promise<readonly RecallResult[]> {
    const { results } = await this.#recall({ query, k } satisfies RecallInput, undefined);
    return results;
  }

  /** Show a directory, or a file with line numbers. */
  view(command: InputOf<"view">): Promise<string> {
    return this.execute(command);
  }

  /** Make a new file. */
  create(command: InputOf<"create">): Promise<string> {
    return this.execute(command);
  }

  /** Replace the one occurrence of a text in a file. */
  str_replace(command: InputOf<"str_replace">): Promise<string> {
    return this.execute(command);
  }

  /** Insert text after a line of a file. */
  insert(command: InputOf<"insert">): Promise<string> {
    return this.execute(command);
  }

  /** Delete a file, or a directory with everything under it. */
  delete(command: InputOf<"delete">): Promise<string> {
    return this.execute(command);
  }

  /** Move a file or a directory. */
  rename(command: InputOf<"rename">): Promise<string> {
    return this.execute(command);
  }

  /**
   * Take no more calls, and wait for those already made. It can be called more than once; any other
   * use afterwards is an `Error`.
   */
  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#queue.drained();
  }

  #recall(input: unknown, signal: AbortSignal | undefined) {
    const body = JSON.stringify(input);
    return this.#send({ route: "recall", body, isWrite: false, read: readRecalled }, signal);
  }

  async #send<T extends Answer>(request: Request<T>, signal: AbortSignal | undefined): Promise<T> {
    if (this.#isClosed) throw new Error("This memory tool has been closed. Connect a new one.");
    const deadline = now() + this.#totalMilliseconds;
    const answer = await this.#queue.run(() => this.#gateway.deliver(request, deadline, signal));
    if (answer.isError) throw new Error(answer.content);
    return answer;
  }
}
