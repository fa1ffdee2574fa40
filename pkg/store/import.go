package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// MaxImport is how many rows one call of ImportBatch takes.
const MaxImport = 500

//nolint:gochecknoglobals // statements are constants
var (
	stmtImportSource = define("import.source", `SELECT observe, created_at, updated_at FROM import_source WHERE name = ?`)
	stmtImportAny    = define("import.any", `SELECT COUNT(*) FROM (SELECT coupon_id FROM grant_key WHERE issuer = ? LIMIT 1) k`)
	stmtImportHold   = define("import.hold", `SELECT observe FROM import_source WHERE name = ? FOR UPDATE`)
	stmtImportAdd    = define("import.add", `INSERT INTO import_source (name, observe, created_at, updated_at)
		VALUES (?,?,UTC_TIMESTAMP(3),UTC_TIMESTAMP(3)) ON DUPLICATE KEY UPDATE name = name`)
)

// ErrImportMode: the import observes, and was asked not to, or the other way round.
var ErrImportMode = errors.New("import mode")

// Import gives an import by its name; coupon.ErrNotFound when there is none.
func (s *Store) Import(ctx context.Context, name string) (coupon.ImportSource, error) {
	src := coupon.ImportSource{Name: name}
	err := s.queryRow(ctx, s.sql, stmtImportSource, []any{&src.Observe, &src.Created, &src.Updated}, []byte(name))
	return src, err
}

// RegisterImport makes the import, unless it is there. ErrImportMode if it has coupons that are observed, and should not be, or are not, and
// should.
func (s *Store) RegisterImport(ctx context.Context, name string, observe bool) error {
	if err := coupon.ValidImportName(name); err != nil {
		return err //nolint:wrapcheck // says what is wrong
	}
	if _, err := s.exec(ctx, s.sql, stmtImportAdd, []byte(name), observe); err != nil {
		return err
	}
	src, err := s.Import(ctx, name)
	if err != nil || src.Observe == observe {
		return err
	}
	var some int
	if err := s.queryRow(ctx, s.sql, stmtImportAny, []any{&some}, []byte(coupon.ImportIssuer(name))); err != nil {
		return err
	}
	if some > 0 {
		return modeOf(name, src.Observe, observe)
	}
	return s.SetImportMode(ctx, name, observe) // nothing came of it yet
}

func modeOf(name string, is, asked bool) error {
	switch {
	case is && !asked:
		return fmt.Errorf("%w: the coupons of %s are observed, until its cut-over", ErrImportMode, name)
	case !is && asked:
		return fmt.Errorf("%w: the coupons of %s are real, not observed", ErrImportMode, name)
	default:
		return nil
	}
}

// importing is the work on some rows.
type importing struct {
	ask    *coupon.ImportAsk
	issuer string
	rows   []coupon.ImportRow
	hashes [][sha256.Size]byte
	out    []coupon.ImportOutcome

	issue                // templates, clock, ids
	keys  map[string]key // of those that were imported before
	fresh []int          // rows that are new
	moved []int          // rows that are known and have changed
}

// key is a coupon by its key.
type key struct {
	id   uint64
	hash [sha256.Size]byte
}

func newImporting(a *coupon.ImportAsk, rows []coupon.ImportRow) *importing {
	im := &importing{
		ask: a, issuer: coupon.ImportIssuer(a.Name), rows: rows, hashes: make([][sha256.Size]byte, len(rows)),
		out: make([]coupon.ImportOutcome, len(rows)), keys: make(map[string]key, len(rows)),
	}
	im.stock = make(map[uint64]*stock)
	for i := range rows {
		im.hashes[i] = rows[i].Hash()
	}
	return im
}

// ImportLook says what would become of up to MaxImport rows. Nothing is locked, and nothing changes.
func (s *Store) ImportLook(ctx context.Context, a *coupon.ImportAsk, rows []coupon.ImportRow) ([]coupon.ImportOutcome, error) {
	im := newImporting(a, rows)
	err := s.snapshot(ctx, func(ctx context.Context, q querier) error {
		if err := s.importSort(ctx, q, im); err != nil || len(im.moved) == 0 {
			return err
		}
		ids := im.movedIDs()
		cs, _, err := s.couponsIn(ctx, q, ids)
		if err != nil {
			return err
		}
		touched, err := s.importTouched(ctx, q, ids)
		if err != nil {
			return err
		}
		at := make(map[uint64]*coupon.Coupon, len(cs))
		for i := range cs {
			at[cs[i].ID] = &cs[i]
		}
		for _, i := range im.moved {
			im.judge(i, at[im.keys[im.rows[i].Key].id], touched)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("import: %w", err)
	}
	return im.out, nil
}

// ImportBatch takes up to MaxImport rows over, in one transaction with the progress of the operation, which moves to place, where the source goes on;
// read is how many rows it gave, and refused those of them that no row could be made of. It gives what became of each row, and the progress. If the operation is at that place already, a commit
// whose answer was lost, nothing is done and no outcomes are given.
//
// A row whose key is new makes a coupon, with its whole history in one or two steps of the cause import; its template's counters and
// statistics count it, whatever the quota says. It has a trigger as an issued one has; events and reminders are told of if asked for. A row
// that is known and has changed moves its coupon, if nothing else than the import has ever moved that.
//
// Errors: ErrImportMode, coupon.ErrUnavailable, ErrContention and ErrIntegrity, after which nothing has moved; coupon.ErrConflict when
// another process has taken the operation over.
func (s *Store) ImportBatch(ctx context.Context, h coupon.OperationHold, a *coupon.ImportAsk, rows []coupon.ImportRow, place string, read, refused int) (
	out []coupon.ImportOutcome, p coupon.ImportProgress, err error,
) {
	if len(rows) > MaxImport {
		return nil, p, fmt.Errorf("import: %w: %d rows, at most %d", ErrBatch, len(rows), MaxImport)
	}
	err = s.tx(ctx, "import", func(ctx context.Context, tx *txn) error {
		p, out = coupon.ImportProgress{}, nil
		if err := s.operationProgress(ctx, tx, h, &p); err != nil || p.Place == place && place != "" {
			return err
		}
		var observes bool
		if err := s.queryRow(ctx, tx, stmtImportHold, []any{&observes}, []byte(a.Name)); err != nil {
			return err
		}
		if err := modeOf(a.Name, observes, a.Observe); err != nil {
			return err
		}
		im := newImporting(a, rows)
		if err := s.importIn(ctx, tx, im); err != nil {
			return err
		}
		out = im.out
		p.Place, p.Rows = place, p.Rows+int64(read)
		for i := range out {
			p.Add(&out[i])
		}
		for range refused {
			p.Add(&coupon.ImportOutcome{What: coupon.ImportRefused})
		}
		progress, err := json.Marshal(p)
		if err != nil {
			return fmt.Errorf("import: progress: %w", err)
		}
		return s.moveOperation(ctx, tx, h, progress, false)
	})
	if err != nil {
		return nil, coupon.ImportProgress{}, err
	}
	return out, p, nil
}

// operationProgress reads how far an operation has come, and keeps whoever would take it over out until the transaction ends.
func (s *Store) operationProgress(ctx context.Context, tx *txn, h coupon.OperationHold, p any) error {
	var text []byte
	err := s.queryRow(ctx, tx, stmtOperationHold, []any{&text}, h.ID, []byte(h.Owner), h.Epoch)
	switch {
	case errors.Is(err, coupon.ErrNotFound):
		return errOperationLost
	case err != nil || len(text) == 0:
		return err
	}
	if err := json.Unmarshal(text, p); err != nil {
		return fmt.Errorf("progress of operation %d: %w", h.ID, err)
	}
	return nil
}

func (s *Store) importIn(ctx context.Context, tx *txn, im *importing) error {
	if err := s.queryRow(ctx, tx, stmtIssueStart, []any{&im.now, &im.step}); err != nil {
		return err
	}
	if err := s.importSort(ctx, tx, im); err != nil {
		return err
	}
	ts, err := s.importMoves(ctx, tx, im)
	if err != nil {
		return err
	}
	made, err := s.importMade(ctx, tx, im)
	if err != nil {
		return err
	}
	if err := s.importRecord(ctx, tx, im, ts, made); err != nil {
		return err
	}
	return s.importTaken(ctx, tx, im)
}

// importSort tells rows that are new from those that are known, and from those that cannot be imported.
func (s *Store) importSort(ctx context.Context, q querier, im *importing) error {
	if err := s.importRead(ctx, q, im); err != nil {
		return err
	}
	seen := make(map[string]bool, len(im.rows))
	for i := range im.rows {
		r, o := &im.rows[i], &im.out[i]
		st := im.stock[r.Template]
		o.Status = r.Status
		switch fault := r.Fault(); {
		case fault != "":
			*o = coupon.ImportOutcome{What: coupon.ImportRefused, Detail: fault}
			continue
		case seen[r.Key]:
			*o = coupon.ImportOutcome{What: coupon.ImportRefused, Detail: "external_id: comes twice"}
			continue
		case st == nil:
			*o = coupon.ImportOutcome{What: coupon.ImportRefused, Detail: fmt.Sprintf("template: there is no template %d", r.Template)}
			continue
		}
		seen[r.Key] = true
		o.Terms = st.Terms
		k, known := im.keys[r.Key]
		o.CouponID = k.id
		switch {
		case !known:
			o.What = coupon.ImportNew
			im.fresh = append(im.fresh, i)
		case k.hash == im.hashes[i]:
			o.What = coupon.ImportSame
		default:
			im.moved = append(im.moved, i)
		}
	}
	return nil
}

// importRead reads what is known of the rows' keys, and their templates.
func (s *Store) importRead(ctx context.Context, q querier, im *importing) error {
	asked := make([]grantKey, 0, len(im.rows))
	var templates []any
	for i := range im.rows {
		r := &im.rows[i]
		asked = append(asked, grantKey{im.issuer, r.Key})
		if _, there := im.stock[r.Template]; !there && r.Template != 0 {
			im.stock[r.Template] = nil
			templates = append(templates, r.Template)
		}
	}
	err := s.eachKey(ctx, q, asked, func(k grantKey, id uint64, hash []byte) {
		known := key{id: id}
		copy(known.hash[:], hash)
		im.keys[k.key] = known
	})
	if err != nil || len(templates) == 0 {
		return err
	}
	return s.readTemplates(ctx, q, &im.issue, templates)
}

// until is when a lock that is imported ends.
func (im *importing) until(r *coupon.ImportRow) time.Time {
	if !r.LockUntil.IsZero() {
		return r.LockUntil
	}
	return coupon.CeilSecond(im.now.Add(r.LockFor)) // the other system keeps it for as long as it likes
}

// take makes c what the row says, but for its version and due instant. What the row does not say is not known: it happened now.
func (im *importing) take(r *coupon.ImportRow, c *coupon.Coupon) {
	or := func(at, other time.Time) time.Time {
		if at.IsZero() {
			return other
		}
		return at.UTC().Truncate(time.Millisecond)
	}
	c.GrantedAt = or(r.GrantedAt, im.now)
	c.ValidFrom = or(r.ValidFrom, c.GrantedAt)
	if !c.ValidFrom.Before(r.ExpiresAt) && r.ValidFrom.IsZero() {
		c.ValidFrom = r.ExpiresAt.Add(-time.Second)
	}
	c.Status, c.ExpiresAt, c.Observed = r.Status, r.ExpiresAt, im.ask.Observe
	c.OrderID, c.LockedAt, c.LockUntil, c.UsedAt, c.ExpiredAt, c.Cause = "", time.Time{}, time.Time{}, time.Time{}, time.Time{}, ""
	switch r.Status {
	case coupon.Locked:
		c.OrderID, c.LockedAt, c.LockUntil = r.OrderID, or(r.LockedAt, im.now), im.until(r)
	case coupon.Used:
		c.OrderID, c.UsedAt = r.OrderID, or(r.UsedAt, im.now)
	case coupon.Expired:
		c.ExpiredAt, c.Cause = or(r.ExpiredAt, r.ExpiresAt), coupon.CauseImport
	case coupon.Unused, coupon.Voided:
	default:
	}
	c.DueAt = r.ExpiresAt
	if !coupon.IsNever(r.ExpiresAt) {
		c.DueAt = coupon.DueAt(r.ExpiresAt, c.Terms.Precision, im.issuer, r.Key)
	}
}

// importKeys gives the ids of an import's coupons, by their keys, from a key on.
func (s *Store) importKeys(ctx context.Context, q querier, issuer, after string, limit int) (keys []string, ids []uint64, err error) {
	err = s.query(ctx, q, stmtImportKeys, func(r *sql.Rows) error {
		var k []byte
		var id uint64
		err := r.Scan(&k, &id)
		keys, ids = append(keys, string(k)), append(ids, id)
		return err
	}, []byte(issuer), []byte(after), limit)
	return keys, ids, err
}
