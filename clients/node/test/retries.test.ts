/** Calls are tried again by status, on a server that fails as it is told. */
import assert from "node:assert/strict";
import { after, test } from "node:test";

import { Server, ServerCredentials, status } from "@grpc/grpc-js";

import { Client, ServiceError } from "../src/index.js";
import { services } from "../src/wire.js";

const failures: status[] = [];
let calls = 0;
const server = new Server();
server.addService(services.Generation.service, {
  Tokenize: (_call: unknown, answer: (error: object | null, message?: object) => void) => {
    calls += 1;
    const code = failures.shift();
    if (code === undefined) answer(null, { tokenIds: [1], pieces: [] });
    else answer({ code, details: "as told" });
  },
});
const port = await new Promise<number>((bound, failed) => {
  server.bindAsync("127.0.0.1:0", ServerCredentials.createInsecure(), (error, found) => (error ? failed(error) : bound(found)));
});
after(() => server.forceShutdown());

async function attempts(retries: number, ...codes: status[]): Promise<{ calls: number; end: string }> {
  failures.splice(0, failures.length, ...codes);
  calls = 0;
  const client = new Client(`127.0.0.1:${port}`, { retries });
  try {
    await client.tokenize("x");
    return { calls, end: "OK" };
  } catch (error) {
    assert.ok(error instanceof ServiceError);
    return { calls, end: error.code };
  } finally {
    client.close();
  }
}

test("unavailable and full are tried again as often as asked for", async () => {
  assert.deepEqual(await attempts(2, status.UNAVAILABLE, status.RESOURCE_EXHAUSTED), { calls: 3, end: "OK" });
  assert.deepEqual(await attempts(1, status.UNAVAILABLE, status.UNAVAILABLE), { calls: 2, end: "UNAVAILABLE" });
});

test("other failures, and all without retries, are final", async () => {
  assert.deepEqual(await attempts(3, status.INVALID_ARGUMENT), { calls: 1, end: "INVALID_ARGUMENT" });
  assert.deepEqual(await attempts(3, status.INTERNAL), { calls: 1, end: "INTERNAL" });
  assert.deepEqual(await attempts(0, status.UNAVAILABLE), { calls: 1, end: "UNAVAILABLE" });
});
