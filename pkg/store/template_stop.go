package store

import (
	"context"
	"fmt"
	"strconv"

	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//nolint:gochecknoglobals // statements are constants
var stmtStop = define("template.stop", `UPDATE template_stock SET stopped = ? WHERE template_id = ? AND stopped <> ?`)

// The deeds that StopTemplate records; the subject is the template's id.
const (
	DeedTemplateStop   = "template.stop"
	DeedTemplateResume = "template.resume"
)

// StopTemplate makes a template issue no more, or again, and records who did it and why with it. Coupons that were
// issued are not touched. A template that is in that state already is left alone, and nothing recorded. Errors: those
// of RecordDeed, coupon.ErrNotFound.
func (s *Store) StopTemplate(ctx context.Context, id uint64, stopped bool, actor, reason string) error {
	deed := Deed{Actor: actor, Reason: reason, Action: DeedTemplateResume, Subject: strconv.FormatUint(id, 10)}
	if stopped {
		deed.Action = DeedTemplateStop
	}
	moved := false
	err := s.tx(ctx, "stop template", func(ctx context.Context, tx *txn) error {
		n, err := s.exec(ctx, tx, stmtStop, stopped, id, stopped)
		if err != nil {
			return err
		}
		if moved = n > 0; moved {
			return s.recordDeed(ctx, tx, deed)
		}
		ts, err := s.templates(ctx, tx, id, 1)
		if err == nil && (len(ts) == 0 || ts[0].ID != id) {
			err = fmt.Errorf("template %d: %w", id, coupon.ErrNotFound)
		}
		return err
	})
	if err == nil && moved {
		s.log.Info("issuance of a template", zap.Uint64("template", id), zap.Bool("stopped", stopped))
	}
	return err
}
