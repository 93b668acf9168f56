/** Where a daemon is, how it is reached, and who asks. */
import { readFileSync } from "node:fs";
import { isIP } from "node:net";

import { ChannelCredentials, credentials, type ClientOptions as GrpcOptions } from "@grpc/grpc-js";

export const DEFAULT_ADDRESS = "127.0.0.1:7470";
const MAX_MESSAGE_BYTES = 16 * 1024 * 1024;

/** Encrypt, with PEM files; `{}` trusts the system's authorities. */
export interface Tls {
  /** Authorities that the daemon's certificate must come from. */
  ca?: string;
  /** This client's own certificate, where the daemon asks for one; `key` goes with it. */
  certificate?: string;
  key?: string;
  /** Name that the daemon's certificate must have, where it is not the address's host. */
  serverName?: string;
}

export interface ClientOptions {
  /** Without it files `$RESPSD_CA`, or `$RESPSD_CERTIFICATE` and `$RESPSD_KEY`, turn TLS on. */
  tls?: Tls;
  /** A bearer token; without it `$RESPSD_TOKEN`. */
  token?: string;
  /** How often a call is tried again that found the daemon unavailable or its queue full, 0 to 4; 0 unless given. */
  retries?: number;
  /** Milliseconds that a call may take that says nothing else; without it calls wait for ever. */
  timeoutMs?: number;
}

export interface Channel {
  target: string;
  credentials: ChannelCredentials;
  options: GrpcOptions;
  /** What every call carries. */
  token: string | undefined;
}

/** All that gRPC needs; throws on an address or credentials that cannot be. */
export function channel(address: string, options: ClientOptions): Channel {
  const host = hostOf(address);
  const isLocal = address.startsWith("unix:") || isLoopback(host);
  const tls = options.tls ?? (address.startsWith("unix:") ? undefined : tlsOfEnvironment());
  const token = options.token ?? (process.env.RESPSD_TOKEN || undefined);
  if (token !== undefined && tls === undefined && !isLocal) {
    throw new Error(`the token would travel to ${address} unencrypted; give tls too`);
  }
  return { target: address, credentials: channelCredentials(tls), options: grpcOptions(options, tls, isLocal), token };
}

function tlsOfEnvironment(): Tls | undefined {
  const ca = process.env.RESPSD_CA || undefined;
  const certificate = process.env.RESPSD_CERTIFICATE || undefined;
  const key = process.env.RESPSD_KEY || undefined;
  if ((certificate === undefined) !== (key === undefined)) {
    throw new Error("set both RESPSD_CERTIFICATE and RESPSD_KEY, or neither");
  }
  if (ca === undefined && certificate === undefined) return undefined;
  return { ...(ca && { ca }), ...(certificate && { certificate }), ...(key && { key }) };
}

function grpcOptions(options: ClientOptions, tls: Tls | undefined, isLocal: boolean): GrpcOptions {
  const found: GrpcOptions = {
    // A daemon that is gone is noticed within a minute, even while a long call waits.
    "grpc.keepalive_time_ms": 30_000,
    "grpc.keepalive_timeout_ms": 10_000,
    "grpc.max_receive_message_length": MAX_MESSAGE_BYTES,
    "grpc.service_config": JSON.stringify(serviceConfig(options.retries ?? 0)),
  };
  if (isLocal) found["grpc.enable_http_proxy"] = 0;
  if (tls?.serverName !== undefined) found["grpc.ssl_target_name_override"] = tls.serverName;
  return found;
}

/** gRPC itself tries again, and never once an answer has begun. */
function serviceConfig(retries: number): object {
  if (!Number.isInteger(retries) || retries < 0 || retries > 4) {
    throw new RangeError(`retries: ${retries} is not allowed; it must be a whole number from 0 to 4`);
  }
  if (retries === 0) return { methodConfig: [] };
  const retryPolicy = {
    maxAttempts: retries + 1,
    initialBackoff: "0.2s",
    maxBackoff: "5s",
    backoffMultiplier: 2,
    retryableStatusCodes: ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
  };
  const names = ["GenerationService", "StatusService"].map((name) => ({ service: `respsd.v1.${name}` }));
  return { methodConfig: [{ name: names, retryPolicy }] };
}

function channelCredentials(tls: Tls | undefined): ChannelCredentials {
  if (tls === undefined) return credentials.createInsecure();
  if ((tls.certificate === undefined) !== (tls.key === undefined)) {
    throw new Error("give both certificate and key, or neither");
  }
  const [ca, key, certificate] = [tls.ca, tls.key, tls.certificate].map((file) => (file ? readFileSync(file) : null));
  return credentials.createSsl(ca, key, certificate);
}

function hostOf(address: string): string {
  if (address.startsWith("unix:")) {
    if (address === "unix:") throw new Error("address 'unix:' names no path");
    return "";
  }
  const at = address.lastIndexOf(":");
  const port = address.slice(at + 1);
  if (at < 1 || !/^\d+$/.test(port) || Number(port) < 1 || Number(port) > 65535) {
    throw new Error(`address '${address}' is neither HOST:PORT nor unix:PATH`);
  }
  return address.slice(0, at).replace(/^\[|\]$/g, "");
}

function isLoopback(host: string): boolean {
  return host === "localhost" || host === "::1" || (isIP(host) === 4 && host.startsWith("127."));
}
