package store

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Every stop and resumption of a template is kept as a setting of its own, stop.<template>.<when>, for ever: they are
// few, and somebody will ask.
//
//nolint:gochecknoglobals // statements are constants
var (
	stmtStop    = define("template.stop", `UPDATE template_stock SET stopped = ? WHERE template_id = ? AND stopped <> ?`)
	stmtStopPut = define("template.stop_put", `INSERT INTO setting (name, value, updated_at) VALUES (?,?,?)
		ON DUPLICATE KEY UPDATE value = VALUES(value)`)
	stmtStops = define("template.stops", `SELECT value, updated_at FROM setting WHERE name >= ? AND name < ? ORDER BY name DESC LIMIT ?`)
)

const stopSeparator = "\x00"

// StopTemplate makes a template issue no more, or again, and records who did it, when and why, in the database and in
// the log. Coupons that were issued are not touched. A template that is in that state already is left alone, and
// nothing recorded. Errors: a text that names the field, coupon.ErrNotFound.
func (s *Store) StopTemplate(ctx context.Context, id uint64, stopped bool, actor, reason string) error {
	for _, text := range []struct {
		field, value string
		most         int
	}{{"actor", actor, coupon.MaxText}, {"reason", reason, coupon.MaxReason}} {
		if text.value == "" || len(text.value) > text.most || !utf8.ValidString(text.value) || strings.Contains(text.value, stopSeparator) {
			return fmt.Errorf("%s: must have 1 to %d bytes of UTF-8 and no NUL, got %q", text.field, text.most, text.value)
		}
	}
	moved := false
	err := s.tx(ctx, "stop template", func(ctx context.Context, tx *sql.Tx) error {
		n, err := s.exec(ctx, tx, stmtStop, stopped, id, stopped)
		if err != nil {
			return err
		}
		if moved = n > 0; !moved {
			ts, err := s.templates(ctx, tx, id, 1)
			if err == nil && (len(ts) == 0 || ts[0].ID != id) {
				err = fmt.Errorf("template %d: %w", id, coupon.ErrNotFound)
			}
			return err
		}
		var now time.Time // read under the row's lock: acts of one template have their order
		if err := s.queryRow(ctx, tx, stmtNow, []any{&now}); err != nil {
			return err
		}
		name := stopPrefix(id) + strconv.FormatInt(now.UnixMilli(), 10)
		_, err = s.exec(ctx, tx, stmtStopPut, name, strings.Join([]string{strconv.FormatBool(stopped), actor, reason}, stopSeparator), now)
		return err
	})
	if err == nil && moved {
		s.log.Info("issuance of a template", zap.Uint64("template", id), zap.Bool("stopped", stopped), zap.String("actor", actor), zap.String("reason", reason))
	}
	return err
}

// TemplateStops gives the latest stops and resumptions of a template, newest first.
func (s *Store) TemplateStops(ctx context.Context, id uint64, limit int) ([]coupon.TemplateStop, error) {
	var stops []coupon.TemplateStop
	prefix := stopPrefix(id)
	err := s.query(ctx, s.sql, stmtStops, func(r *sql.Rows) error {
		var value string
		var at time.Time
		if err := r.Scan(&value, &at); err != nil {
			return err
		}
		parts := strings.SplitN(value, stopSeparator, 3)
		if len(parts) != 3 {
			return fmt.Errorf("%w: stop of template %d at %s", coupon.ErrIntegrity, id, at)
		}
		stops = append(stops, coupon.TemplateStop{At: at, Stopped: parts[0] == "true", Actor: parts[1], Reason: parts[2]})
		return nil
	}, []byte(prefix), []byte(strings.TrimSuffix(prefix, ".")+"/"), limit)
	return stops, err
}

func stopPrefix(id uint64) string { return "stop." + strconv.FormatUint(id, 10) + "." }
