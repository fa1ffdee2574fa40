package adopt

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"golang.org/x/time/rate"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/operation"
)

// The names of the operations in the database.
const (
	Kind     = "import"
	KindOver = "import.cut_over"
	KindBack = "import.back_out"
)

// Config tunes an import.
type Config struct {
	operation.Config // default: 5000 rows a second, 15s

	Batch int // rows of one transaction; default 500
}

// DefaultConfig gives the documented defaults.
func DefaultConfig() Config {
	c := Config{Config: operation.DefaultConfig(), Batch: 500}
	c.Rate = 5000
	return c
}

// Validate reports every fault, each beginning with the field's name.
func (c Config) Validate() error {
	return errors.Join(operation.Between("batch", c.Batch, 1, 500), c.Config.Validate())
}

// Rows is what an import asks of the database.
type Rows interface {
	operation.Rows
	ImportLook(ctx context.Context, a *coupon.ImportAsk, rows []coupon.ImportRow) ([]coupon.ImportOutcome, error)
	ImportBatch(ctx context.Context, h coupon.OperationHold, a *coupon.ImportAsk, rows []coupon.ImportRow, place string, read, refused int) (
		[]coupon.ImportOutcome, coupon.ImportProgress, error)
	ImportOver(ctx context.Context, h coupon.OperationHold, name string, notices bool, limit int) (coupon.ImportProgress, error)
	ImportBack(ctx context.Context, h coupon.OperationHold, name string, limit int) ([]coupon.ImportMoved, coupon.ImportProgress, error)
	Imported(ctx context.Context, name string, keys []string) (map[string]coupon.Imported, error)
}

// Told is what an import tells of a row that was not taken over.
type Told struct {
	Where  string `json:"where"` // line, or key
	Key    string `json:"external_id"`
	What   string `json:"what"` // coupon.ImportRefused, ImportHere or ImportBusy
	Detail string `json:"detail"`
}

// Import is one process's work on one import.
type Import struct {
	config Config
	owner  string
	rows   Rows
	limit  *rate.Limiter
	batch  int
	tell   func(coupon.ImportProgress, []Told)
}

// New makes one; owner names this process and no other, past or present. tell is told of each batch: how far it is, and the rows that were
// not taken over.
func New(c Config, owner string, rows Rows, tell func(coupon.ImportProgress, []Told)) (*Import, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("import config: %w", err)
	}
	im := &Import{config: c, owner: owner, rows: rows, tell: tell}
	im.limit, im.batch = c.Pace(c.Batch)
	return im, nil
}

// Terms names an import from a source: which of two imports is gone on with depends on all of it.
type Terms struct {
	Ask     coupon.ImportAsk
	Source  string // what is read
	Mapping [sha256.Size]byte
}

// Claim takes the import, and says where it stands: one that was begun and not finished is gone on with, unless fresh.
func (im *Import) Claim(ctx context.Context, t Terms, fresh bool) (*operation.Work, coupon.ImportProgress, error) {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%q %q %t %t %t %q %x", t.Ask.Name, t.Ask.Batch, t.Ask.Observe, t.Ask.Events, t.Ask.Notices, t.Source, t.Mapping)
	var p coupon.ImportProgress
	w, err := operation.Claim(ctx, im.rows, im.config.Config, im.owner, operation.Ask{
		Kind: Kind, Hash: [sha256.Size]byte(h.Sum(nil)), Terms: map[string]any{"name": t.Ask.Name, "source": t.Source, "observe": t.Ask.Observe}, Fresh: fresh,
	}, &p)
	return w, p, err
}

// page is what is read at once.
type page struct {
	records []*Record
	rows    []coupon.ImportRow
	of      []*Record // of each of rows
	told    []Told
	end     bool
}

func (im *Import) read(ctx context.Context, m *Mapping, src Source) (*page, error) {
	var p page
	for len(p.records) < im.batch {
		rec, err := src.Next(ctx)
		if errors.Is(err, io.EOF) {
			p.end = true
			break
		}
		if err != nil {
			return nil, err //nolint:wrapcheck // names the source
		}
		p.records = append(p.records, rec)
		row, err := m.Row(rec)
		if err != nil {
			p.told = append(p.told, Told{rec.Where, row.Key, coupon.ImportRefused, err.Error()})
			continue
		}
		p.rows, p.of = append(p.rows, row), append(p.of, rec)
	}
	return &p, nil
}

// outcomes adds what is to be told of rows that were not taken over.
func (p *page) outcomes(out []coupon.ImportOutcome) {
	for i := range out {
		switch o := &out[i]; o.What {
		case coupon.ImportRefused, coupon.ImportHere, coupon.ImportBusy:
			p.told = append(p.told, Told{p.of[i].Where, p.rows[i].Key, o.What, o.Detail})
		}
	}
}

// Look reads the source to its end and says what would become of it. Nothing changes.
func (im *Import) Look(ctx context.Context, a *coupon.ImportAsk, m *Mapping, src Source) (coupon.ImportProgress, error) {
	var sum coupon.ImportProgress
	for !sum.Done {
		p, err := im.read(ctx, m, src)
		if err != nil {
			return sum, err
		}
		for range p.told {
			sum.Add(&coupon.ImportOutcome{What: coupon.ImportRefused})
		}
		if len(p.rows) > 0 {
			out, err := im.look(ctx, a, p.rows)
			if err != nil {
				return sum, err
			}
			for i := range out {
				sum.Add(&out[i])
			}
			p.outcomes(out)
		}
		sum.Rows += int64(len(p.records))
		sum.Done = p.end
		im.tell(sum, p.told)
	}
	return sum, nil
}

func (im *Import) look(ctx context.Context, a *coupon.ImportAsk, rows []coupon.ImportRow) ([]coupon.ImportOutcome, error) {
	ctx, cancel := context.WithTimeout(ctx, operation.CallLimit)
	defer cancel()
	return im.rows.ImportLook(ctx, a, rows) //nolint:wrapcheck // says what it does
}

// Run takes the source over, from where it stands to its end. However it ends, the database says how far it came. When ctx ends, the batch
// in hand is seen to its end.
func (im *Import) Run(ctx context.Context, a *coupon.ImportAsk, m *Mapping, src Source, w *operation.Work, p coupon.ImportProgress) (coupon.ImportProgress, error) {
	var err error
	for err == nil && !p.Done {
		err = im.step(ctx, a, m, src, w, &p)
		if err == nil && ctx.Err() != nil && !p.Done {
			err = context.Cause(ctx)
		}
	}
	return p, w.End(ctx, p, p.Done, err)
}

func (im *Import) step(ctx context.Context, a *coupon.ImportAsk, m *Mapping, src Source, w *operation.Work, p *coupon.ImportProgress) error {
	pg, err := im.read(ctx, m, src)
	if err != nil {
		return err
	}
	if len(pg.records) > 0 {
		if err := im.limit.WaitN(ctx, len(pg.records)); err != nil {
			return fmt.Errorf("wait for the rate: %w", err)
		}
		place := pg.records[len(pg.records)-1].Place
		refused := len(pg.told)
		var out []coupon.ImportOutcome
		err := im.again(context.WithoutCancel(ctx), func(ctx context.Context) (err error) {
			out, *p, err = im.rows.ImportBatch(ctx, w.Hold(), a, pg.rows, place, len(pg.records), refused)
			return err //nolint:wrapcheck // says what it does
		})
		if err != nil {
			return err
		}
		pg.outcomes(out)
	}
	p.Done = pg.end
	im.tell(*p, pg.told)
	return nil
}

// again does one thing; what the database cannot do now is tried again for as long as the lease lasts.
func (im *Import) again(ctx context.Context, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, operation.CallLimit)
	defer cancel()
	for began := time.Now(); ; {
		err := do(ctx)
		retry := errors.Is(err, coupon.ErrUnavailable) || errors.Is(err, coupon.ErrContention)
		if err == nil || !retry || time.Since(began) > im.config.Lease/2 {
			return err
		}
		if err := lifecycle.Sleep(ctx, time.Second); err != nil {
			return err //nolint:wrapcheck // ctx's
		}
	}
}

// Over makes the observed coupons of an import real, and Back gives an import's coupons back to the other system, with moved told of those
// that something else has moved meanwhile. Both go on where one of the same kind was broken off.

// Over walks to the end.
func (im *Import) Over(ctx context.Context, name string, notices bool) (*operation.Work, coupon.ImportProgress, error) {
	return im.walk(ctx, KindOver, name, func(ctx context.Context, h coupon.OperationHold) (coupon.ImportProgress, error) {
		return im.rows.ImportOver(ctx, h, name, notices, im.batch) //nolint:wrapcheck // says what it does
	})
}

// Back walks to the end.
func (im *Import) Back(ctx context.Context, name string, moved func([]coupon.ImportMoved) error) (*operation.Work, coupon.ImportProgress, error) {
	return im.walk(ctx, KindBack, name, func(ctx context.Context, h coupon.OperationHold) (coupon.ImportProgress, error) {
		cs, p, err := im.rows.ImportBack(ctx, h, name, im.batch)
		if err == nil {
			err = moved(cs)
		}
		return p, err //nolint:wrapcheck // says what it does
	})
}

func (im *Import) walk(ctx context.Context, kind, name string, do func(ctx context.Context, h coupon.OperationHold) (coupon.ImportProgress, error)) (
	*operation.Work, coupon.ImportProgress, error,
) {
	var p coupon.ImportProgress
	w, err := operation.Claim(ctx, im.rows, im.config.Config, im.owner, operation.Ask{
		Kind: kind, Hash: sha256.Sum256([]byte(strconv.Quote(name))), Terms: map[string]any{"name": name},
	}, &p)
	if err != nil {
		return nil, p, err //nolint:wrapcheck // says what it does
	}
	for err == nil && !p.Done {
		if err = im.limit.WaitN(ctx, im.batch); err != nil {
			err = fmt.Errorf("wait for the rate: %w", err)
			break
		}
		err = im.again(context.WithoutCancel(ctx), func(ctx context.Context) error {
			next, err := do(ctx, w.Hold())
			if err == nil {
				p = next
			}
			return err
		})
		if err == nil {
			im.tell(p, nil)
		}
		if err == nil && ctx.Err() != nil && !p.Done {
			err = context.Cause(ctx)
		}
	}
	return w, p, w.End(ctx, p, p.Done, err)
}
