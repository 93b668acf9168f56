/** Client of respsd. */
export { Client, type CallOptions } from "./client.js";
export { DEFAULT_ADDRESS, type ClientOptions, type Tls } from "./channel.js";
export { ServiceError, type FieldViolation } from "./errors.js";
export type { ChatMessage, GenerateOptions, Prompt } from "./request.js";
export type { Chunk, GenerateResult, Load, ModelInfo, PolicyInfo, TokenLogProb, Tokens } from "./result.js";
export { GenerationStream } from "./stream.js";
