/** The wire API as gRPC clients; the types beside it are generated from the same files. */
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

import * as grpc from "@grpc/grpc-js";
import * as loader from "@grpc/proto-loader";

import type { ProtoGrpcType as Generation } from "./build/generation.js";
import type { ProtoGrpcType as Policy } from "./build/policy.js";
import type { ProtoGrpcType as Status } from "./build/status.js";

const PROTO = join(dirname(fileURLToPath(import.meta.url)), "..", "proto");

function load<T>(name: string): T {
  const definition = loader.loadSync(`respsd/v1/${name}.proto`, {
    includeDirs: [PROTO],
    longs: String, // 64 bits do not fit into a number
    enums: String,
    defaults: true,
    oneofs: true,
  });
  return grpc.loadPackageDefinition(definition) as unknown as T;
}

/** The client classes of the three services. */
export const services = {
  Generation: load<Generation>("generation").respsd.v1.GenerationService,
  Policy: load<Policy>("policy").respsd.v1.PolicyService,
  Status: load<Status>("status").respsd.v1.StatusService,
};

export type { GenerateStreamResponse__Output } from "./build/respsd/v1/GenerateStreamResponse.js";
export type { GenerateRequest as GenerateMessage } from "./build/respsd/v1/GenerateRequest.js";
export type { GenerateResponse__Output } from "./build/respsd/v1/GenerateResponse.js";
export type { Started__Output } from "./build/respsd/v1/Started.js";
export type { TokenLogProb__Output } from "./build/respsd/v1/TokenLogProb.js";
export type { Finished__Output } from "./build/respsd/v1/Finished.js";
export type { GetLoadResponse__Output } from "./build/respsd/v1/GetLoadResponse.js";
export type { GetModelInfoResponse__Output } from "./build/respsd/v1/GetModelInfoResponse.js";
export type { ListPoliciesResponse__Output } from "./build/respsd/v1/ListPoliciesResponse.js";
export type { TokenizeResponse__Output } from "./build/respsd/v1/TokenizeResponse.js";
export type { Policy__Output } from "./build/respsd/v1/Policy.js";
export type { Prompt as PromptMessage } from "./build/respsd/v1/Prompt.js";
export type { Speculation as SpeculationMessage } from "./build/respsd/v1/Speculation.js";
export type { GenerationServiceClient } from "./build/respsd/v1/GenerationService.js";
export type { PolicyServiceClient } from "./build/respsd/v1/PolicyService.js";
export type { StatusServiceClient } from "./build/respsd/v1/StatusService.js";
