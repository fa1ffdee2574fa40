# `make` says what there is to type. Everything below runs on a checkout with Go, git, make and gcc.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X main.version=$(VERSION)

# What the stack is asked for. STACK_FLAGS= asks before it installs a server that is missing.
STACK_FLAGS ?= --yes
# With this seed a failure can be had again: make test TEST_SEED=…
ifndef TEST_SEED
TEST_SEED   := $(shell date +%s)
endif
TEST_FLAGS  ?=
# What to test: make test PKG=./pkg/store/...
PKG         ?= ./...
FUZZTIME    ?= 20s
# Of which packages: make fuzz FUZZ='pkg/event pkg/api'
FUZZ        ?=

# Test hosts stand in another zone than the database (+08:00) and UTC.
export TEST_SEED
TEST_ENV := TZ=America/New_York

GOLANGCI := .tools/golangci-lint
# This checkout's own: facts that another checkout left in a shared cache have made staticcheck panic (SA4023, index out of range).
export GOLANGCI_LINT_CACHE := $(CURDIR)/.tools/lint-cache

.PHONY: help
help: ## this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z][a-z-]*:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo '  make demo and make test install RabbitMQ and MariaDB if they are missing (STACK_FLAGS= to be asked first).'

.PHONY: stack
stack: ## start the private RabbitMQ and database of this checkout
	scripts/stack up $(STACK_FLAGS) $(STACK_WITH)

.PHONY: tools
tools: ## Prometheus and Alertmanager, for the tests of the alert rules, and Chromium, for those of the console
	scripts/stack tools $(STACK_FLAGS)

.PHONY: build
build: ## build publisher, expirer, notifier and lapsectl into bin/
	go build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

.PHONY: sbom
sbom: build .tools/cyclonedx-gomod ## what each binary was built from: bin/*.cdx.json (CycloneDX)
	for binary in publisher expirer notifier lapsectl; do \
	  .tools/cyclonedx-gomod bin -json -std -noserial -notimestamp -version '$(VERSION)' -output bin/$$binary.cdx.json bin/$$binary; \
	done

.tools/cyclonedx-gomod: tools/release/go.mod tools/release/go.sum
	cd tools/release && go build -o ../../$@ github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod

.PHONY: demo
demo: stack build ## ten thousand coupons expire on the second, and are audited
	bin/lapsectl demo --coupons 10000 --users 3000 --over 30s --keep

.PHONY: sandbox
sandbox: stack build ## the fleet in sandbox mode, for integrators to try things with, until Ctrl-C
	bin/lapsectl sandbox

.PHONY: verify
verify: stack build ## what must hold of the walk and of checkout, as checks from outside, about half an hour
	bin/lapsectl verify walk
	bin/lapsectl verify checkout

# On a stack of its own: it kills servers.
.PHONY: chaos
chaos: build ## faults strike a fleet under load, three seeds and every one that has failed before; ten minutes
	bin/lapsectl chaos --seed 1 --seed 2 --seed 3 --coupons 10000 --for 75s --regressions pkg/chaos/testdata/seeds.txt --json bin/chaos.json

# On a stack of its own, too, so that the servers' cost is the comparison's alone.
.PHONY: compare
compare: build ## the delay mechanisms side by side, ten minutes on a quiet machine: a table, bin/compare.json and bin/compare.html
	bin/lapsectl compare --json bin/compare.json --html bin/compare.html

# These speak to Redis, too.
test verify bench microbench: STACK_WITH := --redis

.PHONY: test
test: stack tools ## every test, with the race detector, against the real servers
	@go build -o .tools/summary ./scripts/summary
	@eval "$$(scripts/stack env)"; { code=0; $(TEST_ENV) go test -race -count=1 -json -timeout 30m $(TEST_FLAGS) $(PKG) || code=1; \
	  if [[ '$(PKG)' == ./... ]]; then for module in bench tools/console; do \
	    (cd $$module && $(TEST_ENV) go test -race -count=1 -json -timeout 30m $(TEST_FLAGS) ./...) || code=1; done; fi; \
	  exit $$code; } | $(TEST_ENV) .tools/summary

# It takes more than two minutes, in which nothing else should have the machine: it is no part of make test.
.PHONY: proof
proof: stack ## a real process stopped exactly before and behind every commit point, 134 stops, about two minutes
	@eval "$$(scripts/stack env)"; $(TEST_ENV) go test -tags proof -count=1 -v -timeout 15m ./pkg/crash

.PHONY: lint
lint: $(GOLANGCI) deploy-check ## linters, the scripts' syntax, and the proof that all SQL is MySQL's
	$(GOLANGCI) run ./...
	cd bench && ../$(GOLANGCI) run ./...
	cd tools/console && ../../$(GOLANGCI) run ./...
	for script in scripts/stack scripts/fuzz scripts/corpus scripts/lib/*.sh .ci/run; do bash -n $$script; done
	go run ./scripts/statements | (cd tools/grammar && go test ./... >&2 && go run . ../../pkg/store/migrations/*.sql)

.PHONY: deploy-check
deploy-check: release-check ## Dockerfile, docker-compose.yml and chart, by BuildKit's, Compose's, Helm's and Kubernetes' own code
	cd tools/deploy && go test -count=1 ./...

.PHONY: release-check
release-check: ## .goreleaser.yaml by GoReleaser's own loader, and the bill of materials of a binary
	cd tools/release && go test -count=1 ./...

.PHONY: fmt
fmt: $(GOLANGCI) ## put the code into form
	$(GOLANGCI) fmt ./...

# The linter is a module of its own, so that its two hundred dependencies stay out of ours. Built once, in a few minutes.
$(GOLANGCI): tools/go.mod tools/go.sum
	@echo 'building golangci-lint (a few minutes, once)'
	cd tools && go build -o ../$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

.PHONY: fuzz
fuzz: stack ## every fuzz target for FUZZTIME (20s)
	@eval "$$(scripts/stack env)"; $(TEST_ENV) scripts/fuzz $(FUZZTIME) $(FUZZ)

# The speed of the fleet beside what people use instead. Full sizes take hours and a quiet machine; a look at one scenario:
# make bench SCENARIOS=spike SIZE=20000 RUNS=3
SCENARIOS   ?=
SIZE        ?= 100000
RUNS        ?= 3
BENCH_FLAGS ?=

.PHONY: bench
bench: stack build ## the fleet, its rivals and its limits side by side, into docs/benchmarks.md
	cd bench && go build -trimpath -o ../.tools/bench .
	@eval "$$(scripts/stack env)"; .tools/bench -scenarios '$(SCENARIOS)' -size $(SIZE) -runs $(RUNS) $(BENCH_FLAGS)

.PHONY: microbench
microbench: stack ## every benchmark of the packages
	@eval "$$(scripts/stack env)"; $(TEST_ENV) go test -run '^$$' -bench . -benchmem $(PKG)

.PHONY: plans
plans: stack ## what every statement of the API reads among a million coupons; fails above a page
	@eval "$$(scripts/stack env)"; $(TEST_ENV) go run ./scripts/plans

.PHONY: clean
clean: ## remove what was built (the stack's data: scripts/stack down --purge)
	rm -rf bin .tools
