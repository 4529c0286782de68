// A program on the unchanged go-nsq package that lives through a failover.
//
//	nsq_failover produce HOST:PORT,HOST:PORT TOPIC      to whichever of them takes it
//	nsq_failover consume LOOKUPD_HTTP TOPIC CHANNEL     finds its nsqds by itself
//
// As nsq_failover.py: it prints one JSON object for each number that was acknowledged, or for each delivery.
package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nsqio/go-nsq"
)

func settings() *nsq.Config {
	config := nsq.NewConfig()
	config.LookupdPollInterval = time.Second
	config.LookupdPollJitter = 0
	config.MaxInFlight = 20
	config.MaxBackoffDuration = 500 * time.Millisecond
	config.DialTimeout = time.Second
	config.ReadTimeout = 3 * time.Second
	config.WriteTimeout = time.Second
	config.HeartbeatInterval = time.Second
	return config
}

func produce(addresses []string, topic string) {
	var producers []*nsq.Producer
	for _, address := range addresses {
		producer, err := nsq.NewProducer(address, settings())
		if err != nil {
			panic(err)
		}
		producer.SetLoggerLevel(nsq.LogLevelMax)
		producers = append(producers, producer)
	}
	for number, at := 0, 0; ; {
		done := make(chan *nsq.ProducerTransaction, 1)
		err := producers[at].PublishAsync(topic, []byte(strconv.Itoa(number)), done)
		if err == nil {
			select {
			case answer := <-done:
				err = answer.Error
			case <-time.After(5 * time.Second):
				err = io.ErrNoProgress
			}
		}
		if err != nil {
			at = (at + 1) % len(producers)
			time.Sleep(50 * time.Millisecond)
			continue
		}
		fmt.Printf("{\"acknowledged\": %d}\n", number)
		number++
		time.Sleep(2 * time.Millisecond)
	}
}

func consume(lookup, topic, channel string) {
	consumer, err := nsq.NewConsumer(topic, channel, settings())
	if err != nil {
		panic(err)
	}
	consumer.SetLoggerLevel(nsq.LogLevelMax)
	consumer.AddHandler(nsq.HandlerFunc(func(message *nsq.Message) error {
		fmt.Printf("{\"body\": %q, \"attempts\": %d}\n", message.Body, message.Attempts)
		return nil
	}))
	if err := consumer.ConnectToNSQLookupd(lookup); err != nil {
		panic(err)
	}
}

func main() {
	switch os.Args[1] {
	case "produce":
		go produce(strings.Split(os.Args[2], ","), os.Args[3])
	case "consume":
		go consume(os.Args[2], os.Args[3], os.Args[4])
	}
	fmt.Println("{\"started\": true}")
	io.Copy(io.Discard, os.Stdin)
}
