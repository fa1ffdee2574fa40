package store

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// The walk goes by the history's own key, so that a page costs a page: there is no index by time, which every transition would have to
// pay for. With a template it goes from coupon to coupon of that. The page is cut before it is joined: else the server may join
// everything to sort it.
//
//nolint:gochecknoglobals // statements are constants
var (
	stmtReplay         = define("replay.page", replayPage("coupon", "coupon_history"))
	stmtReplayArchived = define("replay.page_archived", replayPage("coupon_archive", "coupon_history_archive"))

	stmtReplayTemplate         = define("replay.template", replayTemplate("coupon", "coupon_history", "coupon_template"))
	stmtReplayTemplateArchived = define("replay.template_archived", replayTemplate("coupon_archive", "coupon_history_archive", "archive_template"))

	stmtReplayKeys = define("replay.keys", `SELECT coupon_id, issuer, grant_key FROM grant_key FORCE INDEX (grant_key_coupon)
		WHERE coupon_id IN (?) ORDER BY coupon_id DESC, issuer DESC, grant_key DESC`)
)

const replayColumns = `h.coupon_id, h.version, h.from_status, h.to_status, h.cause, h.at, h.expires_at, h.due_at, h.order_id, h.actor, h.reason,
		h.trigger_id, h.origin, h.trace, h.lock_until, h.previous, c.template_id, c.revision, c.batch_id, c.user_id, c.valid_from`

func replayPage(table, past string) string {
	return `SELECT ` + replayColumns + ` FROM (SELECT ` + pastColumns + ` FROM ` + past + ` FORCE INDEX (PRIMARY)
		WHERE coupon_id >= ? AND (coupon_id > ? OR (coupon_id = ? AND version > ?)) ORDER BY coupon_id, version LIMIT ?) h
		LEFT JOIN ` + table + ` c ON c.id = h.coupon_id ORDER BY h.coupon_id, h.version`
}

func replayTemplate(table, past, index string) string {
	return `SELECT ` + replayColumns + ` FROM (SELECT id, template_id, revision, batch_id, user_id, valid_from FROM ` + table + ` FORCE INDEX (` + index + `)
		WHERE template_id = ? AND id > ? ORDER BY id LIMIT ?) c JOIN ` + past + ` h FORCE INDEX (PRIMARY) ON h.coupon_id = c.id ORDER BY h.coupon_id, h.version`
}

// ReplayPage looks at the next steps of history from a place on, those of about limit coupons or steps, and gives the events that the
// ask is about, as they were told first: the same ids, and the same bodies. Steps are met in the order of coupon and version; what is in
// the archive comes after what is not, and a coupon that is archived meanwhile may be met twice.
//
// What is no step of a coupon has no history, and is not told again: refusals of grants and payments, and reminders.
func (s *Store) ReplayPage(ctx context.Context, a *coupon.ReplayAsk, from coupon.ReplayPlace, limit int) (out []coupon.Replayed, next coupon.ReplayPlace, err error) {
	st, args := stmtReplay, []any{from.Coupon, from.Coupon, from.Coupon, from.Version, limit}
	if from.Archive {
		st = stmtReplayArchived
	}
	if a.Template != 0 {
		st, args = stmtReplayTemplate, []any{a.Template, from.Coupon, limit}
		if from.Archive {
			st = stmtReplayTemplateArchived
		}
	}
	ts, read, next, err := s.replaySteps(ctx, a, st, args, from)
	if err != nil {
		return nil, from, fmt.Errorf("replay: %w", err)
	}
	// Of a template's page it is the coupons that are limited: with fewer steps than that there are no more of them.
	if read < limit {
		next.Coupon, next.Version = 0, 0
		next.Archive, next.Done = true, from.Archive
	}
	if err := s.replayKeys(ctx, ts); err != nil {
		return nil, from, fmt.Errorf("replay: %w", err)
	}
	for i := range ts {
		key, id, body, err := s.codec.Transition(ts[i])
		if err != nil {
			return nil, from, fmt.Errorf("replay: coupon %d: %w", ts[i].CouponID, err)
		}
		if key != "" && a.Wants(key) {
			out = append(out, coupon.Replayed{Key: key, ID: id, Trace: ts[i].Trace, Body: body})
		}
	}
	next.Events += int64(len(out))
	return out, next, nil
}

// replaySteps reads a page, and gives the steps of it within the time.
func (s *Store) replaySteps(ctx context.Context, a *coupon.ReplayAsk, st Statement, args []any, from coupon.ReplayPlace) (
	ts []coupon.Transition, read int, next coupon.ReplayPlace, err error,
) {
	next = from
	var keys []termsKey
	err = s.query(ctx, s.sql, st, func(r *sql.Rows) error {
		var t coupon.Transition
		var cause, origin string
		var order, batch, user []byte
		var until, previous, valid sql.NullTime
		var template, revision sql.Null[uint64]
		if err := r.Scan(&t.CouponID, &t.Version, &t.From, &t.To, &cause, &t.At, &t.ExpiresAt, &t.DueAt, &order, &t.Actor, &t.Reason,
			&t.TriggerID, &origin, &t.Trace, &until, &previous, &template, &revision, &batch, &user, &valid); err != nil {
			return err
		}
		read++
		next.Coupon, next.Version = t.CouponID, t.Version
		next.Seen++
		if !template.Valid || t.At.Before(a.From) || !t.At.Before(a.To) || cause == string(coupon.CauseImport) {
			return nil // of no coupon: it moves just now, and is met where it goes; an import's steps happened elsewhere
		}
		t.Cause, t.Origin, t.OrderID, t.BatchID, t.UserID = coupon.Cause(cause), coupon.Origin(origin), string(order), string(batch), string(user)
		t.LockUntil, t.Previous, t.ValidFrom = until.Time, previous.Time, valid.Time
		ts, keys = append(ts, t), append(keys, termsKey{template.V, uint32(revision.V)})
		return nil
	}, args...)
	if err != nil {
		return nil, 0, from, err
	}
	for i := range ts {
		if ts[i].Terms, err = s.termsOf(ctx, s.sql, keys[i].id, keys[i].revision); err != nil {
			return nil, 0, from, err
		}
	}
	return ts, read, next, nil
}

// replayKeys fills in the grant keys of those steps that are grants.
func (s *Store) replayKeys(ctx context.Context, ts []coupon.Transition) error {
	at := map[uint64]int{}
	var ids []any
	for i := range ts {
		if ts[i].From == 0 {
			at[ts[i].CouponID] = i
			ids = append(ids, ts[i].CouponID)
		}
	}
	for len(ids) > 0 {
		n := min(len(ids), maxIDs)
		err := s.query(ctx, s.sql, stmtReplayKeys.in(n), func(r *sql.Rows) error {
			var id uint64
			var issuer, key []byte
			err := r.Scan(&id, &issuer, &key)
			if i, ok := at[id]; ok { // the first one is read last
				ts[i].Issuer, ts[i].GrantKey = string(issuer), string(key)
			}
			return err
		}, ids[:n]...)
		if err != nil {
			return err
		}
		ids = ids[n:]
	}
	return nil
}
