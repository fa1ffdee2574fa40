package demo

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/lapsehq/lapse/pkg/audit"
	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/rig"
)

// Stage is a run as its hooks see it. It is good until they return.
type Stage struct{ run *run }

// DB takes plain statements, in UTC.
func (s *Stage) DB() *sql.DB { return s.run.db }

// Fleet is the workers.
func (s *Stage) Fleet() *rig.Fleet { return s.run.fleet }

// Ladder names what the run has in the broker.
func (s *Stage) Ladder() *ladder.Ladder { return s.run.ladder }

// Codec writes events and triggers as the workers do.
func (s *Stage) Codec() *event.Codec { return s.run.codec }

// Template is what the run's coupons are granted from.
func (s *Stage) Template() uint64 { return s.run.template }

// Audit listens.
func (s *Stage) Audit() *audit.Audit { return s.run.audit }

// Now is the database's clock.
func (s *Stage) Now() time.Time { return s.run.audit.Now() }

// Last is the last end that the plan asked for.
func (s *Stage) Last() time.Time { return s.run.plan.last }

// Step shows what is being done.
func (s *Stage) Step(text string) { s.run.cfg.View.Step(text) }

// Env is the configuration that all processes of the run share, as lines of an environment.
func (s *Stage) Env() []string { return s.run.place.program("", Publisher, nil).Env }

// Client speaks to the broker.
func (s *Stage) Client() (*broker.Client, error) { return s.run.place.client() }

// Publish sends messages and waits for their confirms.
func (s *Stage) Publish(ctx context.Context, ms ...broker.Message) error {
	return s.run.publish(ctx, ms...)
}

// Grant asks for further coupons in one event; the audit holds the run to them, too. It does not wait for the answers.
func (s *Stage) Grant(ctx context.Context, asks ...audit.Ask) error {
	s.Expect(asks...)
	return s.Send(ctx, asks...)
}

// Expect tells the audit of coupons that are to be granted, or were: it holds the run to them.
func (s *Stage) Expect(asks ...audit.Ask) {
	s.run.audit.Expect(asks...)
	for _, ask := range asks {
		if !ask.Waiting {
			s.run.extra++
			s.run.plan.put(ask.End)
		}
	}
}

// Send asks for coupons like Grant, and the audit is not told.
func (s *Stage) Send(ctx context.Context, asks ...audit.Ask) error {
	m, err := s.run.message(asks)
	if err != nil {
		return err
	}
	return s.run.publish(ctx, m)
}

// Answered waits until the grants of so many keys more than the plan's were answered.
func (s *Stage) Answered(ctx context.Context, more int) error {
	return answered(ctx, s.run.audit, s.run.plan.sent+more)
}

// message is a grant event as an issuer sends it.
func (r *run) message(asks []audit.Ask) (broker.Message, error) {
	return grantEvent(r.ladder, r.codec, r.template, r.audit.Now(), asks)
}

// publish sends over a connection of its own.
func (r *run) publish(ctx context.Context, ms ...broker.Message) error {
	return r.place.publish(ctx, ms...)
}

// open connects for plain statements.
func (p *place) open() (*sql.DB, error) {
	c, err := mysql.ParseDSN(p.dsn())
	if err != nil {
		return nil, errors.New("TEST_MYSQL_DSN is malformed")
	}
	c.ParseTime, c.Loc = true, time.UTC
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, fmt.Errorf("database address: %w", err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(4)
	return db, nil
}
