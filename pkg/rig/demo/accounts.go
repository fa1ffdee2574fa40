package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/store"
)

// Workers of a run have users of their own in database and broker, which may do what lapsectl grants says, and nothing else.
// Whatever a worker needs beyond that fails here first.

func workers() []string { return []string{Publisher, Expirer, Notifier} }

func (p *place) account(worker string) string { return p.database + "_" + worker }

// makeAccounts makes them. The tables must be there.
func (p *place) makeAccounts(ctx context.Context, l *ladder.Ladder) error {
	p.accounts = map[string]rig.Account{}
	for _, worker := range workers() {
		a := rig.Account{Name: p.account(worker), Password: strings.ToLower(rand.Text())}
		if p.password != nil {
			a.Password = p.password(worker)
		}
		grants, err := store.Grants(store.Role(worker), p.database, a.Name, "%")
		if err != nil {
			return fmt.Errorf("users of the run: %w", err)
		}
		allowed, err := l.PermissionsOf(worker, true)
		if err != nil {
			return fmt.Errorf("users of the run: %w", err)
		}
		err = errors.Join(p.stack.MakeDatabaseUser(ctx, a, grants), p.stack.MakeBrokerUser(ctx, a, allowed))
		if err != nil {
			return fmt.Errorf("users of the run: %w", err)
		}
		p.accounts[worker] = a
	}
	return nil
}

// dropAccounts drops those of this run, or of an earlier one of the same name.
func (p *place) dropAccounts(ctx context.Context) error {
	var errs []error
	for _, worker := range workers() {
		errs = append(errs, p.stack.DropDatabaseUser(ctx, p.account(worker)), p.stack.DropBrokerUser(ctx, p.account(worker)))
	}
	return errors.Join(errs...)
}

// asAccount makes a worker's environment its own user's.
func (p *place) asAccount(worker string, vars map[string]string) {
	a, ok := p.accounts[worker]
	if !ok {
		return
	}
	vars["LAPSE__DATABASE__USER"], vars["LAPSE__DATABASE__PASSWORD"] = a.Name, a.Password
	if u, err := url.Parse(p.stack.AMQPURL.Reveal()); err == nil {
		u.User = url.UserPassword(a.Name, a.Password)
		vars[varURL] = u.String()
	}
}
