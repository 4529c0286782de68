// A program on the unchanged go-nsq package, as nsq_secured.py: nsq_secured HOST:PORT TOPIC SECRET [CA]
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/nsqio/go-nsq"
)

func tell(name string, value interface{}) {
	line, _ := json.Marshal(map[string]interface{}{name: value})
	fmt.Println(string(line))
}

func main() {
	address, topic, secret := os.Args[1], os.Args[2], os.Args[3]
	config := nsq.NewConfig()
	config.AuthSecret = secret
	if len(os.Args) > 4 {
		config.Set("tls_v1", true)
		config.Set("tls_root_ca_file", os.Args[4])
	}
	quiet := log.New(io.Discard, "", 0)
	producer, _ := nsq.NewProducer(address, config)
	producer.SetLogger(quiet, nsq.LogLevelError)
	if err := producer.Publish(topic, []byte("hello")); err != nil {
		tell("error", err.Error())
		return
	}
	tell("published", true)
	done := make(chan string, 1)
	consumer, _ := nsq.NewConsumer(topic, "ch", config)
	consumer.SetLogger(quiet, nsq.LogLevelError)
	consumer.AddHandler(nsq.HandlerFunc(func(message *nsq.Message) error {
		select {
		case done <- string(message.Body):
		default:
		}
		return nil
	}))
	if err := consumer.ConnectToNSQD(address); err != nil {
		tell("error", err.Error())
		return
	}
	select {
	case body := <-done:
		tell("body", body)
		time.Sleep(300 * time.Millisecond)
	case <-time.After(30 * time.Second):
	}
}
