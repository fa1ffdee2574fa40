package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/lapsehq/lapse/pkg/api"
)

type tokenCommand struct {
	Name   string   `arg:"" help:"Of the caller: in history, in the log."`
	Scope  []string `required:"" placeholder:"SCOPE" help:"What it may do: issue, order, read, ops. Several by commas."`
	Issuer string   `help:"The issuer of its grants; else each grant may name its own."`
	JSON   bool     `name:"json" help:"Print JSON."`
}

// Help tells where the two halves go.
func (*tokenCommand) Help() string {
	return "The token is shown once and stored nowhere: give it to the caller. The configuration has its hash only (api.tokens)."
}

// tokenJSON is a new token as --json prints it.
type tokenJSON struct {
	Token  string   `json:"token"`
	Name   string   `json:"name"`
	Hash   string   `json:"hash"`
	Scopes []string `json:"scopes"`
	Issuer string   `json:"issuer,omitempty"`
}

// Run makes a token. Its secret has at least 256 bits, so that a plain hash keeps it.
func (c *tokenCommand) Run(s *system) error {
	secret := "lapse_" + strings.ToLower(rand.Text()+rand.Text())
	entry := api.Token{Name: c.Name, Hash: api.HashToken(secret), Scopes: c.Scope, Issuer: c.Issuer}
	cfg := api.DefaultConfig()
	cfg.Tokens = []api.Token{entry}
	if err := cfg.Validate(); err != nil {
		return errors.New(strings.ReplaceAll(err.Error(), "tokens[0].", ""))
	}
	if c.JSON {
		return s.printJSON(tokenJSON{Token: secret, Name: entry.Name, Hash: entry.Hash, Scopes: entry.Scopes, Issuer: entry.Issuer})
	}
	line := fmt.Sprintf("    - {name: %q, hash: %q, scopes: [%s]", entry.Name, entry.Hash, strings.Join(entry.Scopes, ", "))
	if entry.Issuer != "" {
		line += fmt.Sprintf(", issuer: %q", entry.Issuer)
	}
	return s.print(secret + "\n\napi:\n  tokens:\n" + line + "}\n")
}
