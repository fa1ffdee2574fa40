package verify

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/lapsehq/lapse/pkg/audit"
	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

const (
	restoreEarly = 15 * time.Second // coupons that end between the backup and the restore
	restoreLate  = 75 * time.Second // and those that end after it
	restoreSkip  = 10_000_000       // how far counters of ids are raised, as docs/operate.md says
	restoreLimit = 4 * time.Minute
	restoreOther = "restored" // the installation's name from then on
)

// identities are what consumers tell events apart by, with what each said.
type identities struct {
	mu      sync.Mutex
	says    map[string][sha256.Size]byte
	twisted int // identities that said two different things
}

func (i *identities) hear(e audit.Event) {
	i.mu.Lock()
	defer i.mu.Unlock()
	id, body := e.Source+" "+e.ID, sha256.Sum256(append([]byte(e.Type+" "), e.Data...))
	if was, known := i.says[id]; known && was != body {
		i.twisted++
	}
	i.says[id] = body
}

func (i *identities) counts() (all, twisted int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.says), i.twisted
}

// restore puts the database back to an earlier instant under a broker that is full of later triggers, and does what docs/operate.md
// says to do then.
func (w *deploy) restore(ctx context.Context, t *tally) error {
	heard := &identities{says: map[string][sha256.Size]byte{}}
	return w.open(ctx, t, opening{hear: heard.hear}, func(ctx context.Context, s *shop) (err error) {
		r := &restoration{shop: s, w: w, n: w.size.restored, heard: heard}
		defer func() {
			err = errors.Join(err, r.root(func(db *sql.DB) error {
				_, err := db.ExecContext(context.WithoutCancel(ctx), "DROP DATABASE IF EXISTS "+r.backup())
				return err
			}))
		}()
		for _, step := range []func(context.Context) error{r.before, r.meanwhile, r.back, r.repair} {
			if err := step(ctx); err != nil {
				return err
			}
		}
		return r.judge(ctx)
	})
}

// restoration is one of n coupons that end early, n that end late, n that are granted after the backup, and a tenth of n that are paid then.
type restoration struct {
	*shop
	w     *deploy
	n     int
	heard *identities

	template    string
	early, late []string
	ends        time.Time // the late ones'
	highest     uint64    // id that anybody has seen
	orders      string    // the shop's own book of orders, JSON lines
}

func (r *restoration) backup() string { return r.database() + "_backup" }

func (r *restoration) database() string {
	name := r.DSN()
	name = name[strings.LastIndexByte(name, '/')+1:]
	name, _, _ = strings.Cut(name, "?")
	return name
}

// before grants what the backup knows, and makes the backup.
func (r *restoration) before(ctx context.Context) (err error) {
	if r.template, err = r.shop.template(ctx, nil); err != nil {
		return err
	}
	soon := r.soon(restoreEarly)
	r.ends = r.soon(restoreLate)
	grant := func(key string, ends time.Time) ([]string, error) {
		return r.grant(ctx, r.template, r.n, func(i int, g *client.Grant) {
			g.GrantKey, g.ExpiresAt = fmt.Sprintf("%s-%d", key, i), &ends
		})
	}
	if r.early, err = grant("early", soon); err != nil {
		return err
	}
	if r.late, err = grant("late", r.ends); err != nil {
		return err
	}
	if err := drained(ctx, r.DB()); err != nil {
		return err
	}
	r.w.cfg.View.Step("a backup")
	return r.copy(ctx, r.database(), r.backup(), true)
}

// meanwhile is what the restored database will not know: coupons end, are paid, and are granted.
func (r *restoration) meanwhile(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "lapse-verify-")
	if err != nil {
		return fmt.Errorf("a directory for an export: %w", err)
	}
	r.orders = filepath.Join(dir, "orders.jsonl")
	var lines strings.Builder
	for i, id := range r.late[:r.n/10] {
		if err := r.pay(ctx, i, id); err != nil {
			return err
		}
		fmt.Fprintf(&lines, `{"order_id":"o-%d","state":"paid","coupon_ids":[%q],"at":%q}`+"\n", i, id, r.Now().Add(-time.Hour).UTC().Format(time.RFC3339))
	}
	if err := os.WriteFile(r.orders, []byte(lines.String()), 0o600); err != nil {
		return fmt.Errorf("an export: %w", err)
	}
	if _, err := r.grant(ctx, r.template, r.n, func(i int, g *client.Grant) {
		g.GrantKey, g.ExpiresAt = fmt.Sprintf("lost-%d", i), &r.ends
	}); err != nil {
		return err
	}
	if err := r.settled(ctx, r.n+r.n/10, r.Now(), restoreLimit); err != nil {
		return err
	}
	if err := drained(ctx, r.DB()); err != nil {
		return err
	}
	highest, err := countIn(ctx, r.DB(), "SELECT MAX(id) FROM coupon")
	r.highest = uint64(highest)
	return err
}

func (r *restoration) pay(ctx context.Context, i int, id string) error {
	_, err := r.api.Redeem(ctx, fmt.Sprintf("o-%d", i), client.Order{UserID: userOf(i), CouponIDs: []string{id}})
	return err
}

// back restores, as after a lost disk, and starts the fleet by the runbook.
func (r *restoration) back(ctx context.Context) error {
	r.w.cfg.View.Step("the workers are killed, and the database is as it was at the backup")
	for _, worker := range []string{demo.Publisher, demo.Expirer} {
		if err := r.Fleet().Kill(worker); err != nil {
			return err
		}
	}
	if err := r.copy(ctx, r.backup(), r.database(), false); err != nil {
		return err
	}
	other := []string{"LAPSE__INSTALLATION=" + restoreOther}
	if err := r.call0(ctx, other, "pause", "expiry", "--reason=restored"); err != nil {
		return err
	}
	for _, worker := range []string{demo.Publisher, demo.Expirer} {
		more := map[string]string{"LAPSE__INSTALLATION": restoreOther}
		if worker == demo.Publisher {
			for k, v := range r.apiEnv() {
				more[k] = v
			}
		}
		if err := r.Add(ctx, r.w.cfg.Bin, worker+"-restored", worker, more); err != nil {
			return err
		}
	}
	var err error
	r.api.Close()
	r.url, r.api, err = r.clientOf(demo.Publisher + "-restored")
	return err
}

// repair publishes the triggers again, finds the orders that the rows do not know, tells them again, and lets go.
func (r *restoration) repair(ctx context.Context) error {
	other := []string{"LAPSE__INSTALLATION=" + restoreOther}
	if err := r.call0(ctx, other, "rebuild", "--from-scratch", "--reason=restored"); err != nil {
		return err
	}
	for _, pass := range []string{"", "_again"} {
		said, err := r.w.lapsectl(ctx, r.shop, other, "reconcile", "--json", "--orders="+r.orders)
		if err != nil {
			return err
		}
		var b books
		if err := said.json(&b); err != nil {
			return err
		}
		listed := 0
		for _, f := range b.Findings {
			if f.Kind == "order_paid" {
				listed = f.Count
			}
		}
		if pass == "" {
			want(r.t, "orders_listed", listed, Equal, r.n/10)
			for i, id := range r.late[:r.n/10] {
				if err := r.pay(ctx, i, id); err != nil {
					return err
				}
			}
			continue
		}
		want(r.t, "orders_listed"+pass, listed, Equal, 0)
	}
	fresh, err := r.grant(ctx, r.template, 1, func(_ int, g *client.Grant) { g.GrantKey = "after" })
	if err != nil {
		return err
	}
	reused := 0
	if len(fresh) != 1 || !above(fresh[0], r.highest) {
		reused++
	}
	want(r.t, "ids_given_again", reused, Equal, 0)
	return r.call0(ctx, other, "resume", "expiry", "--reason=restored")
}

// judge waits for every end, and counts.
func (r *restoration) judge(ctx context.Context) error {
	if err := r.settled(ctx, 2*r.n, r.ends, restoreLimit); err != nil {
		return err
	}
	if err := drained(ctx, r.DB()); err != nil {
		return err
	}
	fates, err := r.fates(ctx)
	if err != nil {
		return err
	}
	expired, used, early := 0, 0, 0
	for _, ids := range [][]string{r.early, r.late} {
		for _, id := range ids {
			f := fates[id]
			switch {
			case f == nil:
			case f.status == statusUsed:
				used++
			case f.status == statusExpired && f.expired == 1:
				expired++
			}
			if f != nil && f.expired > 0 && f.at.Before(f.ends) {
				early++
			}
		}
	}
	want(r.t, "expired", expired, Equal, 2*r.n-r.n/10)
	want(r.t, "used", used, Equal, r.n/10)
	want(r.t, "early", early, Equal, 0)
	all, twisted := r.heard.counts()
	want(r.t, "events", all, AtLeast, 3*r.n)
	want(r.t, "event_identities_used_twice", twisted, Equal, 0)
	return os.RemoveAll(filepath.Dir(r.orders))
}

// call0 calls lapsectl, which must answer 0.
func (r *restoration) call0(ctx context.Context, more []string, args ...string) error {
	said, err := r.w.lapsectl(ctx, r.shop, more, args...)
	if err == nil && said.code != 0 {
		err = fmt.Errorf("lapsectl %v: exit %d: %s", args, said.code, said.errors)
	}
	return err
}

func above(id string, highest uint64) bool {
	var n uint64
	_, err := fmt.Sscan(id, &n)
	return err == nil && n > highest
}

// copy makes the tables of one database those of another, all at one instant; new makes the other. Restored, counters of ids are raised.
func (r *restoration) copy(ctx context.Context, from, to string, fresh bool) error {
	return r.root(func(db *sql.DB) (err error) {
		db.SetMaxOpenConns(1)
		run := func(statement string) {
			if err == nil {
				if _, err = db.ExecContext(ctx, statement); err != nil {
					err = fmt.Errorf("copying %s: %w", from, err)
				}
			}
		}
		tables, err := tablesOf(ctx, db, from)
		if err != nil {
			return err
		}
		if fresh {
			run("CREATE DATABASE " + to)
			for _, table := range tables {
				run("CREATE TABLE " + to + "." + table + " LIKE " + from + "." + table)
			}
		}
		locks := make([]string, 0, 2*len(tables))
		for _, table := range tables {
			locks = append(locks, from+"."+table+" READ", to+"."+table+" WRITE")
		}
		run("LOCK TABLES " + strings.Join(locks, ", "))
		for _, table := range tables {
			run("DELETE FROM " + to + "." + table)
			run("INSERT INTO " + to + "." + table + " SELECT * FROM " + from + "." + table)
		}
		run("UNLOCK TABLES")
		if !fresh {
			for _, table := range []string{"coupon", "template_stock", "notice"} {
				run(fmt.Sprintf("ALTER TABLE %s.%s AUTO_INCREMENT = %d", to, table, restoreSkip))
			}
		}
		return err
	})
}

func tablesOf(ctx context.Context, db *sql.DB, database string) (tables []string, err error) {
	rows, err := db.QueryContext(ctx, "SELECT table_name FROM information_schema.tables WHERE table_schema = ? AND table_type = 'BASE TABLE'", database)
	if err != nil {
		return nil, fmt.Errorf("the tables of %s: %w", database, err)
	}
	defer rows.Close() //nolint:errcheck // Err is what counts
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, fmt.Errorf("the tables of %s: %w", database, err)
		}
		tables = append(tables, name)
	}
	return tables, errors.Join(rows.Err())
}
