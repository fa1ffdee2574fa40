package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// plantWindow writes an open window of so many items.
func plantWindow(t testing.TB, d testenv.Database, id int, user string, items int) {
	t.Helper()
	d.Exec(t, `INSERT INTO notice_window (id, user_id, kind, slot, remind_at, open_mark, late, items, opened_at, last_item_at, due_at, closed_by)
		VALUES (?,?,'expired','','',IF(? = 1, 1, NULL),0,?,'2026-03-01','2026-03-01',UTC_TIMESTAMP(3),'')`, id, user, id, items)
	d.Exec(t, `INSERT INTO notice (window_id, channel, user_id, kind, items, state, reason, attempts, try_at, created_at)
		VALUES (?,'sms',?,'expired',?,'failed','',1,'9999-12-31','2026-03-01')`, id, user, items)
	const digit = `(SELECT 0 i UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6
		UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)`
	d.Exec(t, `INSERT INTO notice_item (window_id, event_id, coupon_id, template_id, version, expires_at, value, currency, dropped, added_at)
		SELECT ?, CONCAT(?, ':', n), n, 1, 1, '2026-03-01', 1, 'CNY', '', '2026-03-01' FROM (
		SELECT a.i + 10*b.i + 100*c.i + 1000*e.i + 10000*f.i AS n FROM `+digit+` a, `+digit+` b, `+digit+` c, `+digit+` e, `+digit+` f) x WHERE n < ?`, id, id, items)
}

// However many items a window has, no transaction removes more than some thousands; and until all are gone the window is there.
func TestLargeWindowsAreRemovedInSteps(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(t testing.TB, s *store.Store) int{
		"erase": func(t testing.TB, s *store.Store) int {
			e, err := s.EraseUser(t.Context(), "u", "ann", "asked for it")
			require.NoError(t, err)
			return e.Windows
		},
		"prune": func(t testing.TB, s *store.Store) (n int) {
			for next := uint64(0); ; {
				pruned, at, err := s.PruneNotices(t.Context(), toldAt.Add(time.Hour), next, 100)
				require.NoError(t, err)
				n += pruned
				if next = at; next == 0 {
					return n
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := testenv.NewDatabase(t)
			d.Config.LockWait = time.Second
			s := d.Store(t)
			plantWindow(t, d, 1, "u", 11_000)
			plantWindow(t, d, 2, "u", 4000)
			plantWindow(t, d, 3, "u", 900)
			plantWindow(t, d, 4, "u", 5000)
			plantWindow(t, d, 5, "u", 0)
			plantWindow(t, d, 6, "v", 10)
			if name == "prune" {
				d.Exec(t, `UPDATE notice_window SET open_mark = NULL, closed_at = '2026-03-01' WHERE user_id = 'u'`)
			}
			// What is left of it if the last step fails: a window that tells nobody anything.
			want := 5
			if name == "erase" {
				want = 1 // the others are gone before it
				tx, err := d.SQL.BeginTx(t.Context(), nil)
				require.NoError(t, err)
				_, err = tx.ExecContext(t.Context(), `UPDATE notice_item SET dropped = 'x' WHERE event_id = '1:9999'`)
				require.NoError(t, err)
				_, err = s.EraseUser(t.Context(), "u", "ann", "asked for it")
				require.ErrorIs(t, err, coupon.ErrContention)
				require.NoError(t, tx.Rollback())
				require.EqualValues(t, 1000, d.Int(t, `SELECT COUNT(*) FROM notice_item WHERE window_id = 1`))
				require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM notice WHERE window_id = 1`))
				require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM notice_window WHERE id = 1 AND open_mark IS NULL AND closed_at IS NOT NULL
					AND due_at = '9999-12-31' AND closed_by = ?`, coupon.ClosedByRemoval))
			}
			require.Equal(t, want, remove(t, s))
			for table, left := range map[string]int64{"notice_window": 1, "notice_item": 10, "notice": 1} {
				require.Equal(t, left, d.Int(t, `SELECT COUNT(*) FROM `+table), table)
			}
		})
	}
}
