// A worker over plain HTTP. Run: REDRIVE_URL=http://127.0.0.1:7373 REDRIVE_TOKEN=rdt_... node worker.mjs payments
const { REDRIVE_URL, REDRIVE_TOKEN } = process.env;
const queue = process.argv[2];

async function call(path, body) {
  const headers = { Authorization: `Bearer ${REDRIVE_TOKEN}`, "Content-Type": "application/json" };
  const reply = await fetch(`${REDRIVE_URL}/api/v1${path}`, { method: "POST", headers, body: JSON.stringify(body) });
  if (!reply.ok) throw new Error(`${path}: ${await reply.text()}`);
  return reply.json();
}

async function handle(message) {
  console.log(message.id, message.payload);
  if (message.payload.includes("fail")) throw new RangeError("the payload asks for a failure");
}

for (;;) {
  const { items } = await call(`/queues/${queue}/lease`, { max: 10, wait: "20s", worker: "node" });
  for (const { token, ...message } of items) {
    try {
      await handle(message);
      await call(`/deliveries/${token}/ack`, {});
    } catch (error) {
      await call(`/deliveries/${token}/fail`, { error_type: error.name, message: error.message, stack: error.stack });
    }
  }
}
