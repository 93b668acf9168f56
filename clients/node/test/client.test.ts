/** Against a daemon whose address and secrets come from the environment (tests/clients/test_node_client.py). */
import assert from "node:assert/strict";
import { after, test } from "node:test";

import { Client, ServiceError } from "../src/index.js";

const { ADDRESS, MODEL_ADDRESS, SECURE_ADDRESS, CA, TOKEN } = process.env as Record<string, string>;
assert.ok(ADDRESS && MODEL_ADDRESS && SECURE_ADDRESS && CA && TOKEN, "run by tests/clients/test_node_client.py");

const client = new Client(ADDRESS);
const model = new Client(MODEL_ADDRESS);
after(() => [client, model].forEach((each) => each.close()));
const ENDLESS = { maxNewTokens: 10 ** 6, ignoreEos: true };

async function idle() {
  while ((await client.load()).running + (await client.load()).waiting > 0) await new Promise((go) => setTimeout(go, 10));
}

function failed(code: string) {
  return (error: unknown) => error instanceof ServiceError && error.code === code;
}

test("a stream's chunks join to the result, which is what the unary call gives", async () => {
  const stream = client.stream("abc", { maxNewTokens: 20, seed: 7n, temperature: 0.8 });
  let text = "";
  const tokenIds: number[] = [];
  for await (const chunk of stream) {
    text += chunk.text;
    tokenIds.push(...chunk.tokenIds);
  }
  const whole = await client.generate("abc", { maxNewTokens: 20, seed: 7n, temperature: 0.8 });
  assert.equal(stream.result.text, text);
  assert.deepEqual(stream.result.tokenIds, tokenIds);
  assert.equal(whole.text, text);
  assert.deepEqual(whole.tokenIds, tokenIds);
  assert.equal(whole.completionTokens, 20);
  assert.equal(whole.finishReason, "length");
  assert.equal(whole.seed, 7n);
  assert.equal(stream.requestId, stream.result.requestId);
});

test("64 bits arrive exactly, and a drawn seed repeats its text", async () => {
  const seed = 2n ** 63n - 1n;
  assert.equal((await client.generate("abc", { maxNewTokens: 1, seed })).seed, seed);
  const drawn = await client.generate("abc", { maxNewTokens: 9, temperature: 1 });
  const again = await client.generate("abc", { maxNewTokens: 9, temperature: 1, seed: drawn.seed });
  assert.equal(again.text, drawn.text);
  assert.throws(() => client.stream("x", { seed: 2 ** 60 }), RangeError);
});

test("prompts are text, token ids or a conversation, and options reach the daemon", async () => {
  const { tokenIds } = await client.tokenize("abc");
  const options = { maxNewTokens: 8, ignoreEos: true };
  const expected = (await client.generate("abc", options)).text;
  assert.equal((await client.generate(tokenIds, options)).text, expected);
  assert.ok((await client.generate([{ role: "user", content: "abc" }], options)).promptTokens > tokenIds.length);
  const cut = await client.generate("abc", { ...options, stop: expected.slice(2, 4) });
  assert.equal(cut.finishReason, "stop_string");
  assert.equal(cut.matchedStop, expected.slice(2, 4));
  assert.equal((await client.generate("abc", { ...options, action: "off" })).draftedTokens, 0);
  assert.equal((await client.generate("abc", { ...options, policy: 1 })).policyVersionFirst, 1);
  assert.equal((await client.generate("abc", { ...options, requestId: "mine" })).requestId, "mine");
});

test("several samples come each with a seed of its own", async () => {
  const options = { maxNewTokens: 6, ignoreEos: true, temperature: 1, seed: 5, n: 3 };
  const { samples } = await model.generate("abc", options);
  assert.deepEqual(samples.map(({ index }) => index), [0, 1, 2]);
  const stream = model.stream("abc", options);
  const texts = ["", "", ""];
  for await (const chunk of stream) texts[chunk.index] += chunk.text;
  assert.deepEqual(samples.map(({ text }) => text), texts);
  assert.deepEqual(stream.result.samples.map(({ text }) => text), texts);
  const alone = await model.generate("abc", { ...options, n: 1, seed: samples[2]!.seed });
  assert.equal(alone.text, texts[2]);
  assert.deepEqual(alone.samples, []);
});

test("echo, truncation, priority and a time limit reach the daemon", async () => {
  const { tokenIds } = await model.tokenize("the cat", { truncate: 2 });
  assert.equal(tokenIds.length, 2);
  const echoed = await model.generate("the cat", { maxNewTokens: 2, echo: true, truncate: 2, priority: "high" });
  assert.deepEqual(echoed.promptTokenIds, tokenIds);
  const ended = await model.generate("the cat", { maxNewTokens: 200, ignoreEos: true, timeLimitMs: 1 });
  assert.equal(ended.finishReason, "time_limit");
});

test("log-probabilities come with their alternatives", async () => {
  const result = await model.generate("abc", { maxNewTokens: 3, ignoreEos: true, logprobs: 2, promptLogprobs: 1 });
  assert.deepEqual(result.logprobs.map(({ tokenId }) => tokenId), result.tokenIds);
  for (const { logprob, top } of result.logprobs) assert.ok(logprob! <= 0 && top.length === 2);
  assert.equal(result.promptLogprobs.length, result.promptTokens);
  assert.equal(result.promptLogprobs[0]?.logprob, undefined);
});

test("a refusal names field and request", async () => {
  const refused = client.generate("abc", { temperature: -1, requestId: "refused" });
  await assert.rejects(refused, (error: ServiceError) => {
    assert.ok(error instanceof ServiceError);
    assert.equal(error.code, "INVALID_ARGUMENT");
    assert.equal(error.fieldViolations[0]?.field, "sampling.temperature");
    assert.match(error.message, /temperature.*-1/);
    assert.ok(error.requestId);
    return true;
  });
  await assert.rejects(client.generate("abc", { policy: "nobody" }), failed("NOT_FOUND"));
});

test("unset is told apart from zero", async () => {
  await assert.rejects(client.generate("abc", { maxNewTokens: 0 }), failed("INVALID_ARGUMENT"));
  assert.equal((await client.generate("abc", { temperature: 0, topK: 0, maxNewTokens: 3 })).completionTokens, 3);
});

test("cancelling a stream, leaving its loop, or aborting frees the daemon", async () => {
  const cancelled = client.stream("abc", ENDLESS);
  await assert.rejects(async () => {
    for await (const _ of cancelled) cancelled.cancel();
  }, failed("CANCELLED"));
  for await (const _ of client.stream("abc", ENDLESS)) break;
  const aborting = new AbortController();
  await assert.rejects(async () => {
    for await (const _ of client.stream("abc", { ...ENDLESS, signal: aborting.signal })) aborting.abort();
  }, failed("CANCELLED"));
  await assert.rejects(client.generate("abc", { ...ENDLESS, signal: AbortSignal.timeout(50) }), failed("CANCELLED"));
  await assert.rejects(client.generate("abc", { ...ENDLESS, signal: AbortSignal.abort() }), failed("CANCELLED"));
  await idle();
});

test("a stream that is cancelled and never read ends nobody's program", async () => {
  client.stream("abc", ENDLESS).cancel();
  await idle();
});

test("a timeout ends the call", async () => {
  await assert.rejects(client.generate("abc", { ...ENDLESS, timeoutMs: 100 }), failed("DEADLINE_EXCEEDED"));
  const hasty = new Client(ADDRESS, { timeoutMs: 100 });
  await assert.rejects(hasty.generate("abc", ENDLESS), failed("DEADLINE_EXCEEDED"));
  hasty.close();
  await idle();
});

test("the daemon tells what it serves", async () => {
  const info = await client.modelInfo();
  assert.ok(info.vocabSize > 0 && info.contextLength > 0 && info.daemonVersion);
  const load = await client.load();
  assert.equal(load.accepting, true);
  assert.equal(load.secondsSinceProgress, 0);
  const [policy] = await client.listPolicies();
  assert.equal(policy?.version, 1);
  assert.ok(policy?.aliases.includes("champion"));
});

test("TLS and a token let in, and nothing less does", async () => {
  const tls = { ca: CA };
  const known = new Client(SECURE_ADDRESS, { tls, token: TOKEN });
  assert.equal((await known.generate("abc", { maxNewTokens: 3 })).completionTokens, 3);
  for await (const _ of known.stream("abc", { maxNewTokens: 3 }));
  known.close();
  const nameless = new Client(SECURE_ADDRESS, { tls });
  await assert.rejects(nameless.generate("abc"), failed("UNAUTHENTICATED"));
  nameless.close();
  const plain = new Client(SECURE_ADDRESS);
  await assert.rejects(plain.generate("abc", { timeoutMs: 5000 }), ServiceError);
  plain.close();
  assert.throws(() => new Client("example.com:7470", { token: TOKEN }), /unencrypted/);
});

test("the environment may name the files of TLS", async () => {
  process.env.RESPSD_CA = CA;
  try {
    const known = new Client(SECURE_ADDRESS, { token: TOKEN });
    assert.equal((await known.generate("abc", { maxNewTokens: 3 })).completionTokens, 3);
    known.close();
    process.env.RESPSD_KEY = CA;
    assert.throws(() => new Client(SECURE_ADDRESS), /RESPSD_CERTIFICATE and RESPSD_KEY/);
  } finally {
    delete process.env.RESPSD_CA;
    delete process.env.RESPSD_KEY;
  }
});

test("what is no address is refused at once", () => {
  for (const address of ["", "nowhere", "host:", "host:0", "host:70000", ":7470", "unix:"]) {
    assert.throws(() => new Client(address), /address/, address);
  }
  assert.throws(() => new Client(ADDRESS, { retries: 9 }), /retries/);
  assert.throws(() => client.stream("x", { action: "4,1" }), /action/);
  assert.throws(() => client.stream("x", { action: "4,1,2", policy: 1 }), /action/);
});
