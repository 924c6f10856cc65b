// SPDX-License-Identifier: MIT OR Apache-2.0
// Asks Perfetto's own trace processor: node query.mjs ENGINE_FOLDER TRACE SQL... prints a JSON array of
// rows per query. Runs the worker that Perfetto's UI runs, and speaks its RPC protocol
// (protos/perfetto/trace_processor/trace_processor.proto) with the few fields needed.
import { webcrypto as crypto } from "node:crypto"; // a global only from Node 19 on
import { readFileSync } from "node:fs";
import vm from "node:vm";

// The engine is one long line: its stack traces would bury the message.
process.on("uncaughtException", (error) => {
  console.error(String(error?.message ?? error).slice(0, 2000));
  process.exit(1);
});
const [folder, trace, ...queries] = process.argv.slice(2);

// --- protobuf, as much as needed
const varint = (n) => {
  const out = [];
  for (let v = BigInt(n); ; v >>= 7n) {
    if (v < 128n) return Buffer.from([...out, Number(v)]);
    out.push(Number(v & 127n) | 128);
  }
};
const bytes = (field, value) => Buffer.concat([varint((field << 3) | 2), varint(value.length), Buffer.from(value)]);
const number = (field, value) => Buffer.concat([varint(field << 3), varint(value)]);
function* fields(buffer) {
  let at = 0;
  const read = () => {
    for (let value = 0n, shift = 0n; ; shift += 7n) {
      const byte = buffer[at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return value;
    }
  };
  while (at < buffer.length) {
    const key = Number(read());
    const type = key & 7;
    if (type === 0) yield [key >> 3, read()];
    else {
      const length = type === 2 ? Number(read()) : type === 1 ? 8 : 4;
      yield [key >> 3, buffer.subarray(at, at + length)];
      at += length;
    }
  }
}
function packed(buffer) {
  const out = [];
  for (let at = 0; at < buffer.length; ) {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = buffer[at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) break;
    }
    out.push(Number(BigInt.asIntN(64, value)));
  }
  return out;
}

// --- the worker's world
let deliver = () => {};
const port = { onmessage: null, postMessage: (data) => deliver(Buffer.from(data)) };
const world = { console: { log() {}, warn: (text) => process.env.VERBOSE && console.error(text), error: console.error }, setTimeout, clearTimeout, URL, TextDecoder, TextEncoder, performance, crypto };
world.self = world;
world.globalThis = world;
world.location = { href: "worker://engine_bundle.js" };
world.WorkerGlobalScope = class {};
world.importScripts = () => {};
world.XMLHttpRequest = class { // a worker may load synchronously, and the engine does
  open(_method, url) {
    this.url = url;
  }
  send() {
    const file = readFileSync(`${folder}/${String(this.url).split("/").pop()}`);
    this.response = file.buffer.slice(file.byteOffset, file.byteOffset + file.byteLength);
  }
};
vm.createContext(world);
vm.runInContext(readFileSync(`${folder}/engine_bundle.js`, "utf8"), world);
const WorldBytes = vm.runInContext("Uint8Array", world); // another realm has other classes
world.onmessage({ data: port });

// --- the protocol: TraceProcessorRpcStream { msg = 1 }, TraceProcessorRpc { seq 1, request 2, error 5, ... }
const APPEND = 1, FINALIZE = 2, QUERY = 3;
let sequence = 0;
async function call(request, argument = Buffer.alloc(0), last = () => true) {
  const message = Buffer.concat([number(1, sequence++), number(2, request), argument]);
  const replies = [];
  const done = new Promise((resolve, reject) => {
    deliver = (data) => {
      for (const [, rpc] of fields(data)) {
        const reply = new Map(fields(rpc));
        if (reply.has(5)) return reject(new Error(reply.get(5).toString()));
        replies.push(reply);
        if (last(reply)) resolve();
      }
    };
  });
  port.onmessage({ data: new WorldBytes(bytes(1, message)) });
  await done;
  return replies;
}

async function query(sql) {
  let columns = [];
  const cells = [];
  const isLast = (reply) => [...fields(reply.get(203))].some(([field, batch]) => field === 2 || (field === 3 && [...fields(batch)].some(([f, v]) => f === 6 && v === 1n)));
  for (const reply of await call(QUERY, bytes(103, bytes(1, Buffer.from(sql))), isLast)) {
    for (const [field, value] of fields(reply.get(203))) {
      if (field === 1) columns.push(value.toString());
      if (field === 2 && value.length) throw new Error(value.toString());
      if (field !== 3) continue;
      const batch = { types: [], ints: [], floats: [], strings: [] };
      for (const [f, v] of fields(value)) {
        if (f === 1) batch.types.push(...v);
        if (f === 2) batch.ints.push(...packed(v));
        if (f === 3) for (let i = 0; i < v.length; i += 8) batch.floats.push(v.readDoubleLE(i));
        if (f === 5) batch.strings.push(...v.toString().split("\0"));
      }
      for (const type of batch.types) cells.push(type === 2 ? batch.ints.shift() : type === 3 ? batch.floats.shift() : type === 4 ? batch.strings.shift() : null);
    }
  }
  const rows = [];
  for (let i = 0; i < cells.length; i += columns.length) rows.push(Object.fromEntries(columns.map((c, k) => [c, cells[i + k]])));
  return rows;
}

await new Promise((resolve) => setTimeout(resolve, 0)); // lets the engine finish its start
await call(APPEND, bytes(101, readFileSync(trace)));
await call(FINALIZE);
const answers = [];
for (const sql of queries) answers.push(await query(sql));
console.log(JSON.stringify(answers));
process.exit(0);
