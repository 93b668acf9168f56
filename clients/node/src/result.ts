/** What calls return, read from the wire messages. */
import type {
  Finished__Output,
  GenerateResponse__Output,
  GenerateStreamResponse__Output,
  GetLoadResponse__Output,
  GetModelInfoResponse__Output,
  Policy__Output,
  Started__Output,
  TokenLogProb__Output,
} from "./wire.js";

/** A token's log-probability after the tokens before it, in nats: the model's own, before sampling's options. */
export interface TokenLogProb {
  tokenId: number;
  /** Undefined for a prompt's first token, which follows nothing. */
  logprob: number | undefined;
  /** The most probable tokens in its place, as many as were asked for, the best first. */
  top: { tokenId: number; logprob: number }[];
}

/** One complete output, the first of several samples. */
export interface GenerateResult {
  text: string;
  /** Every committed token, the one that ended the output included. */
  tokenIds: number[];
  /** eos, stop_token, stop_string, length, context, time_limit or cancelled. */
  finishReason: string;
  /** The stop string that ended the output. */
  matchedStop: string | undefined;
  promptTokens: number;
  completionTokens: number;
  /** The seed in use, given or drawn; the same seed gives the same text again. */
  seed: bigint;
  /** Draft, verify and commit cycles; the first token comes from the prompt's forward pass. */
  steps: number;
  draftedTokens: number;
  /** Drafted tokens that were committed. */
  acceptedTokens: number;
  /** Policy versions that chose the first and the last draft tree; undefined where the request fixed them itself. */
  policyVersionFirst: number | undefined;
  policyVersionLast: number | undefined;
  requestId: string;
  queueSeconds: number;
  prefillSeconds: number;
  decodeSeconds: number;
  /** Which sample it is. */
  index: number;
  /** One for each token, where asked for. */
  logprobs: TokenLogProb[];
  /** The prompt's tokens after truncation, where `echo` asked for them. */
  promptTokenIds: number[];
  /** One for each token of the prompt, where asked for. */
  promptLogprobs: TokenLogProb[];
  /** All samples in order, this one first, where more than one was asked for. */
  samples: GenerateResult[];
}

/** A run of committed tokens and the text that became certain with them; either may be empty. */
export interface Chunk {
  tokenIds: number[];
  text: string;
  /** Which sample it belongs to. */
  index: number;
  /** One for each token, where asked for. */
  logprobs: TokenLogProb[];
}

/** A prompt's tokens. */
export interface Tokens {
  tokenIds: number[];
  /** Each token's own text, where asked for. */
  pieces: string[];
}

/** What the daemon serves. */
export interface ModelInfo {
  target: string;
  drafter: string | undefined;
  dtype: string;
  device: string;
  vocabSize: number;
  contextLength: number;
  eosTokenIds: number[];
  hasChatTemplate: boolean;
  defaultMaxNewTokens: number;
  daemonVersion: string;
}

/** The daemon's work at one moment. */
export interface Load {
  running: number;
  waiting: number;
  kvTokensReserved: number;
  kvTokensTotal: number;
  /** 0 when idle, infinite once the engine died. */
  secondsSinceProgress: number;
  accepting: boolean;
}

/** One stored policy version. */
export interface PolicyInfo {
  version: number;
  aliases: string[];
  state: string;
  kind: string;
  parent: number | undefined;
  tokensPerSecond: number | undefined;
}

/** Reads the messages of one stream in order and keeps what the final result needs. */
export class StreamReader {
  private started: Started__Output | undefined;
  private readonly samples = new Map<number, { output: Output; finished?: Finished__Output }>();
  private readonly promptLogprobs: TokenLogProb[] = [];

  get requestId(): string | undefined {
    return this.started?.requestId;
  }

  /** Take one message; return its chunk if it is one. */
  read(message: GenerateStreamResponse__Output): Chunk | undefined {
    if (message.started) this.started = message.started;
    if (message.promptLogprobs) this.promptLogprobs.push(...readLogprobs(message.promptLogprobs.tokens));
    if (message.finished) this.sample(message.finished.index).finished = message.finished;
    if (!message.chunk) return undefined;
    const { tokenIds, text, index } = message.chunk;
    const chunk = { tokenIds, text, index, logprobs: readLogprobs(message.chunk.logprobs) };
    const { output } = this.sample(index);
    output.text += text;
    output.tokenIds.push(...tokenIds);
    output.logprobs.push(...chunk.logprobs);
    return chunk;
  }

  /** The complete output; throws before the stream's last message. */
  get result(): GenerateResult {
    const { started } = this;
    const samples = [...this.samples].sort(([one], [other]) => one - other).map(([, sample]) => sample);
    if (started === undefined || samples.length < Math.max(1, started.samples)) throw new Error(UNREAD);
    const results = samples.map(({ output, finished }) => {
      if (finished === undefined) throw new Error(UNREAD);
      return readOutput(started.requestId, output, finished);
    });
    return firstOf(results, started.promptTokenIds, this.promptLogprobs);
  }

  private sample(index: number) {
    const found = this.samples.get(index) ?? { output: { text: "", tokenIds: [], logprobs: [] } };
    this.samples.set(index, found);
    return found;
  }
}

/** The result of a unary call. */
export function readGenerate(answer: GenerateResponse__Output): GenerateResult {
  const outputs = answer.samples.length > 0 ? answer.samples : [answer];
  const results = outputs.map(({ text, tokenIds, logprobs, finished }) => {
    if (!finished) throw new Error("the daemon's answer has no end");
    return readOutput(answer.requestId, { text, tokenIds, logprobs: readLogprobs(logprobs) }, finished);
  });
  return firstOf(results, answer.promptTokenIds, readLogprobs(answer.promptLogprobs));
}

const UNREAD = "the stream has not been read to its end";

interface Output {
  text: string;
  tokenIds: number[];
  logprobs: TokenLogProb[];
}

/** The first of some samples, with what the whole call has beside them. */
function firstOf(results: GenerateResult[], promptTokenIds: number[], promptLogprobs: TokenLogProb[]): GenerateResult {
  const first = { ...results[0]!, promptTokenIds, promptLogprobs };
  if (results.length > 1) first.samples = [first, ...results.slice(1)];
  return first;
}

function readLogprobs(messages: TokenLogProb__Output[]): TokenLogProb[] {
  return messages.map(({ tokenId, logprob, top }) => ({
    tokenId,
    logprob: logprob === undefined ? undefined : Number(logprob),
    top: top.map((each) => ({ tokenId: each.tokenId, logprob: Number(each.logprob) })),
  }));
}

function readOutput(requestId: string, output: Output, end: Finished__Output): GenerateResult {
  const { usage, timings } = end;
  return {
    ...output,
    finishReason: String(end.finishReason).replace("FINISH_REASON_", "").toLowerCase(),
    matchedStop: end.matchedStop,
    promptTokens: usage?.promptTokens ?? 0,
    completionTokens: usage?.completionTokens ?? 0,
    seed: BigInt(end.seed),
    steps: end.steps,
    draftedTokens: end.draftedTokens,
    acceptedTokens: end.acceptedTokens,
    policyVersionFirst: optional(end.policyVersionFirst),
    policyVersionLast: optional(end.policyVersionLast),
    requestId,
    queueSeconds: Number(timings?.queueSeconds ?? 0),
    prefillSeconds: Number(timings?.prefillSeconds ?? 0),
    decodeSeconds: Number(timings?.decodeSeconds ?? 0),
    index: end.index,
    promptTokenIds: [],
    promptLogprobs: [],
    samples: [],
  };
}

export function readModelInfo(message: GetModelInfoResponse__Output): ModelInfo {
  const { target, dtype, device, vocabSize, contextLength, eosTokenIds, hasChatTemplate } = message;
  const { drafter, defaultMaxNewTokens, daemonVersion } = message;
  return {
    target, drafter, dtype, device, vocabSize, contextLength, eosTokenIds, hasChatTemplate, defaultMaxNewTokens,
    daemonVersion,
  };
}

export function readLoad(message: GetLoadResponse__Output): Load {
  return {
    running: message.running,
    waiting: message.waiting,
    kvTokensReserved: Number(message.kvTokensReserved),
    kvTokensTotal: Number(message.kvTokensTotal),
    secondsSinceProgress: Number(message.secondsSinceProgress),
    accepting: message.accepting,
  };
}

export function readPolicy(message: Policy__Output): PolicyInfo {
  const { aliases, state, kind, tokensPerSecond } = message;
  return {
    version: Number(message.version),
    aliases,
    state,
    kind,
    parent: optional(message.parent),
    tokensPerSecond: tokensPerSecond === undefined ? undefined : Number(tokensPerSecond),
  };
}

function optional(value: string | undefined): number | undefined {
  return value === undefined ? undefined : Number(value);
}
