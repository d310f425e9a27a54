// Runs a function written for Node.js, as AWS' own runtime does: asks the Runtime API for events, calls the handler with
// (event, context, callback), and sends its answer. A client of Mayfly's own, because AWS' (npm's aws-lambda-ric) must be
// compiled for each version of Node.js.

import { AsyncLocalStorage } from "node:async_hooks";
import fs from "node:fs";
import http from "node:http";
import nodeModule from "node:module";
import path from "node:path";
import stream from "node:stream";
import util from "node:util";
import { pathToFileURL } from "node:url";

const env = process.env;
const [host, port] = env.AWS_LAMBDA_RUNTIME_API.split(":");
// So many requests run at once, in one thread: what one waits for lets the others go on.
const atOnce = Number(env.AWS_LAMBDA_MAX_CONCURRENCY ?? 1);
// From Node.js 24 on Lambda's handlers have an event and a context alone, and what they return is the answer.
const hasCallbacks = Number(process.versions.node.split(".")[0]) < 24;
const agent = new http.Agent({ keepAlive: true, maxSockets: atOnce === 1 ? 1 : 2 * atOnce });
// The id of the request that code works on, of several.
const ofRequest = atOnce === 1 ? { run: (_, work) => work(), getStore() {} } : new AsyncLocalStorage();
// Rejects the invocation that runs now: called when it fails outside its handler.
let current = null;
// Called once the event loop is empty.
let whenEmpty = null;

function call(method, below, body, headers = {}) {
  return new Promise((resolve, reject) => {
    const length = body === undefined ? {} : { "Content-Length": Buffer.byteLength(body) };
    const to = { host, port, agent, method, path: `/2018-06-01/runtime/${below}`, headers: { ...headers, ...length } };
    const request = http.request(to, (response) => {
      const parts = [];
      response.on("data", (part) => parts.push(part));
      response.on("end", () => resolve({ headers: response.headers, status: response.statusCode, body: Buffer.concat(parts) }));
      response.on("error", reject);
    });
    request.on("error", reject);
    request.end(body);
  });
}

class RuntimeError extends Error {
  constructor(name, message) {
    super(message);
    Object.defineProperty(this, "name", { value: `Runtime.${name}` });
  }
}

// Text that a header may repeat: AWS' client replaces this character, too.
const visible = (text) => text.replaceAll("\x7f", "%7F");
const textsOf = (value) => [value?.name, value?.message, value?.stack];
const isError = (value) => util.types.isNativeError(value) || textsOf(value).every((text) => text && typeof text === "string");

// A thrown value as Lambda reports it.
function described(error) {
  try {
    if (!isError(error)) return { errorType: typeof error, errorMessage: String(error), trace: [] };
    const [errorType, errorMessage, stack] = textsOf(error).map((text) => visible(text ?? ""));
    return { errorType, errorMessage, trace: stack.split("\n") };
  } catch (unreadable) {
    return { errorType: "handled", errorMessage: `The error cannot be read: ${unreadable}`, trace: [] };
  }
}

// The members of an error, which are not enumerable, and its own.
const withMembers = (key, value) =>
  value instanceof Error
    ? { errorType: value.name, errorMessage: value.message, code: value.code, ...value, stack: value.stack?.split?.("\n") }
    : value;

// An error in the log.
function logError(title, error) {
  if (isInJson) return console.error(described(error));
  let text;
  try {
    text = JSON.stringify(error instanceof Error ? error : new Error(error), withMembers);
  } catch {
    text = JSON.stringify(described(error));
  }
  console.error(title, `\t${text}`);
}

function sendError(below, error) {
  const report = described(error);
  const kind = report.errorType.replace(/[^\x20-\x7e]/g, "?");
  return call("POST", below, JSON.stringify(report), { "Lambda-Runtime-Function-Error-Type": kind });
}

// ---- packages of layers ----

// `import` ignores NODE_PATH. Lambda's runtimes find the packages there all the same, after the function's own.
const isAbsent = (name, error) => error?.code === "ERR_MODULE_NOT_FOUND" && !/^(\.{0,2}\/|[a-z0-9+.-]+:|#)/i.test(name);

function hooksOf(parents) {
  const resolve = (name, context, next) => {
    let absent;
    for (const parentURL of [context.parentURL, ...parents]) {
      try {
        return next(name, { ...context, parentURL });
      } catch (error) {
        if (!isAbsent(name, error)) throw error;
        absent ??= error;
      }
    }
    throw absent;
  };
  return { resolve };
}

// The same for Node.js before 22.15, which runs hooks in a thread of their own.
const IN_A_THREAD = `
const isAbsent = ${isAbsent};
let parents;
export const initialize = (given) => void (parents = given);
export async function resolve(name, context, next) {
  let absent;
  for (const parentURL of [context.parentURL, ...parents]) {
    try {
      return await next(name, { ...context, parentURL });
    } catch (error) {
      if (!isAbsent(name, error)) throw error;
      absent ??= error;
    }
  }
  throw absent;
}
`;

function findPackagesOfLayers() {
  const folders = (env.NODE_PATH ?? "").split(":").filter((folder) => path.basename(folder) === "node_modules" && fs.existsSync(folder));
  if (folders.length === 0) return;
  const parents = folders.map((folder) => pathToFileURL(`${path.dirname(folder)}/`).href);
  if (nodeModule.registerHooks) nodeModule.registerHooks(hooksOf(parents));
  else nodeModule.register?.(`data:text/javascript,${encodeURIComponent(IN_A_THREAD)}`, { data: parents });
}

// ---- the handler ----

// A `require` that failed, with this file as the last in the stack of those that required.
const importError = (text) => new RuntimeError("ImportModuleError", `${text}\n- ${process.argv[1]}`);

function fileOf(folder, module) {
  const base = path.resolve(env.LAMBDA_TASK_ROOT, folder, module);
  const found = ["", ".js", ".mjs", ".cjs"].map((end) => base + end).find((file) => fs.statSync(file, { throwIfNoEntry: false })?.isFile());
  if (!found) throw importError(`Error: Cannot find module '${module}'\nRequire stack:`);
  return found;
}

async function load(text) {
  const { dir, base } = path.parse(text);
  const dot = base.indexOf(".");
  if (dot < 1 || dot === base.length - 1 || text.includes("..")) throw new RuntimeError("MalformedHandlerName", "Bad handler");
  const file = fileOf(dir, base.slice(0, dot));
  let module;
  try {
    module = await import(pathToFileURL(file));
  } catch (error) {
    if (error instanceof SyntaxError) throw new RuntimeError("UserCodeSyntaxError", `SyntaxError: ${error.message}`);
    throw error?.code === "MODULE_NOT_FOUND" ? importError(`Error: ${error.message}`) : error;
  }
  const names = base.slice(dot + 1).split(".");
  const within = (whole) => names.reduce((part, name) => part?.[name], whole);
  const handler = within(module) ?? within(module.default);
  if (handler === undefined) throw new RuntimeError("HandlerNotFound", `${text} is undefined or not exported`);
  if (typeof handler !== "function") throw new RuntimeError("HandlerNotFound", `${text} is not a function`);
  if (!hasCallbacks && handler.length > 2 && !handler[STREAMS]) {
    const where = "declare it as (event, context), and return its answer or a promise";
    throw new RuntimeError("CallbackHandlerDeprecated", `Lambda calls no handler with a callback from Node.js 24 on: ${text}: ${where}`);
  }
  return handler;
}

// ---- answers that are streamed ----

const STREAMS = Symbol("streams");
// The content type of an answer to a function's URL: status and headers in JSON, eight zero bytes, the
// body.
const INTEGRATION = "application/vnd.awslambda.http-integration-response";

globalThis.awslambda = {
  streamifyResponse(handler) {
    handler[STREAMS] = true;
    return handler;
  },
  HttpResponseStream: {
    from(responseStream, prelude) {
      responseStream.setContentType(INTEGRATION);
      responseStream.write(JSON.stringify(prelude));
      responseStream.write(Buffer.alloc(8));
      return responseStream;
    },
  },
};

// Sends each write at once, and reports a later error in trailers.
class ResponseStream extends stream.Writable {
  #id;
  #type = "application/octet-stream";
  #request;
  #answered;

  constructor(id) {
    super();
    this.#id = id;
    this.on("error", () => {}); // the writer reports it to the handler
  }

  get hasBegun() {
    return this.#request !== undefined;
  }

  setContentType(type) {
    this.#type = type;
  }

  #open() {
    if (this.#request) return this.#request;
    const headers = {
      "Content-Type": this.#type,
      "Lambda-Runtime-Function-Response-Mode": "streaming",
      Trailer: "Lambda-Runtime-Function-Error-Type, Lambda-Runtime-Function-Error-Body",
    };
    const to = { host, port, agent, method: "POST", path: `/2018-06-01/runtime/invocation/${this.#id}/response`, headers };
    this.#request = http.request(to);
    this.#request.flushHeaders();
    this.#answered = new Promise((resolve, reject) => {
      this.#request.on("response", (response) => response.resume().on("end", resolve).on("error", reject));
      this.#request.on("error", reject);
    });
    this.#answered.catch(() => {}); // _final and fail report it
    return this.#request;
  }

  // A part that is neither text nor bytes is sent as JSON.
  write(part, ...rest) {
    return super.write(typeof part === "string" || part instanceof Uint8Array ? part : JSON.stringify(part), ...rest);
  }

  _write(part, encoding, done) {
    this.#open().write(part, encoding, done);
  }

  _final(done) {
    this.#open().end();
    this.#answered.then(() => done(), done);
  }

  // The handler failed after a part was sent.
  async fail(error) {
    const report = described(error);
    this.#request.addTrailers({
      "Lambda-Runtime-Function-Error-Type": report.errorType.replace(/[^\x20-\x7e]/g, "?"),
      "Lambda-Runtime-Function-Error-Body": Buffer.from(JSON.stringify(report)).toString("base64"),
    });
    this.#request.end();
    await this.#answered;
    this.destroy();
  }
}

function contextOf(headers, ends) {
  const deadline = Number(headers["lambda-runtime-deadline-ms"]);
  // Node.js reads headers as Latin-1.
  const json = (name) => (headers[name] ? JSON.parse(Buffer.from(headers[name], "latin1")) : undefined);
  return {
    ...(hasCallbacks && { callbackWaitsForEmptyEventLoop: true }),
    functionVersion: env.AWS_LAMBDA_FUNCTION_VERSION,
    functionName: env.AWS_LAMBDA_FUNCTION_NAME,
    memoryLimitInMB: env.AWS_LAMBDA_FUNCTION_MEMORY_SIZE,
    logGroupName: env.AWS_LAMBDA_LOG_GROUP_NAME,
    logStreamName: env.AWS_LAMBDA_LOG_STREAM_NAME,
    clientContext: json("lambda-runtime-client-context"),
    identity: json("lambda-runtime-cognito-identity"),
    invokedFunctionArn: headers["lambda-runtime-invoked-function-arn"],
    awsRequestId: headers["lambda-runtime-aws-request-id"],
    tenantId: headers["lambda-runtime-aws-tenant-id"],
    getRemainingTimeInMillis: () => deadline - Date.now(),
    ...ends,
  };
}

// The `this` of handlers, and what stack traces name.
class Runtime {
  constructor(handler) {
    this.handler = handler;
  }
}

// The handler's answer from Node.js 24 on. If it never comes, and the event loop is empty, the process ends.
function runReturning(runtime, event, headers) {
  return new Promise((resolve, reject) => {
    current = reject;
    resolve(runtime.handler(event, contextOf(headers)));
  });
}

// The handler's answer before: by the first of its promise, its callback and its context, or, without any, null once the event loop
// is empty. Only the callback waits for that.
function run(runtime, event, headers) {
  return new Promise((resolve, reject) => {
    current = reject;
    let ended = false;
    const once = (settle) => (error, value) => {
      if (ended) return;
      ended = true;
      if (error !== undefined && error !== null) reject(error);
      else settle(() => resolve(value));
    };
    const callback = once((settle) => {
      // With several requests at once the event loop is never empty.
      if (context.callbackWaitsForEmptyEventLoop && atOnce === 1) whenEmpty = () => setImmediate(settle);
      else settle();
    });
    const done = once((settle) => settle());
    const fail = (error) => done(error ?? "handled");
    const succeed = (value) => done(null, value);
    whenEmpty = succeed;
    const context = contextOf(headers, { done, fail, succeed });
    try {
      const returned = runtime.handler(event, context, callback);
      if (typeof returned?.then === "function") returned.then(succeed, fail);
      else if (atOnce > 1 && runtime.handler.length < 3) succeed();
    } catch (error) {
      callback(error);
    }
  });
}

// JSON.stringify makes nothing of functions and symbols, which AWS' client refuses.
function answerOf(value) {
  let answer;
  try {
    answer = JSON.stringify(value === undefined ? null : value);
  } catch {
    throw new Error("Unable to stringify response body");
  }
  if (answer === undefined) throw new TypeError("Wrong arguments");
  return answer;
}

// The handler writes its answer, and ends it.
function runStreaming(runtime, event, headers, response) {
  return new Promise((resolve, reject) => {
    current = reject;
    // The handler has left the answer open, and nothing is left in the event loop that could end it.
    whenEmpty = () => response.end();
    stream.finished(response, (error) => (error ? reject(error) : resolve()));
    Promise.resolve(runtime.handler(event, response, contextOf(headers))).catch(reject);
  });
}

async function serve(handler) {
  const runtime = new Runtime(handler);
  for (;;) {
    const { headers, status, body } = await call("GET", "invocation/next");
    if (status !== 200) throw new Error(`the Runtime API answered next with status ${status}`);
    const id = headers["lambda-runtime-aws-request-id"];
    const trace = headers["lambda-runtime-trace-id"];
    if (trace && atOnce === 1) env._X_AMZN_TRACE_ID = trace;
    else delete env._X_AMZN_TRACE_ID;
    requestId = id;
    tenantId = headers["lambda-runtime-aws-tenant-id"];
    await ofRequest.run(id, () => serveOne(runtime, id, headers, body));
  }
}

async function serveOne(runtime, id, headers, body) {
  let answer;
  const response = runtime.handler[STREAMS] && new ResponseStream(id);
  try {
    if (response) {
      await runStreaming(runtime, JSON.parse(body), headers, response);
      return;
    }
    answer = answerOf(await (hasCallbacks ? run : runReturning)(runtime, JSON.parse(body), headers));
  } catch (thrown) {
    const { error, code } = thrown instanceof Fatal ? thrown : { error: thrown };
    if (code === undefined) logError("Invoke Error", error);
    if (response?.hasBegun) await response.fail(error);
    else await sendError(`invocation/${id}/error`, error);
    if (code !== undefined) process.exit(code);
    return;
  } finally {
    current = whenEmpty = null;
  }
  await call("POST", `invocation/${id}/response`, answer, { "Content-Type": "application/json" });
}

// ---- failures outside the handler ----

// The process ends once this error is reported.
class Fatal {
  constructor(error, code) {
    this.error = error;
    this.code = code;
  }
}

class UnhandledRejection extends RuntimeError {
  constructor(reason, promise) {
    super("UnhandledPromiseRejection", reason);
    Object.assign(this, { reason, promise });
  }
}

function end(title, error, code) {
  logError(title, error);
  // Of several requests, none is known as the one that failed: the worker answers them all with this end.
  if (!current || atOnce > 1) process.exit(code);
  current(new Fatal(error, code));
}

process.on("uncaughtException", (error) => end("Uncaught Exception", error, 129));
process.on("unhandledRejection", (reason, promise) =>
  end("Unhandled Promise Rejection", new UnhandledRejection(reason, promise), 128));
process.on("beforeExit", () => {
  const then = whenEmpty;
  whenEmpty = null;
  then?.();
});

// ---- the log: time, request and level before each line ----

// Node.js makes a pipe non-blocking once anything uses process.stdout. A full pipe then refuses what console prints, and
// process.exit drops what process.stdout holds back.
for (const output of [process.stdout, process.stderr]) output._handle?.setBlocking?.(true);

const wakesNever = new Int32Array(new SharedArrayBuffer(4));

// Returns once the pipe has taken all of it. A child that shares the pipe may make it non-blocking at any time.
function writeWhole(text) {
  const bytes = Buffer.from(text);
  for (let at = 0; at < bytes.length; ) {
    try {
      at += fs.writeSync(1, bytes, at);
    } catch (error) {
      if (error.code !== "EAGAIN") throw error;
      Atomics.wait(wakesNever, 0, 0, 1);
    }
  }
}

let requestId, tenantId;
const LEVELS = ["TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"];
const isInJson = env.AWS_LAMBDA_LOG_FORMAT === "JSON";
const leastLevel = isInJson ? LEVELS.indexOf(env.AWS_LAMBDA_LOG_LEVEL?.toUpperCase()) : 0;

// What a log in JSON has of a thrown value.
function errorFields(error) {
  const stackTrace = typeof error.stack === "string" ? error.stack.split("\n") : [];
  return { errorType: error.constructor?.name ?? "UnknownError", errorMessage: error.message, stackTrace };
}

// A line of a log in JSON: a lone value as it is, several as text, with the first error's fields.
function record(level, values) {
  const line = { timestamp: new Date().toISOString(), level, requestId: ofRequest.getStore() ?? requestId, tenantId };
  if (values.length === 1) {
    const plain = (key, value) => (value instanceof Error ? { ...errorFields(value), ...value } : value);
    try {
      return JSON.stringify({ ...line, message: values[0] }, plain);
    } catch {
      // Circles and numbers that JSON lacks.
    }
  }
  const error = values.find((value) => value instanceof Error);
  return JSON.stringify({ ...line, message: util.format(...values), ...(error && errorFields(error)) });
}

const plainLine = (level, values) => `${new Date().toISOString()}\t${ofRequest.getStore() ?? requestId ?? "undefined"}\t${level}\t${util.format(...values)}`;

for (const [name, level] of [["log", "INFO"], ["info", "INFO"], ["debug", "DEBUG"], ["trace", "TRACE"], ["warn", "WARN"], ["error", "ERROR"]]) {
  console[name] = (...values) => {
    if (LEVELS.indexOf(level) >= leastLevel) writeWhole(`${(isInJson ? record : plainLine)(level, values)}\n`);
  };
}

// ---- snapshots (SnapStart) ----

// The descriptor of the line to the worker (worker_snapshot::WAITS).
const LINE = 9;
// How many UUIDs and numbers Node.js' own caches of random bytes hold (lib/internal/crypto/random.js), at most.
const CACHED_UUIDS = 128;
const CACHED_INTEGERS = 1024;
// How a function comes to be taken: its owner asks for it, or it is so by default.
const taken = env.MAYFLY_SNAPSHOT;
const require = nodeModule.createRequire(import.meta.url);

// Math.random from the system's generator, of which copies have none alike; its own cannot be seeded. The function and its
// packages may keep it. Returns what drops the numbers that are ready.
function replaceMathRandom(crypto) {
  const NUMBERS = 256;
  const words = new Uint32Array(2 * NUMBERS);
  let left = 0;
  Math.random = function random() {
    if (left === 0) {
      crypto.randomFillSync(words);
      left = NUMBERS;
    }
    left -= 1;
    return (words[2 * left] * 2 ** 21 + (words[2 * left + 1] >>> 11)) / 2 ** 53;
  };
  return () => void (left = 0);
}

// Calls `drawn` when code fills memory of its own with random bytes: packages such as uuid and nanoid keep some in stock, and
// all copies would hand out the same.
function watchRandomBytes(crypto, drawn) {
  const watch = (object, name) => {
    const original = object[name];
    object[name] = function (...values) {
      drawn();
      return Reflect.apply(original, this, values);
    };
    return () => void (object[name] = original);
  };
  // crypto.getRandomValues calls the last one.
  const webCrypto = Object.getPrototypeOf(crypto.webcrypto);
  const ends = [watch(crypto, "randomFillSync"), watch(crypto, "randomFill"), watch(webCrypto, "getRandomValues")];
  nodeModule.syncBuiltinESMExports();
  return () => {
    ends.forEach((end) => end());
    nodeModule.syncBuiltinESMExports();
  };
}

// Has what differs between copies made anew: the worker's line says what the environment is.
function begin(environment) {
  for (const name of Object.keys(env)) if (!(name in environment)) delete env[name];
  Object.assign(env, environment);
  Object.defineProperty(process, "pid", { value: Number(fs.readlinkSync("/proc/self")), configurable: true, enumerable: true });
}

// The next turn of the event loop.
const turn = () => new Promise(setImmediate);

// The function's hooks are listeners of `process`, so that registering them does nothing elsewhere. Their order is Lambda's
// for Python and .NET: before the snapshot the last registered is the first, after the restore the first.
async function runHooks(event) {
  const hooks = process.listeners(event);
  if (event === "beforeSnapshot") hooks.reverse();
  for (const hook of hooks) await unlessIdle(hook.call(process), `a hook of ${event}`);
}

// What nothing is left to settle is an error: Node.js would end without a word.
async function unlessIdle(work, name) {
  let fail;
  const idle = new Promise((_, reject) => void (fail = () => reject(new Error(`${name} never ends`))));
  process.once("beforeExit", fail);
  try {
    return await Promise.race([work, idle]);
  } finally {
    process.off("beforeExit", fail);
  }
}

// What the worker tells, by a line.
function told(part = Buffer.alloc(1 << 16)) {
  const parts = [];
  while (parts.at(-1)?.at(-1) !== 0x0a) {
    const bytes = fs.readSync(LINE, part);
    if (bytes === 0) process.exit(0); // the worker has ended
    parts.push(Buffer.from(part.subarray(0, bytes)));
  }
  return JSON.parse(Buffer.concat(parts));
}

// Calls the handler with the worker's event, and drops its answer.
async function prime(handler) {
  const { id, arn, ms, event } = told();
  const headers = {
    "lambda-runtime-aws-request-id": id,
    "lambda-runtime-invoked-function-arn": arn,
    "lambda-runtime-deadline-ms": String(Date.now() + ms),
  };
  const answer = new stream.Writable({ write: (_part, _encoding, done) => done() });
  answer.setContentType = () => {};
  try {
    if (handler[STREAMS]) await runStreaming(new Runtime(handler), event, headers, answer);
    else await run(new Runtime(handler), event, headers);
  } catch (thrown) {
    const { errorType, errorMessage } = described(thrown instanceof Fatal ? thrown.error : thrown);
    throw new Error(`the event that primes it: ${errorType}: ${errorMessage}`);
  } finally {
    current = whenEmpty = null;
  }
}

// Waits to be taken, before the process has connected to anything, and returns in each copy.
function waitToBeTaken(rest, crypto) {
  require("node:v8").setFlagsFromString("--expose-gc");
  require("node:vm").runInNewContext("gc")();
  const failed = rest.beforeSnapshot();
  if (failed) throw new Error(`its memory cannot be prepared (errno ${failed})`);
  const part = Buffer.alloc(1 << 16);
  fs.writeSync(LINE, "W");
  // The copies return from its first read.
  begin(told(part));
  if (!rest.addEntropy()) throw new Error("OpenSSL's generators cannot be seeded");
  for (let count = 0; count < CACHED_UUIDS; count += 1) crypto.randomUUID();
  for (let count = 0; count < CACHED_INTEGERS; count += 1) crypto.randomInt(2);
}

// Loads the function, and waits where it is to be taken as a snapshot.
async function loadToBeTaken() {
  try {
    const crypto = require("node:crypto");
    const rest = {};
    process.dlopen({ exports: rest }, env.MAYFLY_REST_LIBRARY);
    const drop = replaceMathRandom({ randomFillSync: crypto.randomFillSync });
    await turn(); // Node.js has told of the thread of this file's own hooks for packages
    let kept;
    const unwatch = watchRandomBytes(crypto, () => (kept = "random bytes"));
    process.once("worker", () => (kept ??= "a thread with a generator"));
    const handler = await load(env._HANDLER);
    if (env.MAYFLY_SNAPSHOT_PRIMED) await prime(handler);
    await runHooks("beforeSnapshot");
    await turn(); // and now all threads
    unwatch();
    if (kept && taken !== "asked") throw new Error(`it keeps ${kept} that all copies would have (Metadata.Mayfly.Snapshot: true)`);
    waitToBeTaken(rest, crypto);
    drop();
    await runHooks("afterRestore");
    fs.writeSync(LINE, "K");
    fs.closeSync(LINE);
    return handler;
  } catch (error) {
    fs.writeSync(LINE, `E${described(error).errorMessage}`.slice(0, 1000));
    process.exit(129);
  }
}

let handler;
try {
  findPackagesOfLayers();
  handler = taken ? await loadToBeTaken() : await load(env._HANDLER);
} catch (error) {
  logError("Uncaught Exception", error);
  await sendError("init/error", error);
  process.exit(129);
}
await Promise.all(Array.from({ length: atOnce }, () => serve(handler)));
