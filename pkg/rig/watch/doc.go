// Package watch runs what watches a fleet: a real Prometheus on loopback that scrapes real workers and RabbitMQ by the
// configuration that the project ships, with its rules; and it reads rules and dashboard as data, so that every query of them can be
// asked. For tests and lapsectl verify.
package watch
