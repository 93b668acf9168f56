/** Builds the wire messages of requests. */
import type { GenerateMessage, PromptMessage, SpeculationMessage } from "./wire.js";

export interface ChatMessage {
  /** Who speaks, as the model's template knows it: system, user, assistant. */
  role: string;
  content: string;
}

/** Text, token ids, or a conversation. */
export type Prompt = string | readonly number[] | readonly ChatMessage[];

/** Options of generation; one left out is unset, which the daemon tells apart from zero. */
export interface GenerateOptions {
  /** The budget. Unset: the daemon's default, or what is left of the model's context where that is less. */
  maxNewTokens?: number;
  /** Tokens before which nothing but the budget ends the output. */
  minNewTokens?: number;
  /** Unset or 0: greedy decoding. */
  temperature?: number;
  topP?: number;
  /** 0 keeps the whole vocabulary. */
  topK?: number;
  minP?: number;
  repetitionPenalty?: number;
  frequencyPenalty?: number;
  presencePenalty?: number;
  /** Token id to what its logit gains. */
  logitBias?: Readonly<Record<number, number>>;
  /** Decides the text whatever the draft trees; at most 2**63 - 1. Unset: the daemon draws one. */
  seed?: number | bigint;
  /** Texts that end the output. */
  stop?: string | readonly string[];
  stopTokenIds?: readonly number[];
  ignoreEos?: boolean;
  /** Whether the text keeps what ended it. */
  includeStop?: boolean;
  /** Draft tree of every step, `"TT,d,k"`; `"off"` decodes plainly. */
  action?: string;
  /** The stored policy, by version or alias, that chooses the draft trees. */
  policy?: string | number;
  /** Never try other draft trees on this request than the daemon's default policy chooses. */
  explorationOptOut?: boolean;
  /** Leave no rows of this request for policies to learn from. */
  learningOptOut?: boolean;
  /** Milliseconds after which the output ends with what it has; unlike `timeoutMs` that is no error. */
  timeLimitMs?: number;
  /** Samples of the prompt; over 1 needs a temperature over 0. They come as the result's `samples`. */
  n?: number;
  /** Tell each output token's log-probability and those of so many most probable tokens in its place; 0: its own. */
  logprobs?: number;
  /** The same for the prompt's tokens. */
  promptLogprobs?: number;
  /** Begin the text with the prompt's. */
  echo?: boolean;
  /** Keep the prompt's last so many tokens. */
  truncate?: number;
  /** Who goes first of the requests that wait. Unset: normal. */
  priority?: "low" | "normal" | "high";
  /** Unset: true. */
  skipSpecialTokens?: boolean;
  requestId?: string;
}

const PRIORITIES = { low: "PRIORITY_LOW", normal: "PRIORITY_NORMAL", high: "PRIORITY_HIGH" } as const;

/** The request message; throws on what the wire cannot hold. */
export function generateRequest(prompt: Prompt, options: GenerateOptions): GenerateMessage {
  const { seed, stop, logitBias, priority, timeLimitMs } = options;
  return defined({
    requestId: options.requestId,
    prompt: promptMessage(prompt, options.truncate),
    sampling: defined({
      n: options.n,
      temperature: options.temperature,
      topP: options.topP,
      topK: options.topK,
      minP: options.minP,
      repetitionPenalty: options.repetitionPenalty,
      frequencyPenalty: options.frequencyPenalty,
      presencePenalty: options.presencePenalty,
      logitBias: logitBias === undefined ? undefined : { ...logitBias },
      seed: seed === undefined ? undefined : seedText(seed),
    }),
    stopping: defined({
      maxNewTokens: options.maxNewTokens,
      minNewTokens: options.minNewTokens,
      stopStrings: typeof stop === "string" ? [stop] : stop && [...stop],
      stopTokenIds: options.stopTokenIds && [...options.stopTokenIds],
      ignoreEos: options.ignoreEos,
      includeStop: options.includeStop,
      timeLimitSeconds: timeLimitMs === undefined ? undefined : timeLimitMs / 1000,
    }),
    speculation: speculation(options),
    learningOptOut: options.learningOptOut,
    priority: priority === undefined ? undefined : PRIORITIES[priority],
    logprobs: options.logprobs,
    promptLogprobs: options.promptLogprobs,
    echo: options.echo,
    skipSpecialTokens: options.skipSpecialTokens,
  });
}

/** The prompt message; what the elements are decides between token ids and chat. */
export function promptMessage(prompt: Prompt, truncate?: number): PromptMessage {
  const cut = truncate === undefined ? {} : { truncate };
  if (typeof prompt === "string") return { text: prompt, ...cut };
  if (typeof prompt[0] === "object") return { chat: { messages: [...(prompt as readonly ChatMessage[])] }, ...cut };
  return { tokenIds: { ids: [...(prompt as readonly number[])] }, ...cut };
}

function speculation(options: GenerateOptions): SpeculationMessage | undefined {
  const { action, policy, explorationOptOut } = options;
  if (action !== undefined && policy !== undefined) {
    throw new Error("an action and a policy cannot both choose the draft trees; give one");
  }
  if (policy !== undefined) return { policy: String(policy) };
  if (action === undefined) return explorationOptOut ? { explorationOptOut } : undefined;
  if (action === "off") return { off: true };
  const numbers = action.split(",").map(Number);
  const [totalTokens, depth, topK] = numbers;
  if (numbers.length !== 3 || !numbers.every((each) => Number.isInteger(each) && each >= 0)) {
    throw new Error(`action '${action}' is neither 'off' nor total_tokens,depth,top_k`);
  }
  return { action: { totalTokens: totalTokens!, depth: depth!, topK: topK! } };
}

function seedText(seed: number | bigint): string {
  if (typeof seed === "number" && !Number.isSafeInteger(seed)) {
    throw new RangeError(`seed: ${seed} is not exact; give a bigint`);
  }
  if (seed < 0 || BigInt(seed) >= 1n << 64n) throw new RangeError(`seed: ${seed} must be from 0 to 2**63 - 1`);
  return seed.toString();
}

/** Without the keys that are undefined: those would be sent as set. */
function defined<T extends object>(fields: T): { [K in keyof T]: Exclude<T[K], undefined> } {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as never;
}
