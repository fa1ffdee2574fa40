// Package deploy holds what an installation is made of against the real parsers: the Dockerfile against BuildKit's, docker-compose.yml
// against Compose's, the chart against Helm's engine and linter, and what the chart renders against the types of Kubernetes, of the
// Prometheus operator and of KEDA. Settings that they hand to the workers go through the workers' own -print-config.
//
// It is a module of its own, so that none of this is among the product's dependencies, and has tests only. `make deploy-check` runs it;
// it needs neither an engine nor a cluster.
package deploy
