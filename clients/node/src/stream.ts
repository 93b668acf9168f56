/** One output as it is generated. */
import type { ClientReadableStream } from "@grpc/grpc-js";

import { ServiceError } from "./errors.js";
import { type Chunk, type GenerateResult, StreamReader } from "./result.js";
import type { GenerateStreamResponse__Output } from "./wire.js";

/** Chunks of an output as they are committed; leaving its `for await` early cancels the rest in the daemon too. */
export class GenerationStream implements AsyncIterable<Chunk> {
  private readonly reader = new StreamReader();

  constructor(private readonly call: ClientReadableStream<GenerateStreamResponse__Output>) {
    // Whoever cancels a stream and reads no further must not be ended by an error that nobody awaits.
    call.on("error", () => undefined);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Chunk, void, undefined> {
    try {
      for await (const message of this.call) {
        const chunk = this.reader.read(message as GenerateStreamResponse__Output);
        if (chunk !== undefined) yield chunk;
      }
    } catch (error) {
      throw ServiceError.from(error);
    } finally {
      this.call.cancel();
    }
  }

  /** The complete output; throws before all chunks are read. */
  get result(): GenerateResult {
    return this.reader.result;
  }

  /** The request's id; undefined before the first chunk. */
  get requestId(): string | undefined {
    return this.reader.requestId;
  }

  /** Stop generating; reading on throws a ServiceError with CANCELLED. After the end it does nothing. */
  cancel(): void {
    this.call.cancel();
  }
}
