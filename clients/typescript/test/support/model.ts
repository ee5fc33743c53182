/** A Messages endpoint that plays Claude from a script. */

import Anthropic from "@anthropic-ai/sdk";

import type { HolographicMemoryTool } from "../../dist/index.js";
import { type Loopback, json, loopback } from "./loopback.js";

/** A call that Claude makes: the name of the tool, and its input. */
export interface Call {
  readonly name: "memory" | "memory_recall";
  readonly input: unknown;
}

/** The calls of one turn, or what comes to know them just before the turn is sent. */
export type Turn = readonly Call[] | (() => Promise<readonly Call[]>);

export interface MessagesRequest {
  readonly tools?: readonly Readonly<Record<string, unknown>>[];
  readonly thread?: Readonly<Record<string, unknown>>;
  readonly messages: readonly { readonly role: string; readonly content: unknown }[];
}

export interface ToolResult {
  readonly type: "tool_result";
  readonly tool_use_id: string;
  readonly content: string;
  readonly is_error?: boolean;
}

export function memory(command: string, fields: Readonly<Record<string, unknown>> = {}): Call {
  return { name: "memory", input: { command, ...fields } };
}

export function recall(query: string): Call {
  return { name: "memory_recall", input: { query } };
}

/** What a conversation led to. */
export interface Conversation {
  readonly requests: readonly MessagesRequest[];
  /** For each turn of the script the results that the runner sent back for it. */
  readonly results: readonly (readonly ToolResult[])[];
}

/** Plays any number of conversations, each under a path of its own. */
export class Model {
  readonly #server: Loopback;
  readonly #scripts: Map<string, Script>;

  private constructor(server: Loopback, scripts: Map<string, Script>) {
    this.#server = server;
    this.#scripts = scripts;
  }

  static async start(): Promise<Model> {
    const scripts = new Map<string, Script>();
    const server = await loopback(async ({ method, url, body }, response) => {
      const [, name = "", ...route] = url.split("?")[0]!.split("/");
      const script = scripts.get(name);
      if (method !== "POST" || route.join("/") !== "v1/messages" || script === undefined) {
        json(response, 404, { error: { type: "not_found_error", message: url } });
      } else {
        json(response, 200, await script.reply(JSON.parse(body) as MessagesRequest));
      }
    });
    return new Model(server, scripts);
  }

  /** The base URL of a conversation, and the requests that it will receive. */
  script(turns: readonly Turn[]): { baseURL: string; requests: readonly MessagesRequest[] } {
    const name = `script-${this.#scripts.size}`;
    const script = new Script(name, turns);
    this.#scripts.set(name, script);
    return { baseURL: `${this.#server.url}/${name}`, requests: script.requests };
  }

  /** Let the SDK's tool runner play a script to its end with both tools of a memory. */
  async play(
    tool: HolographicMemoryTool,
    turns: readonly Turn[],
    options: { thread?: false } = {},
  ): Promise<Conversation> {
    const { baseURL, requests } = this.script(turns);
    const client = new Anthropic({ baseURL, apiKey: "none", maxRetries: 0 });
    await client.beta.messages.toolRunner({
      model: "claude-sonnet-5-5",
      max_tokens: 1024,
      messages: [{ role: "user", content: "Go on." }],
      tools: [tool.asTool(), tool.recallTool()],
      ...options,
    });
    return { requests, results: requests.slice(1).map(resultsOf) };
  }

  async close(): Promise<void> {
    await this.#server.close();
  }
}

class Script {
  readonly requests: MessagesRequest[] = [];
  readonly #name: string;
  readonly #turns: readonly Turn[];

  constructor(name: string, turns: readonly Turn[]) {
    this.#name = name;
    this.#turns = turns;
  }

  async reply(request: MessagesRequest): Promise<unknown> {
    const index = this.requests.push(request) - 1;
    const turn = this.#turns[index];
    const calls = typeof turn === "function" ? await turn() : turn;
    const id = `msg_${this.#name}_${index}`;
    const content = calls?.map(({ name, input }, at) => ({
      type: "tool_use",
      id: `toolu_${index}_${at}`,
      name,
      input,
    })) ?? [{ type: "text", text: "Done." }];
    return {
      id,
      type: "message",
      role: "assistant",
      model: "claude-sonnet-5-5",
      content,
      stop_reason: calls ? "tool_use" : "end_turn",
      stop_sequence: null,
      usage: { input_tokens: 1, output_tokens: 1 },
    };
  }
}

function resultsOf(request: MessagesRequest): readonly ToolResult[] {
  return request.messages.at(-1)?.content as readonly ToolResult[];
}
