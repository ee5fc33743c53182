/** Recall: finding memory files by their content. */

import { field } from "./failures.js";
import { type Answer, readAnswer } from "./gateway.js";

/** The input of a `memory_recall` block. */
export interface RecallInput {
  /** What to look for, in plain words. */
  readonly query: string;
  /** The most files to return, 1 to 50. */
  readonly k?: number;
}

/** A memory file that matches a query. */
export interface RecallResult {
  readonly path: string;
  /** How well it matches, from 0 to 1. */
  readonly score: number;
  /** The lines that match best. */
  readonly excerpt: string;
  /** Where the excerpt starts in the file; lines count from 1. */
  readonly startLine: number;
  readonly endLine: number;
  /** The part that the words have in the score. */
  readonly lexicalScore: number;
  /** The part that the meaning has in it, where the engine has an embedding model. */
  readonly semanticScore?: number;
}

/** The answer to a recall. */
export interface Recalled extends Answer {
  readonly results: readonly RecallResult[];
}

/** The definition of the tool, as the gateway's `GET /memory/tools` has it. */
export const RECALL_TOOL = {
  name: "memory_recall",
  description:
    "Search the files under /memories by content and get the most relevant ones, best first, " +
    "each with its path, a relevance score and the lines that match. Use it when you do not know " +
    "which memory file holds something; then view or edit that file with the memory tool.",
  input_schema: {
    type: "object" as const,
    properties: {
      query: {
        description:
          "What to look for, in plain words; the words that a note would contain work best",
        maxLength: 4096,
        minLength: 1,
        type: "string",
      },
      k: {
        default: 5,
        description: "The most files to return",
        maximum: 50,
        minimum: 1,
        type: "integer",
      },
    },
    required: ["query"],
  },
};

/** The answer to a recall, out of its JSON; undefined where that is none. */
export function readRecalled(json: unknown): Recalled | undefined {
  const answer = readAnswer(json);
  const listed = field(json, "results");
  if (answer === undefined || !Array.isArray(listed)) return undefined;
  const results = listed.map(readResult).filter((result) => result !== undefined);
  return results.length === listed.length ? { ...answer, results } : undefined;
}

function readResult(json: unknown): RecallResult | undefined {
  const [path, excerpt] = [field(json, "path"), field(json, "excerpt")];
  const [startLine, endLine] = [field(json, "start_line"), field(json, "end_line")];
  const [score, lexicalScore] = [field(json, "score"), field(json, "lexical_score")];
  const semanticScore = field(json, "semantic_score") ?? undefined;
  if (typeof path !== "string" || typeof excerpt !== "string") return undefined;
  if (!isNumber(score) || !isNumber(startLine) || !isNumber(endLine)) return undefined;
  if (!isNumber(lexicalScore)) return undefined;
  const result = { path, score, excerpt, startLine, endLine, lexicalScore };
  if (semanticScore === undefined) return result;
  return isNumber(semanticScore) ? { ...result, semanticScore } : undefined;
}

function isNumber(value: unknown): value is number {
  return typeof value === "number";
}
