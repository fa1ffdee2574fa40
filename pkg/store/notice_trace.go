package store

import (
	"context"
	"database/sql"
	"slices"
)

// The step of each member that its event told of. Steps in the archive are not looked for.
//
//nolint:gochecknoglobals // statements are constants
var stmtNoticeTraces = define("notice.traces", `SELECT i.window_id, h.trace FROM notice_item i FORCE INDEX (PRIMARY)
	JOIN coupon_history h ON h.coupon_id = i.coupon_id AND h.version = i.version
	WHERE i.window_id IN (?) AND i.dropped = '' AND h.trace <> '' ORDER BY i.window_id, i.event_id LIMIT 5000`)

// maxTracesOf a window are given.
const maxTracesOf = 128

// NoticeTraces gives the traceparents of the steps that the windows tell of: some of them, if there are many.
func (s *Store) NoticeTraces(ctx context.Context, windows []uint64) (map[uint64][]string, error) {
	out := make(map[uint64][]string)
	for part := range slices.Chunk(windows, inList) {
		args := make([]any, len(part))
		for i, id := range part {
			args[i] = id
		}
		err := s.query(ctx, s.sql, stmtNoticeTraces.in(len(part)), func(r *sql.Rows) error {
			var window uint64
			var trace string
			if err := r.Scan(&window, &trace); err != nil {
				return err
			}
			if len(out[window]) < maxTracesOf {
				out[window] = append(out[window], trace)
			}
			return nil
		}, args...)
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}
