/** The client. */
import { type CallOptions as GrpcCallOptions, Metadata, type ClientUnaryCall, type requestCallback } from "@grpc/grpc-js";

import { channel, type ClientOptions, DEFAULT_ADDRESS } from "./channel.js";
import { ServiceError } from "./errors.js";
import { type GenerateOptions, generateRequest, type Prompt, promptMessage } from "./request.js";
import {
  type GenerateResult, type Load, type ModelInfo, type PolicyInfo, readGenerate, readLoad, readModelInfo, readPolicy,
  type Tokens,
} from "./result.js";
import { GenerationStream } from "./stream.js";
import {
  type GenerateResponse__Output, type GenerationServiceClient, type GetLoadResponse__Output,
  type GetModelInfoResponse__Output, type ListPoliciesResponse__Output, type PolicyServiceClient, services,
  type StatusServiceClient, type TokenizeResponse__Output,
} from "./wire.js";

/** How one call is made. */
export interface CallOptions {
  /** Milliseconds; the call then fails with DEADLINE_EXCEEDED. */
  timeoutMs?: number;
  /** Ends the call, and the request in the daemon, with CANCELLED. */
  signal?: AbortSignal;
}

type Start<Response> = (
  metadata: Metadata,
  options: GrpcCallOptions,
  callback: requestCallback<Response>,
) => ClientUnaryCall;

/** A connection to a daemon at `HOST:PORT` or `unix:PATH`. Every call that fails rejects with a ServiceError. */
export class Client {
  /** The services themselves, for calls that have no method here; give them `metadata()`. */
  readonly generation: GenerationServiceClient;
  readonly policies: PolicyServiceClient;
  readonly status: StatusServiceClient;
  private readonly token: string | undefined;

  constructor(address: string = DEFAULT_ADDRESS, private readonly options: ClientOptions = {}) {
    const { target, credentials, options: channelOptions, token } = channel(address, options);
    this.token = token;
    this.generation = new services.Generation(target, credentials, channelOptions);
    const shared = { channelOverride: this.generation.getChannel() };
    this.policies = new services.Policy(target, credentials, shared);
    this.status = new services.Status(target, credentials, shared);
  }

  /** Generate to the end and return the whole output. */
  async generate(prompt: Prompt, options: GenerateOptions & CallOptions = {}): Promise<GenerateResult> {
    const request = generateRequest(prompt, options);
    return readGenerate(
      await this.unary<GenerateResponse__Output>((...call) => this.generation.Generate(request, ...call), options),
    );
  }

  /** Start generating; iterate over it for the chunks. */
  stream(prompt: Prompt, options: GenerateOptions & CallOptions = {}): GenerationStream {
    const request = generateRequest(prompt, options);
    const call = this.generation.GenerateStream(request, this.metadata(), this.callOptions(options));
    abortWith(options.signal, call);
    return new GenerationStream(call);
  }

  /** Token ids of a prompt, as generation would start from. */
  async tokenize(prompt: Prompt, options: CallOptions & { withPieces?: boolean; truncate?: number } = {}): Promise<Tokens> {
    const request = { prompt: promptMessage(prompt, options.truncate), withPieces: options.withPieces ?? false };
    const { tokenIds, pieces } = await this.unary<TokenizeResponse__Output>((...call) => this.generation.Tokenize(request, ...call), options);
    return { tokenIds, pieces };
  }

  /** What the daemon serves. */
  async modelInfo(options: CallOptions = {}): Promise<ModelInfo> {
    return readModelInfo(await this.unary<GetModelInfoResponse__Output>((...call) => this.generation.GetModelInfo({}, ...call), options));
  }

  /** The daemon's work at this moment. */
  async load(options: CallOptions = {}): Promise<Load> {
    return readLoad(await this.unary<GetLoadResponse__Output>((...call) => this.status.GetLoad({}, ...call), options));
  }

  /** Every stored policy version, oldest first. */
  async listPolicies(options: CallOptions = {}): Promise<PolicyInfo[]> {
    return (await this.unary<ListPoliciesResponse__Output>((...call) => this.policies.ListPolicies({}, ...call), options)).policies.map(readPolicy);
  }

  /** What every call carries. */
  metadata(): Metadata {
    const metadata = new Metadata();
    if (this.token !== undefined) metadata.set("authorization", `Bearer ${this.token}`);
    return metadata;
  }

  /** Close the connection and cancel what is under way. */
  close(): void {
    for (const service of [this.generation, this.policies, this.status]) service.close();
  }

  private callOptions(options: CallOptions): GrpcCallOptions {
    const timeout = options.timeoutMs ?? this.options.timeoutMs;
    return timeout === undefined ? {} : { deadline: Date.now() + timeout };
  }

  private unary<Response>(start: Start<Response>, options: CallOptions): Promise<Response> {
    return new Promise((resolve, reject) => {
      const call = start(this.metadata(), this.callOptions(options), (error, response) => {
        if (error || response === undefined) reject(ServiceError.from(error));
        else resolve(response);
      });
      abortWith(options.signal, call);
    });
  }
}

function abortWith(signal: AbortSignal | undefined, call: { cancel(): void; on(event: "status", then: () => void): unknown }) {
  if (signal === undefined) return;
  const cancel = () => call.cancel();
  if (signal.aborted) cancel();
  signal.addEventListener("abort", cancel, { once: true });
  call.on("status", () => signal.removeEventListener("abort", cancel));
}
