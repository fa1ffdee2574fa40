//go:build proof

package crash_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/chaos/model"
	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/crash"
	"github.com/lapsehq/lapse/pkg/event"
)

// visit is one stop: of a worker, at a point, on one side of it.
type visit struct {
	*world
	scene  scene
	side   string
	worker string
	stops  int
}

// play lets a worker be stopped at a point, and looks at what comes of it.
func (w *world) play(l lane, sc scene, side string) {
	w.step(sc.point+" "+side, func(w *world) {
		v := &visit{world: w, scene: sc, side: side, worker: l.worker}
		if sc.worker != "" {
			v.worker = sc.worker
		}
		defer v.restore()
		sc.pass(v)
		require.NotZero(v, v.stops, "nobody was stopped")
	})
}

// restore leaves the worker as the next visit needs it, whatever became of this one.
func (v *visit) restore() {
	v.disarm(v.worker)
	if v.worker != crash.Lapsectl && !v.i.Fleet().Running(v.worker) {
		if err := v.i.Fleet().Launch(v.ctx, v.worker); err != nil {
			v.Errorf("%v", err)
		}
	}
}

// after says that the point has been passed when the process stops.
func (v *visit) after() bool { return v.side == "after" }

// stop arms the worker, causes it to come by the point, and sees it dead by its own hand. dead looks at what is there before it is
// started again.
func (v *visit) stop(cause func(), dead ...func()) {
	at := v.scene.point + " " + v.side
	v.quietly()
	armed := time.Now()
	v.arm(v.worker, at)
	cause()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err := <-v.ended[v.worker]:
		require.ErrorContains(v, err, v.worker+" ended unexpectedly: signal: killed")
	case <-timer.C:
		require.Fail(v, "it was not passed", "%s", v.i.Fleet().Tail(v.worker))
	}
	v.hit(at, armed)
	for _, look := range dead {
		look()
	}
	v.launch(v.worker)
}

// quietly makes sure that nothing has happened to the worker until now.
func (v *visit) quietly() {
	select {
	case err := <-v.ended[v.worker]:
		require.NoError(v, err, "before it was armed")
	default:
	}
	if v.worker != crash.Lapsectl {
		require.True(v, v.i.Fleet().Running(v.worker), "%s does not run", v.worker)
	}
}

// hit notes that the process has stopped itself where it was to.
func (v *visit) hit(at string, armed time.Time) {
	hit := v.file(v.worker) + crash.HitSuffix
	require.FileExists(v, hit, "it died, and not at the point")
	require.NoError(v, os.Remove(hit))
	v.stops++
	v.died(death{worker: v.worker, at: at, armed: armed, before: time.Now()})
}

// call asks the worker once, and stops it thereby: there is no answer, or none but the one that was sent before it died.
func (v *visit) call(call func(ctx context.Context, api *client.Client) error, dead ...func()) {
	api := v.api(v.worker)
	v.stop(func() {
		err := call(v.ctx, api)
		if !strings.HasPrefix(v.scene.point, string(crash.Answer)) || !v.after() {
			require.True(v, client.Uncertain(err), "it was answered: %v", err)
		}
	}, dead...)
}

// grant has a coupon granted by the API.
func (v *visit) grant(life time.Duration, change ...func(g *client.Grant)) *promised {
	v.ready(v.apiWorker()) // or its end might have come before it is asked for
	v.ready(v.worker)
	return v.world.grant(v.apiWorker(), v.soon(life), change...)
}

// apiWorker is a publisher that can be asked.
func (v *visit) apiWorker() string {
	if strings.HasPrefix(v.worker, crash.Publisher) {
		return v.worker
	}
	return crash.Publisher
}

func (w *world) promise(end time.Time) *promised {
	low, _ := w.i.Audit().Bounds()
	n := w.number()
	c := &promised{Promise: model.Promise{
		Key: fmt.Sprintf("%s-%d", w.stage.name, n), User: fmt.Sprintf("user-%d", n), End: end, Sent: low, Answer: model.Unknown,
	}}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.coupons = append(w.coupons, c)
	return c
}

func (w *world) ask(c *promised, change ...func(g *client.Grant)) client.Grant {
	g := client.Grant{GrantKey: c.Key, TemplateID: strconv.FormatUint(w.template, 10), UserID: c.User, BatchID: "crash", ExpiresAt: &c.End}
	for _, f := range change {
		f(&g)
	}
	c.Key, c.User = g.GrantKey, g.UserID
	return g
}

func (w *world) grant(publisher string, end time.Time, change ...func(g *client.Grant)) *promised {
	c := w.promise(end)
	g := w.ask(c, change...)
	w.again(publisher, func(ctx context.Context, api *client.Client) error {
		got, err := api.Grant(ctx, g)
		if err == nil {
			w.granted(c, got)
		}
		return err
	})
	return c
}

func (w *world) granted(c *promised, got client.Granted) {
	id, err := strconv.ParseUint(got.CouponID, 10, 64)
	require.NoError(w, err, "%+v", got)
	_, high := w.i.Audit().Bounds()
	c.id, c.ID, c.Answer, c.Got = got.CouponID, id, model.Done, high
}

// message asks for coupons as an issuer does, by an event.
func (w *world) message(cs ...*promised) broker.Message {
	grants := make([]coupon.Grant, len(cs))
	for i, c := range cs {
		grants[i] = coupon.Grant{Key: c.Key, TemplateID: w.template, UserID: c.User, BatchID: "crash", ExpiresAt: c.End, Issuer: issuer}
	}
	id := "grants-" + cs[0].Key
	body, err := w.i.Codec().Grants(id, w.i.Now(), grants)
	require.NoError(w, err)
	return broker.Message{Exchange: w.i.Ladder().Issuance(), Key: event.KeyGrant, ID: id, Body: body, ContentType: event.ContentType, Mandatory: true}
}

func (w *world) publish(ms ...broker.Message) { require.NoError(w, w.i.Publish(w.ctx, ms...)) }

// known waits until the coupon of a grant key is there.
func (w *world) known(c *promised) {
	w.counted("the coupon of "+c.Key, 1, "SELECT COUNT(*) FROM grant_key WHERE grant_key = ?", []byte(c.Key))
	var id uint64
	require.NoError(w, w.i.DB().QueryRowContext(w.ctx, "SELECT coupon_id FROM grant_key WHERE grant_key = ?", []byte(c.Key)).Scan(&id))
	c.ID, c.id, c.Answer = id, strconv.FormatUint(id, 10), model.Done
}

// version is how many steps a coupon has gone, and the state that it is in.
func (w *world) version(c *promised) (version int, state model.State) {
	require.NoError(w, w.i.DB().QueryRowContext(w.ctx, `SELECT version, status FROM coupon WHERE id = ?
		UNION ALL SELECT version, status FROM coupon_archive WHERE id = ?`, c.ID, c.ID).Scan(&version, &state))
	return version, state
}

// becomes waits until a coupon has gone so many steps and is in a state.
func (w *world) becomes(c *promised, version int, state model.State) {
	w.until(fmt.Sprintf("coupon %s to be %s", c.id, state), func() (bool, error) {
		_, now := w.version(c)
		return now == state, nil
	})
	steps, _ := w.version(c)
	require.Equal(w, version, steps, "steps of coupon %s", c.id)
}

// ask of a coupon: a verb that is called once and, if it must be, again.
type ask struct {
	*world
	c    *promised
	call model.Call
	lock time.Duration
}

func (w *world) asking(c *promised, verb model.Verb, order string) *ask {
	a := &ask{world: w, c: c, call: model.Call{Verb: verb, Order: order, Answer: model.Unknown}, lock: 10 * time.Minute}
	switch verb {
	case model.Renew:
		a.lock = 20 * time.Minute
	case model.Extend:
		a.call.End = c.End.Add(time.Hour)
	default:
	}
	a.call.Sent, _ = w.i.Audit().Bounds()
	return a
}

// once is one attempt.
func (a *ask) once(ctx context.Context, api *client.Client) error {
	o := client.Order{UserID: a.c.User, CouponIDs: []string{a.c.id}, LockFor: a.lock}
	var acted client.Acted
	var err error
	a.call.Attempts++
	switch a.call.Verb {
	case model.Lock:
		acted, err = api.Lock(ctx, a.call.Order, o)
	case model.Renew:
		acted, err = api.Renew(ctx, a.call.Order, o)
	case model.Redeem:
		acted, err = api.Redeem(ctx, a.call.Order, o)
	case model.Release:
		acted, err = api.Release(ctx, a.call.Order, o)
	case model.Refund:
		acted, err = api.Refund(ctx, a.call.Order, o)
	case model.Extend:
		_, err = api.Extend(ctx, a.c.id, &a.call.End, "crash")
	case model.Void:
		_, err = api.Void(ctx, a.c.id, "crash", false)
	default:
		return fmt.Errorf("no call for %s", a.call.Verb)
	}
	if err == nil {
		a.call.Answer = model.Done
		if len(acted.Coupons) > 0 && acted.Coupons[0].Repeated {
			a.call.Answer = model.Repeated
		}
		_, a.call.Got = a.i.Audit().Bounds()
	}
	return err
}

// answered asks until there is an answer, and writes it down.
func (a *ask) answered(publisher string) {
	a.again(publisher, a.once)
	a.noted()
}

func (a *ask) noted() { a.c.Calls = append(a.c.Calls, a.call) }

// do asks for a verb while nobody is stopped.
func (w *world) do(publisher string, c *promised, verb model.Verb, order string) {
	w.asking(c, verb, order).answered(publisher)
}

// drained waits until nothing is to be sent.
func (w *world) drained() { w.counted("messages in the outbox", 0, "SELECT COUNT(*) FROM outbox") }
