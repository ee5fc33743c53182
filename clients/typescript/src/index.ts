/**
 * Claude's memory tool, kept by an hms-memory-gateway.
 *
 * @packageDocumentation
 */

export type { MemoryFailure } from "./failures.js";
export type { ConnectOptions, Fetch } from "./options.js";
export type { RecallInput, RecallResult } from "./recall.js";
export { HolographicMemoryTool } from "./tool.js";
export type { MemoryToolExtra } from "./tool.js";
