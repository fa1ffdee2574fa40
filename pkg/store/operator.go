package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtOperatorAdd = define("operator.add", `INSERT INTO operator_log (at, actor, reason, action, subject, detail)
		VALUES (UTC_TIMESTAMP(3),?,?,?,?,?)`)
	stmtOperatorList = define("operator.list", `SELECT id, at, actor, reason, action, subject, detail FROM operator_log FORCE INDEX (operator_log_action)
		WHERE action = ? AND id < ? ORDER BY id DESC LIMIT ?`)
)

// Deed is something that an operator did by hand.
type Deed struct {
	ID      uint64
	At      time.Time
	Actor   string
	Reason  string
	Action  string // such as parked.replay
	Subject string // what it was done to: a queue, a template; may be empty
	Detail  any    // counts and filters, written as JSON; json.RawMessage when read
}

// RecordDeed keeps what was done, by whom and why. Actor and reason are required.
func (s *Store) RecordDeed(ctx context.Context, d Deed) error {
	return s.recordDeed(ctx, s.sql, d)
}

func (s *Store) recordDeed(ctx context.Context, q querier, d Deed) error {
	var errs []error
	for _, f := range []struct {
		name, value string
		most        int
	}{{"actor", d.Actor, coupon.MaxText}, {"reason", d.Reason, coupon.MaxReason}} {
		if f.value == "" || len(f.value) > f.most || !utf8.ValidString(f.value) {
			errs = append(errs, fmt.Errorf("%s: must have 1 to %d bytes of UTF-8, got %q", f.name, f.most, f.value))
		}
	}
	detail, err := json.Marshal(d.Detail)
	if err = errors.Join(append(errs, err)...); err != nil {
		return fmt.Errorf("record what an operator did: %w", err)
	}
	_, err = s.exec(ctx, q, stmtOperatorAdd, d.Actor, d.Reason, d.Action, []byte(d.Subject), detail)
	return err
}

// Deeds lists what operators did of one action, newest first, those before the id (0: from the newest on).
func (s *Store) Deeds(ctx context.Context, action string, before uint64, limit int) ([]Deed, error) {
	if before == 0 {
		before = 1<<63 - 1
	}
	var out []Deed
	err := s.query(ctx, s.sql, stmtOperatorList, func(r *sql.Rows) error {
		var d Deed
		var subject, detail []byte
		if err := r.Scan(&d.ID, &d.At, &d.Actor, &d.Reason, &d.Action, &subject, &detail); err != nil {
			return err
		}
		d.Subject, d.Detail = string(subject), json.RawMessage(detail)
		out = append(out, d)
		return nil
	}, action, before, limit)
	return out, err
}
