// A program on the unchanged `ali-ons` package from npm. NODE_PATH names the folder it is installed in.
//
//     node ali_ons_client.js send|push REGISTRY TOPIC GROUP [arguments]
//
// Prints one JSON object a line.
'use strict';

const { Consumer, Producer, Message } = require('ali-ons');

const quiet = { debug() {}, info() {}, log() {}, warn(...a) { console.error(...a); }, error(...a) { console.error(...a); } };
const tell = what => console.log(JSON.stringify(what));
const options = (registry, more) => ({
  httpclient: {}, nameSrv: registry, clientIP: '127.0.0.1', logger: quiet, rebalanceInterval: 1000,
  accessKey: process.env.PEER_USER, secretKey: process.env.PEER_SECRET, accessKeyId: process.env.PEER_USER,
  accessKeySecret: process.env.PEER_SECRET, ...more,
});

async function send(registry, topic, group, count = '3', tags = '', bytes = '0') {
  const producer = new Producer(options(registry, { producerGroup: group }));
  await producer.ready();
  for (let i = 0; i < Number(count); i++) {
    const message = new Message(topic, tags, `${i}` + 'x'.repeat(Number(bytes)));
    message.keys = [ `k${i}` ];
    const result = await producer.send(message);
    tell({ status: result.sendStatus, id: result.msgId, queue: result.messageQueue.queueId, offset: result.queueOffset });
  }
  await producer.close();
}

async function push(registry, topic, group, count = '3', expression = '*', mode = 'cluster', fail = '', seconds = '60') {
  const consumer = new Consumer(options(registry, {
    consumerGroup: group, isBroadcast: mode === 'broadcast', maxReconsumeTimes: 3,
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET', persistent: false,
  }));
  consumer.on('error', error => console.error(error.message));
  let left = Number(count);
  let finish;
  const finished = new Promise(resolve => { finish = resolve; });
  consumer.subscribe(topic, expression, async message => {
    const body = message.body.toString();
    tell({
      body, topic: message.topic, id: message.msgId, tags: message.tags || '', keys: message.keys || '',
      queue: message.queueId, offset: message.queueOffset, times: message.reconsumeTimes, origin: message.retryTopic || '',
    });
    if (--left === 0) finish();
    if (fail && body.startsWith(fail) && !message.reconsumeTimes) throw new Error('once more');
  });
  await consumer.ready();
  tell({ started: true });
  const timer = setTimeout(finish, Number(seconds) * 1000);
  await finished;
  clearTimeout(timer);
  await new Promise(resolve => setTimeout(resolve, 300)); // more than asked for would be an error too
  await consumer.close();
}

({ send, push })[process.argv[2]](...process.argv.slice(3))
  .then(() => process.exit(0), error => { console.error(error); process.exit(1); });
