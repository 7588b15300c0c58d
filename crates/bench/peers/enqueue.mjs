// Enqueues messages one by one from 64 clients with another queue, and prints the rate and the durations as JSON:
// node enqueue.mjs bullmq|rabbitmq PORT MESSAGES
import { performance } from "node:perf_hooks";

const [kind, port, count] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
const CLIENTS = 64;
const payload = "x".repeat(256);

/** Returns, for each client, a function that enqueues one message and resolves when the server has it. */
const clients = {
  async bullmq() {
    const { Queue } = await import("bullmq");
    const connection = { host: "127.0.0.1", port };
    const queues = Array.from({ length: CLIENTS }, () => new Queue("peers", { connection }));
    await Promise.all(queues.map((queue) => queue.waitUntilReady()));
    return {
      name: "BullMQ, Redis with appendfsync always",
      send: queues.map((queue) => () => queue.add("job", { payload })),
      close: () => Promise.all(queues.map((queue) => queue.close())),
    };
  },
  async rabbitmq() {
    const { connect } = (await import("amqplib")).default;
    const url = `amqp://guest:guest@127.0.0.1:${port}`;
    const connections = await Promise.all(Array.from({ length: CLIENTS }, () => connect(url)));
    const channels = await Promise.all(connections.map((connection) => connection.createConfirmChannel()));
    await channels[0].assertQueue("peers", { durable: true, arguments: { "x-queue-type": "quorum" } });
    const body = Buffer.from(payload);
    const confirmed = (channel) => () =>
      new Promise((resolve, reject) => {
        const done = (error) => (error ? reject(error) : resolve());
        channel.sendToQueue("peers", body, { persistent: true }, done);
      });
    return {
      name: "RabbitMQ, quorum queue with confirms",
      send: channels.map(confirmed),
      close: () => Promise.all(connections.map((connection) => connection.close())),
    };
  },
};

const { name, send, close } = await clients[kind]();
const rounds = Math.floor(count / CLIENTS);
const durations = [];
const work = async (one) => {
  for (let n = 0; n < rounds; n++) {
    const began = performance.now();
    await one();
    durations.push((performance.now() - began) * 1000);
  }
};
const began = performance.now();
await Promise.all(send.map(work));
const seconds = (performance.now() - began) / 1000;
await close();
durations.sort((a, b) => a - b);
const at = (share) => Math.round(durations[Math.floor(share * (durations.length - 1))]);
console.log(
  JSON.stringify({ name, per_second: (rounds * CLIENTS) / seconds, p50_us: at(0.5), p99_us: at(0.99) }),
);
process.exit(0);
