package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtStockInsert = define("template.stock_insert", `INSERT INTO template_stock (revision, quota, per_user, taken, stopped) VALUES (1,?,?,0,0)`)
	stmtStockRevise = define("template.stock_revise", `UPDATE template_stock SET revision = ?, quota = ?, per_user = ? WHERE template_id = ? AND revision = ?`)
	stmtTemplateAdd = define("template.insert", `INSERT INTO coupon_template
		(id, revision, name, rule, value, currency, prec_class, late_pay_policy, late_pay_window, quota_back, offer, basis_points, cap, min_spend, scopes,
		reminders, created_at, actor, reason) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,UTC_TIMESTAMP(3),?,?)`)
	stmtTemplates = define("template.list", `SELECT t.id, t.revision, t.name, t.rule, `+termsColumns+`, t.created_at, t.actor, t.reason,
		s.quota, s.per_user, s.taken, s.stopped FROM template_stock s JOIN coupon_template t ON t.id = s.template_id AND t.revision = s.revision
		WHERE s.template_id >= ? ORDER BY s.template_id LIMIT ?`)
	stmtTerms = define("template.terms", `SELECT `+termsColumns+` FROM coupon_template t WHERE id = ? AND revision = ?`)
)

// termsColumns are what scanTerms reads, of a coupon_template t.
const termsColumns = `t.value, t.currency, t.prec_class, t.late_pay_policy, t.late_pay_window, t.quota_back,
	t.offer, t.basis_points, t.cap, t.min_spend, t.scopes, t.reminders`

// scanTerms reads termsColumns: its dest are where they go, and terms gives them afterwards.
type scanTerms struct {
	coupon.Terms
	precision, late, back, offer, scopes, reminders string
	window                                          int64
}

func (t *scanTerms) dest() []any {
	o := &t.Offer
	return []any{
		&t.Value, &t.Currency, &t.precision, &t.late, &t.window, &t.back, &t.offer, &o.BasisPoints, &o.Cap, &o.MinSpend, &t.scopes,
		&t.reminders,
	}
}

func (t *scanTerms) terms(id uint64, revision uint32) (coupon.Terms, error) {
	terms := t.Terms
	terms.TemplateID, terms.Revision, terms.Precision = id, revision, coupon.Precision(t.precision)
	terms.LatePay, terms.LateWindow = coupon.LatePay(t.late), time.Duration(t.window)*time.Second
	terms.QuotaBack, terms.Offer.Kind = coupon.QuotaBack(t.back), coupon.OfferKind(t.offer)
	terms.Reminders = coupon.Picks(t.reminders)
	if t.scopes != noScopes {
		if err := json.Unmarshal([]byte(t.scopes), &terms.Offer.Scopes); err != nil {
			return terms, fmt.Errorf("scopes of template %d revision %d: %w: %w", id, revision, coupon.ErrIntegrity, err)
		}
	}
	return terms, nil
}

const noScopes = "[]"

// termsArgs are the values of termsColumns.
func termsArgs(t coupon.Terms) ([]any, error) {
	scopes := []byte(noScopes)
	if len(t.Offer.Scopes) > 0 {
		var err error
		if scopes, err = json.Marshal(t.Offer.Scopes); err != nil {
			return nil, fmt.Errorf("scopes: %w", err)
		}
	}
	return []any{
		t.Value, t.Currency, string(t.Precision), string(t.LatePay), int64(t.LateWindow / time.Second), string(t.QuotaBack),
		string(t.Offer.Kind), t.Offer.BasisPoints, t.Offer.Cap, t.Offer.MinSpend, string(scopes),
		string(t.Reminders),
	}, nil
}

// CreateTemplate stores the first revision of a template and gives its id. Faults of t are reported all at once,
// each naming its field.
func (s *Store) CreateTemplate(ctx context.Context, t coupon.Template) (uint64, error) {
	return s.createTemplate(ctx, t, nil)
}

// CreateTemplateOnce is CreateTemplate for a request that has begun with an idempotency key (BeginIdempotent): the id is
// noted with the key in the same transaction, so that a second try finds it as the key's mark. coupon.ErrConflict says
// that another try made a template already.
func (s *Store) CreateTemplateOnce(ctx context.Context, t coupon.Template, caller, key string) (uint64, error) {
	return s.createTemplate(ctx, t, func(ctx context.Context, tx *txn, id uint64) error {
		return s.markIdempotent(ctx, tx, caller, key, strconv.FormatUint(id, 10))
	})
}

func (s *Store) createTemplate(ctx context.Context, t coupon.Template, also func(ctx context.Context, tx *txn, id uint64) error) (uint64, error) {
	if err := t.Validate(); err != nil {
		return 0, err
	}
	var id uint64
	err := s.tx(ctx, "create template", func(ctx context.Context, tx *txn) error {
		var err error
		if id, err = s.insertID(ctx, tx, stmtStockInsert, t.Quota, t.PerUser); err != nil {
			return err
		}
		if err := s.insertRevision(ctx, tx, id, 1, t); err != nil || also == nil {
			return err
		}
		return also(ctx, tx, id)
	})
	return id, err
}

// ReviseTemplate stores the next revision of t.ID; t.Revision is the one it was made from, and ErrConflict says
// that another revision came first. Issued coupons keep theirs.
func (s *Store) ReviseTemplate(ctx context.Context, t coupon.Template) (uint32, error) {
	return s.reviseTemplate(ctx, t, nil)
}

// ReviseTemplateOnce is to ReviseTemplate what CreateTemplateOnce is to CreateTemplate; the mark is the revision.
func (s *Store) ReviseTemplateOnce(ctx context.Context, t coupon.Template, caller, key string) (uint32, error) {
	return s.reviseTemplate(ctx, t, func(ctx context.Context, tx *txn, revision uint32) error {
		return s.markIdempotent(ctx, tx, caller, key, strconv.FormatUint(uint64(revision), 10))
	})
}

func (s *Store) reviseTemplate(ctx context.Context, t coupon.Template, also func(ctx context.Context, tx *txn, revision uint32) error) (uint32, error) {
	if err := t.Validate(); err != nil {
		return 0, err
	}
	next := t.Revision + 1
	err := s.tx(ctx, "revise template", func(ctx context.Context, tx *txn) error {
		n, err := s.exec(ctx, tx, stmtStockRevise, next, t.Quota, t.PerUser, t.ID, t.Revision)
		if err != nil {
			return err
		}
		if n == 0 {
			return fmt.Errorf("template %d revision %d: %w", t.ID, t.Revision, coupon.ErrConflict)
		}
		if err := s.insertRevision(ctx, tx, t.ID, next, t); err != nil || also == nil {
			return err
		}
		return also(ctx, tx, next)
	})
	return next, err
}

func (s *Store) insertRevision(ctx context.Context, tx *txn, id uint64, revision uint32, t coupon.Template) error {
	terms, err := termsArgs(t.Terms.Defaults())
	if err != nil {
		return err
	}
	args := append([]any{id, revision, t.Name, t.Rule.String()}, terms...)
	_, err = s.exec(ctx, tx, stmtTemplateAdd, append(args, t.Actor, t.Reason)...)
	return err
}

// Template gives the revision that issues now; coupon.ErrNotFound when there is none.
func (s *Store) Template(ctx context.Context, id uint64) (coupon.Template, error) {
	ts, err := s.templates(ctx, s.sql, id, 1)
	if err != nil {
		return coupon.Template{}, err
	}
	if len(ts) == 0 || ts[0].ID != id {
		return coupon.Template{}, fmt.Errorf("template %d: %w", id, coupon.ErrNotFound)
	}
	return ts[0], nil
}

// Templates lists up to limit templates from the id on, in id order.
func (s *Store) Templates(ctx context.Context, from uint64, limit int) ([]coupon.Template, error) {
	return s.templates(ctx, s.sql, from, limit)
}

func (s *Store) templates(ctx context.Context, q querier, from uint64, limit int) ([]coupon.Template, error) {
	var ts []coupon.Template
	err := s.query(ctx, q, stmtTemplates, func(r *sql.Rows) error {
		var t coupon.Template
		var rule string
		var terms scanTerms
		dest := append([]any{&t.ID, &t.Revision, &t.Name, &rule}, terms.dest()...)
		dest = append(dest, &t.CreatedAt, &t.Actor, &t.Reason, &t.Quota, &t.PerUser, &t.Taken, &t.Stopped)
		if err := r.Scan(dest...); err != nil {
			return err
		}
		if err := json.Unmarshal([]byte(rule), &t.Rule); err != nil {
			return fmt.Errorf("rule of template %d: %w", t.ID, err)
		}
		var err error
		if t.Terms, err = terms.terms(t.ID, t.Revision); err != nil {
			return err
		}
		ts = append(ts, t)
		return nil
	}, from, limit)
	return ts, err
}

// termsCache keeps the immutable terms of revisions, so that an expiry batch does not read templates.
type termsCache struct {
	mu sync.Mutex
	m  map[termsKey]coupon.Terms
}

type termsKey struct {
	id       uint64
	revision uint32
}

const termsCached = 4096

// termsOf gives the terms of a revision, from memory when known.
func (s *Store) termsOf(ctx context.Context, q querier, id uint64, revision uint32) (coupon.Terms, error) {
	key := termsKey{id, revision}
	s.terms.mu.Lock()
	t, ok := s.terms.m[key]
	s.terms.mu.Unlock()
	if ok {
		return t, nil
	}
	var row scanTerms
	if err := s.queryRow(ctx, q, stmtTerms, row.dest(), id, revision); err != nil {
		if errors.Is(err, coupon.ErrNotFound) {
			return t, fmt.Errorf("template %d revision %d: %w", id, revision, coupon.ErrIntegrity)
		}
		return t, err
	}
	t, err := row.terms(id, revision)
	if err != nil {
		return t, err
	}
	s.terms.mu.Lock()
	defer s.terms.mu.Unlock()
	if s.terms.m == nil || len(s.terms.m) >= termsCached {
		s.terms.m = make(map[termsKey]coupon.Terms)
	}
	s.terms.m[key] = t
	return t, nil
}
