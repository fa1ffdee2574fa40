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

# Test hosts stand in another zone than the database (+08:00) and UTC.
export TEST_SEED
TEST_ENV := TZ=America/New_York

GOLANGCI := .tools/golangci-lint
# This checkout's own: facts that another checkout left in a shared cache have made staticcheck panic (SA4023, index out of range).
export GOLANGCI_LINT_CACHE := $(CURDIR)/.tools/lint-cache

.PHONY: help
help: ## this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z][a-z-]*:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo '  make demo and make test install RabbitMQ and MariaDB if they are missing (STACK_FLAGS= to be asked first).'

.PHONY: stack
stack: ## start the private RabbitMQ and database of this checkout
	scripts/stack up $(STACK_FLAGS) $(STACK_WITH)

.PHONY: tools
tools: ## Prometheus and Alertmanager, for the tests of the alert rules
	scripts/stack tools $(STACK_FLAGS)

.PHONY: build
build: ## build publisher, expirer, notifier and lapsectl into bin/
	go build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

.PHONY: demo
demo: stack build ## ten thousand coupons expire on the second, and are audited
	bin/lapsectl demo --coupons 10000 --users 3000 --over 30s --keep

.PHONY: verify
verify: stack build ## what must hold of the walk and of checkout, as checks from outside, about half an hour
	bin/lapsectl verify walk
	bin/lapsectl verify checkout

# Tests speak to Redis, too.
test: STACK_WITH := --redis

.PHONY: test
test: stack tools ## every test, with the race detector, against the real servers
	@go build -o .tools/summary ./scripts/summary
	@eval "$$(scripts/stack env)"; $(TEST_ENV) go test -race -count=1 -json -timeout 30m $(TEST_FLAGS) $(PKG) | $(TEST_ENV) .tools/summary

.PHONY: lint
lint: $(GOLANGCI) ## linters, the scripts' syntax, and the proof that all SQL is MySQL's
	$(GOLANGCI) run ./...
	for script in scripts/stack scripts/lib/*.sh .ci/run; do bash -n $$script; done
	go run ./scripts/statements | (cd tools/grammar && go test ./... >&2 && go run . ../../pkg/store/migrations/*.sql)

.PHONY: fmt
fmt: $(GOLANGCI) ## put the code into form
	$(GOLANGCI) fmt ./...

# The linter is a module of its own, so that its two hundred dependencies stay out of ours. Built once, in a few minutes.
$(GOLANGCI): tools/go.mod tools/go.sum
	@echo 'building golangci-lint (a few minutes, once)'
	cd tools && go build -o ../$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (20s)
	@for pkg in $$(grep -rlE '^func Fuzz' --include='*_test.go' pkg | xargs -n1 dirname | sort -u); do \
	  for target in $$(grep -rhoE '^func Fuzz\w+' $$pkg/*_test.go | cut -c6-); do \
	    echo "$$pkg $$target"; go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) ./$$pkg; \
	  done; \
	done

.PHONY: bench
bench: stack ## every benchmark
	@eval "$$(scripts/stack env)"; $(TEST_ENV) go test -run '^$$' -bench . -benchmem $(PKG)

.PHONY: plans
plans: stack ## what every statement of the API reads among a million coupons; fails above a page
	@eval "$$(scripts/stack env)"; $(TEST_ENV) go run ./scripts/plans

.PHONY: clean
clean: ## remove what was built (the stack's data: scripts/stack down --purge)
	rm -rf bin .tools
