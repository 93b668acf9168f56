/** The one error that calls reject with, and how it is read from a failed call. */
import { status, type Metadata, type ServiceError as GrpcError } from "@grpc/grpc-js";

/** A request field that the daemon refused. */
export interface FieldViolation {
  /** Path in the wire message, for example `sampling.temperature`. */
  field: string;
  description: string;
}

/** A call failed; `code` says how, the message says why. */
export class ServiceError extends Error {
  /** Name of the gRPC status, for example `INVALID_ARGUMENT`. */
  readonly code: string;
  readonly fieldViolations: readonly FieldViolation[];
  /** When the daemon asks to be tried again. */
  readonly retryAfterSeconds: number | undefined;
  /** Names the call in the daemon's log. */
  readonly requestId: string | undefined;

  constructor(code: string, message: string, details: Details = { fieldViolations: [] }, requestId?: string) {
    super(`${code}: ${message}`);
    this.name = "ServiceError";
    this.code = code;
    this.fieldViolations = details.fieldViolations;
    this.retryAfterSeconds = details.retryAfterSeconds;
    this.requestId = requestId;
  }

  /** Read a failed call; what is no failed call is returned as it is. */
  static from(error: unknown): unknown {
    if (!isGrpcError(error)) return error;
    const packed = error.metadata?.get("grpc-status-details-bin")[0];
    const details = Buffer.isBuffer(packed) ? readStatus(packed) : undefined;
    const requestId = error.metadata?.get("x-request-id")[0]?.toString();
    return new ServiceError(status[error.code] ?? String(error.code), error.details, details, requestId);
  }
}

interface Details {
  fieldViolations: FieldViolation[];
  retryAfterSeconds?: number;
}

function isGrpcError(error: unknown): error is GrpcError & { metadata?: Metadata } {
  return error instanceof Error && "code" in error && typeof error.code === "number" && "details" in error;
}

/** google.rpc.Status with BadRequest and RetryInfo; details of other kinds are left aside. */
function readStatus(packed: Buffer): Details {
  const found: Details = { fieldViolations: [] };
  for (const detail of fields(packed).filter((each) => each.number === 3)) {
    const any = fields(detail.bytes);
    const kind = text(any, 1).split("/").pop();
    const value = fields(any.find((each) => each.number === 2)?.bytes ?? Buffer.alloc(0));
    if (kind === "google.rpc.BadRequest") {
      for (const violation of value.filter((each) => each.number === 1)) {
        const inner = fields(violation.bytes);
        found.fieldViolations.push({ field: text(inner, 1), description: text(inner, 2) });
      }
    } else if (kind === "google.rpc.RetryInfo") {
      const delay = fields(value.find((each) => each.number === 1)?.bytes ?? Buffer.alloc(0));
      const part = (number: number) => delay.find((each) => each.number === number)?.varint ?? 0;
      found.retryAfterSeconds = part(1) + part(2) / 1e9;
    }
  }
  return found;
}

interface Field {
  number: number;
  varint: number;
  bytes: Buffer;
}

/** The fields of a message, in order; only varints and lengths, as these messages have no others. */
function fields(message: Buffer): Field[] {
  const found: Field[] = [];
  let at = 0;
  const varint = () => {
    let value = 0;
    for (let scale = 1; at < message.length; scale *= 128) {
      const byte = message[at++]!;
      value += (byte & 127) * scale;
      if (byte < 128) break;
    }
    return value;
  };
  while (at < message.length) {
    const key = varint();
    const value = varint();
    if (key % 8 === 0) found.push({ number: key >> 3, varint: value, bytes: Buffer.alloc(0) });
    else if (key % 8 === 2) found.push({ number: key >> 3, varint: 0, bytes: message.subarray(at, (at += value)) });
    else break;
  }
  return found;
}

function text(message: Field[], number: number): string {
  return message.find((each) => each.number === number)?.bytes.toString("utf8") ?? "";
}
