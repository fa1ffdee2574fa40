package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Each reads rows of a user behind a position, which is their first column but for that of user_quota, history and items.
//
//nolint:gochecknoglobals // statements are constants
var (
	stmtExportProfile = define("export.profile", `SELECT locale, zone, profile_at, login_at, browse_at, cart_at, ordered_at, deleted_at, seen_at
		FROM user_profile WHERE user_id = ?`)
	stmtExportOptOuts = define("export.decisions", `SELECT channel, kind, out_mark AS no, source, decided_at FROM user_optout WHERE user_id = ?
		ORDER BY channel, kind`)
	stmtExportCounts  = define("export.counts", `SELECT channel, day, sent FROM notice_count WHERE user_id = ? ORDER BY day, channel`)
	stmtExportWindows = define("export.windows", `SELECT id, kind, slot, late, items, opened_at, due_at, notify_at, ends_at, closed_at, closed_by
		FROM notice_window WHERE user_id = ? AND id > ? ORDER BY id LIMIT ?`)
	stmtExportItems = define("export.items", `SELECT window_id, event_id, coupon_id, version, expires_at, value, currency, dropped, added_at
		FROM notice_item WHERE window_id IN (?) ORDER BY window_id, event_id`)
	stmtExportNotices = define("export.notices", `SELECT window_id, channel, kind, slot, items, state, reason, attempts, ref, created_at, settled_at
		FROM notice WHERE window_id IN (?) ORDER BY window_id, channel`)
	stmtExportInbox = define("export.inbox", `SELECT id, window_id, kind, display, items, texts, created_at, valid_until, handed_at, read_at
		FROM inbox WHERE user_id = ? AND id > ? ORDER BY id LIMIT ?`)
	stmtExportCoupons = define("export.coupons", `SELECT `+exportCoupon+`
		FROM coupon c LEFT JOIN grant_key g ON g.coupon_id = c.id WHERE c.user_id = ? AND c.id > ? ORDER BY c.id LIMIT ?`)
	stmtExportArchive = define("export.archive", `SELECT `+exportCoupon+`
		FROM coupon_archive c LEFT JOIN grant_key g ON g.coupon_id = c.id WHERE c.user_id = ? AND c.id > ? ORDER BY c.id LIMIT ?`)
	stmtExportHistory = define("export.history", `SELECT `+exportStep+` FROM coupon_history WHERE coupon_id IN (?) ORDER BY coupon_id, version`)
	stmtExportOld     = define("export.history_old", `SELECT `+exportStep+` FROM coupon_history_archive WHERE coupon_id IN (?) ORDER BY coupon_id, version`)
	stmtExportQuota   = define("export.quota", `SELECT template_id, taken FROM user_quota WHERE template_id IN (?) AND user_id = ? ORDER BY template_id`)
)

const (
	exportCoupon = `c.id, c.template_id, c.revision, c.batch_id, c.status, c.version, c.valid_from, c.expires_at, c.granted_at, c.locked_at,
		c.lock_until, c.order_id, c.used_at, c.expired_at, c.expire_cause, g.issuer, g.grant_key`
	exportStep = `coupon_id, version, from_status, to_status, cause, at, expires_at, order_id, actor, reason, trigger_id, origin, trace`

	exportPage = 900 // rows, and members of the lists of what hangs on them
)

// ExportUser hands every row that is stored of a user to each, table by table; the user's id, which all of them have, is left
// out, and so are the addresses, which Profiles gives sealed. It reads in pages, not in one snapshot. A status is its name. An
// error of each ends it.
func (s *Store) ExportUser(ctx context.Context, user string, each func(coupon.UserRecord) error) error {
	x := export{s: s, user: []byte(user), each: each, templates: make(map[int64]bool)}
	for _, part := range []func(context.Context) error{
		x.whole("user_profile", stmtExportProfile), x.whole("user_optout", stmtExportOptOuts), x.whole("notice_count", stmtExportCounts),
		x.pages("notice_window", stmtExportWindows, hanging{"notice_item", stmtExportItems}, hanging{"notice", stmtExportNotices}),
		x.pages("inbox", stmtExportInbox),
		x.pages("coupon", stmtExportCoupons, hanging{"coupon_history", stmtExportHistory}),
		x.pages("coupon_archive", stmtExportArchive, hanging{"coupon_history_archive", stmtExportOld}),
		x.quotas,
	} {
		if err := part(ctx); err != nil {
			return fmt.Errorf("export user: %w", err)
		}
	}
	return nil
}

type export struct {
	s         *Store
	user      []byte
	each      func(coupon.UserRecord) error
	templates map[int64]bool // of the user's coupons
}

// hanging is a table whose rows belong to those of a page.
type hanging struct {
	table string
	st    Statement
}

func (x *export) whole(table string, st Statement) func(context.Context) error {
	return func(ctx context.Context) error {
		_, _, err := x.read(ctx, table, st, x.user)
		return err
	}
}

func (x *export) pages(table string, st Statement, hang ...hanging) func(context.Context) error {
	return func(ctx context.Context) error {
		after := any(0)
		for {
			ids, templates, err := x.read(ctx, table, st, x.user, after, exportPage)
			if err != nil || len(ids) == 0 {
				return err
			}
			for _, template := range templates {
				x.templates[template] = true
			}
			for _, h := range hang {
				if _, _, err := x.read(ctx, h.table, h.st.in(len(ids)), ids...); err != nil {
					return err
				}
			}
			if after = ids[len(ids)-1]; len(ids) < exportPage {
				return nil
			}
		}
	}
}

// quotas reads the user's counters by the templates of the user's coupons: they are found by no other way.
func (x *export) quotas(ctx context.Context) error {
	var args []any
	for template := range x.templates {
		args = append(args, template)
	}
	for len(args) > 0 {
		n := min(len(args), exportPage)
		if _, _, err := x.read(ctx, "user_quota", stmtExportQuota.in(n), append(args[:n:n], x.user)...); err != nil {
			return err
		}
		args = args[n:]
	}
	return nil
}

// read hands on the rows of a statement. It gives their ids and the templates that they name.
func (x *export) read(ctx context.Context, table string, st Statement, args ...any) (ids []any, templates []int64, err error) {
	// The rows are read before they are handed on: whoever takes them may be slow.
	var rows []coupon.UserRecord
	err = x.s.query(ctx, x.s.sql, st, func(r *sql.Rows) error {
		names, err := r.Columns()
		if err != nil {
			return err
		}
		values := make([]any, len(names))
		dest := make([]any, len(names))
		for i := range dest {
			dest[i] = &values[i]
		}
		if err := r.Scan(dest...); err != nil {
			return err
		}
		for i, name := range names {
			values[i] = exported(name, values[i])
			if n, ok := values[i].(int64); ok {
				switch name {
				case "id":
					ids = append(ids, n)
				case "template_id":
					templates = append(templates, n)
				}
			}
		}
		rows = append(rows, coupon.UserRecord{Table: table, Names: names, Values: values})
		return nil
	}, args...)
	if err != nil {
		return nil, nil, err
	}
	for _, row := range rows {
		if err := x.each(row); err != nil {
			return nil, nil, err
		}
	}
	return ids, templates, nil
}

// exported is a column's value as a person reads it.
func exported(name string, value any) any {
	switch v := value.(type) {
	case uint64:
		return int64(v)
	case []byte:
		switch {
		case json.Valid(v) && name == "texts":
			return json.RawMessage(v)
		case utf8.Valid(v):
			value = string(v)
		default:
			return v
		}
	}
	switch name {
	case "status", "from_status", "to_status":
		if n, err := strconv.Atoi(fmt.Sprint(value)); err == nil {
			return coupon.Status(n).String()
		}
	case "day":
		if at, ok := value.(time.Time); ok {
			return at.Format(time.DateOnly)
		}
	}
	return value
}
