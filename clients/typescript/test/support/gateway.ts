/** A real gateway over a real engine, as a child process. */

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

export const ROOT = fileURLToPath(new URL("../../../../", import.meta.url));

export interface GatewayOptions {
  /** Further variables of its environment. */
  readonly env?: Readonly<Record<string, string>>;
}

/** A gateway with a data folder of its own; each start is on a port that is free then. */
export class TestGateway {
  #child: ChildProcess | undefined;
  #port = 0;
  readonly #folder: string;
  readonly #env: Readonly<Record<string, string>>;

  private constructor(folder: string, env: Readonly<Record<string, string>>) {
    this.#folder = folder;
    this.#env = env;
  }

  static async start({ env = {} }: GatewayOptions = {}): Promise<TestGateway> {
    const gateway = new TestGateway(await mkdtemp(join(tmpdir(), "hms-gateway-")), env);
    await gateway.start();
    return gateway;
  }

  get url(): string {
    return `http://127.0.0.1:${this.#port}`;
  }

  async start(): Promise<void> {
    const [program = "", ...args] = command();
    const child = spawn(
      program,
      [...args, "--port", "0", "--data-dir", this.#folder],
      { env: { ...inherited(), ...this.#env }, stdio: ["ignore", "ignore", "pipe"] },
    );
    this.#child = child;
    this.#port = await listening(child);
  }

  async stop(): Promise<void> {
    const child = this.#child;
    this.#child = undefined;
    if (child === undefined || child.exitCode !== null) return;
    const exited = once(child, "exit");
    child.kill("SIGTERM");
    await exited;
  }

  /** Stop, and forget everything. */
  async remove(): Promise<void> {
    await this.stop();
    await rm(this.#folder, { recursive: true, force: true });
  }
}

/** The environment without the settings that somebody has made for another gateway. */
function inherited(): NodeJS.ProcessEnv {
  const kept = Object.entries(process.env).filter(
    ([name]) => !name.startsWith("HMS_GATEWAY_"),
  );
  return Object.fromEntries(kept);
}

function command(): string[] {
  const given = process.env["HMS_GATEWAY_TEST_COMMAND"];
  if (given) return given.split(/\s+/);
  const python = join(ROOT, ".venv/bin/python");
  if (existsSync(python)) return [python, "-m", "hms_memory_gateway"];
  return ["uv", "run", "--project", ROOT, "hms-memory-gateway"];
}

/** Wait until it listens; the log stays drained afterwards. */
async function listening(child: ChildProcess): Promise<number> {
  const log: string[] = [];
  return new Promise((resolve, reject) => {
    child.on("error", reject);
    child.on("exit", (code) => reject(new Error(`exit code ${code}\n${log.join("\n")}`)));
    createInterface({ input: child.stderr! }).on("line", (line) => {
      log.push(line);
      const port = /listening on http:\/\/[^ "]*:(\d+)/.exec(line)?.[1];
      if (port !== undefined) resolve(Number(port));
    });
  });
}
