// A program on the unchanged `nsqjs` package, as nsq_secured.py: node nsqjs_secured.js HOST:PORT TOPIC SECRET [CA]
const fs = require('fs')
const nsq = require('nsqjs')

const [address, topic, secret, authority] = process.argv.slice(2)
const [host, port] = address.split(':')
const tell = (fields) => console.log(JSON.stringify(fields))
const stop = () => setTimeout(() => process.exit(0), 300)
const options = { authSecret: secret, nsqdTCPAddresses: [address], lookupdHTTPAddresses: [] }
if (authority) {
  options.tls = true
  options.tlsVerification = true
  options.ca = fs.readFileSync(authority)
}
const failed = (error) => { tell({ error: String(error && error.message || error) }); stop() }
const writer = new nsq.Writer(host, Number(port), options)
writer.on('error', failed)
writer.on('ready', () => writer.publish(topic, 'hello', (error) => error ? failed(error) : tell({ published: true })))
const reader = new nsq.Reader(topic, 'ch', options)
reader.on('error', failed)
reader.on('nsqd_closed', () => {})
reader.on('message', (message) => { tell({ body: message.body.toString() }); message.finish(); stop() })
writer.connect()
reader.connect()
setTimeout(() => process.exit(0), 30000)
