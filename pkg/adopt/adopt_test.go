package adopt_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/adopt"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/operation"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// moving is an import of a file with n rows, of which every hundredth cannot be.
type moving struct {
	testing.TB
	s    *store.Store
	m    *adopt.Mapping
	a    coupon.ImportAsk
	path string
	told []adopt.Told
}

func newMoving(t testing.TB, s *store.Store, n int) *moving {
	t.Helper()
	template, err := s.CreateTemplate(t.Context(), coupon.Template{
		Name: "t", Rule: coupon.Rule{Kind: coupon.RuleAfter, After: "1h"}, Terms: coupon.Terms{Value: 500, Currency: "CNY", Precision: coupon.Exact}, Actor: "a", Reason: "r",
	})
	require.NoError(t, err)
	var rows strings.Builder
	rows.WriteString("id,uid,st,tpl,ends\n")
	for i := range n {
		state := "0"
		if i%100 == 99 {
			state = "9"
		}
		fmt.Fprintf(&rows, "%d,u%d,%s,1,2030-10-31 23:59:59\n", i, i%7, state)
	}
	mv := &moving{TB: t, s: s, m: parse(t, small), path: file(t, "x.csv", rows.String())}
	mv.m.Templates = map[string]uint64{"*": template}
	mv.a = coupon.ImportAsk{Name: "shop", Batch: "b", Actor: "amy", Reason: "r"}
	require.NoError(t, s.RegisterImport(t.Context(), "shop", false))
	return mv
}

// run imports until the end, or until ctx ends, which it does after so many batches.
func (mv *moving) run(owner string, batches int) (p coupon.ImportProgress, resumed bool, err error) {
	mv.Helper()
	ctx, cancel := context.WithCancel(mv.Context())
	defer cancel()
	c := adopt.DefaultConfig()
	c.Batch, c.Rate, c.Lease = 100, 0, time.Second
	im, err := adopt.New(c, owner, mv.s, func(_ coupon.ImportProgress, told []adopt.Told) {
		mv.told = append(mv.told, told...)
		if batches--; batches == 0 {
			cancel()
		}
	})
	require.NoError(mv, err)
	w, p, err := im.Claim(ctx, adopt.Terms{Ask: mv.a, Source: mv.path, Mapping: mv.m.Hash()}, false)
	require.NoError(mv, err)
	src, err := adopt.OpenFile(mv.path, p.Place)
	require.NoError(mv, err)
	p, err = im.Run(ctx, &mv.a, mv.m, src, w, p)
	require.NoError(mv, src.Close())
	return p, w.Resumed, err
}

// Whoever goes on with an import that was broken off takes no row twice, and misses none.
func TestImportGoesOn(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	mv := newMoving(t, d.Store(t), 1234)
	p, resumed, err := mv.run("first", 3)
	require.ErrorIs(t, err, context.Canceled)
	require.False(t, resumed)
	require.EqualValues(t, 300, p.Rows)
	// Killed: its lease runs out first.
	d.Exec(t, `UPDATE operation SET owner = 'dead', lease_until = UTC_TIMESTAMP(3) + INTERVAL 300000 MICROSECOND`)
	p, resumed, err = mv.run("second", 4)
	require.ErrorIs(t, err, context.Canceled)
	require.True(t, resumed)
	require.EqualValues(t, 700, p.Rows)
	p, resumed, err = mv.run("third", 0)
	require.NoError(t, err)
	require.True(t, resumed)
	require.True(t, p.Done)
	require.EqualValues(t, 1234, p.Rows)
	require.EqualValues(t, 1222, p.Count(coupon.ImportNew))
	require.EqualValues(t, 12, p.Count(coupon.ImportRefused))
	require.Len(t, mv.told, 12)
	require.Equal(t, adopt.Told{Where: "line 101", Key: "99", What: coupon.ImportRefused, Detail: `state: the mapping says nothing of "9"`}, mv.told[0])
	require.EqualValues(t, 1222, d.Int(t, `SELECT COUNT(*) FROM coupon`))
	require.EqualValues(t, 1222, d.Int(t, `SELECT COUNT(DISTINCT grant_key) FROM grant_key`))

	p, resumed, err = mv.run("fourth", 0)
	require.NoError(t, err)
	require.False(t, resumed, "it is another import, which changes nothing")
	require.EqualValues(t, 1222, p.Count(coupon.ImportSame))
	require.EqualValues(t, 1222, d.Int(t, `SELECT SUM(version) FROM coupon`))

	c := adopt.DefaultConfig()
	im, err := adopt.New(c, "x", mv.s, func(coupon.ImportProgress, []adopt.Told) {})
	require.NoError(t, err)
	w, p, err := im.Over(t.Context(), "shop", false)
	require.NoError(t, err)
	require.NotZero(t, w.ID)
	require.Zero(t, p.Rows, "they are real already")
	c.Batch, c.Rate = 501, 0.5
	_, err = adopt.New(c, "x", mv.s, nil)
	require.ErrorContains(t, err, "batch: must be between 1 and 500, got 501")
	require.ErrorContains(t, err, "rate: must be between 1 and")
	require.NotErrorIs(t, err, operation.ErrRunning)
}
