//go:build proof

package crash_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/chaos/model"
	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/crash"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

// checkout is the API. Whoever is asked is stopped, so that several publishers can be stopped side by side; and lapsectl.
func checkout() *stage {
	keys := &keys{later: make(map[string]func(w *world))}
	return &stage{
		name: "checkout", rings: []string{"#"},
		lanes: []lane{
			{worker: "publisher-1", scenes: verbs(model.Lock, model.Renew, model.Redeem, model.Release)},
			{worker: "publisher-2", scenes: append(verbs(model.Refund, model.Extend, model.Void), readers()...)},
			{worker: "publisher-3", scenes: append(keys.scenes(), templates(keys)...), last: keys.last},
			{worker: crash.Lapsectl, scenes: []scene{{point: "publish rebuild", pass: rebuilt}}},
		},
	}
}

// verbs are called, and called again.
func verbs(all ...model.Verb) []scene {
	var out []scene
	for _, verb := range all {
		answer := "answer " + string(verb) + "Coupons"
		if verb == model.Extend || verb == model.Void {
			answer = "answer " + string(verb) + "Coupon"
		}
		out = append(out,
			scene{point: "commit " + string(verb), pass: func(v *visit) { v.twice(verb, v.after()) }},
			scene{point: answer, pass: func(v *visit) { v.twice(verb, true) }},
		)
	}
	return out
}

// twice calls a verb, is not answered, and calls it again; known says that it had been done then.
func (v *visit) twice(verb model.Verb, known bool) {
	c := v.grant(time.Hour)
	order := "order-" + c.id
	switch verb {
	case model.Renew, model.Release:
		v.do(v.worker, c, model.Lock, order)
	case model.Refund:
		v.do(v.worker, c, model.Redeem, order)
	default:
	}
	from, _ := v.version(c)
	a := v.asking(c, verb, order)
	v.call(a.once, func() {
		steps, _ := v.version(c)
		require.Equal(v, known, steps == from+1, "it was done when the process had stopped")
	})
	a.answered(v.worker)
	steps, _ := v.version(c)
	switch verb {
	case model.Renew: // what was renewed a moment later reaches a moment further
		require.LessOrEqual(v, steps, from+2)
	case model.Extend, model.Void: // their answer says nothing of a repeat
		require.Equal(v, from+1, steps)
	default:
		require.Equal(v, from+1, steps)
		require.Equal(v, known, a.call.Answer == model.Repeated, "what the second answer says")
	}
}

// readers ring for what has ended; there is nobody else who settles it until the end of the stage.
func readers() []scene {
	return []scene{
		{point: "publish lazy", pass: func(v *visit) {
			c := v.grant(time.Second)
			v.passed(c.End)
			api := v.api(v.worker)
			v.stop(func() { // the reader need not be answered before the aside has rung
				v.until("an answer, or the end of who was asked", func() (bool, error) {
					got, err := api.Coupon(v.ctx, c.id)
					if err == nil {
						require.Equal(v, client.Expired, got.State)
					}
					return err == nil || !v.i.Fleet().Running(v.worker), nil
				})
			})
			_, state := v.version(c)
			require.Equal(v, model.Unused, state, "a reader moves nothing")
			v.until("the ring to be heard", func() (bool, error) { return v.bells.rung(trigger('l', c)) >= v.done(), nil })
			require.Equal(v, v.done(), v.bells.rung(trigger('l', c)))
		}},
		{point: "answer grantCoupons", pass: func(v *visit) {
			c := v.promise(v.soon(time.Hour))
			grant := v.ask(c)
			var first, second client.Granted
			v.call(func(ctx context.Context, api *client.Client) (err error) {
				first, err = api.Grant(ctx, grant)
				return err
			})
			v.again(v.worker, func(ctx context.Context, api *client.Client) (err error) {
				second, err = api.Grant(ctx, grant)
				return err
			})
			require.Equal(v, client.ResultRepeated, second.Result)
			if first.CouponID != "" {
				require.Equal(v, first.CouponID, second.CouponID)
			}
			v.granted(c, second)
		}},
	}
}

// keys are Idempotency-Keys whose requests died, which are asked for again when nobody is stopped any more.
type keys struct {
	mu    sync.Mutex
	later map[string]func(w *world) // by what is asked for
	dead  *keyed                    // its lease runs
}

// keyed is a request with a key.
type keyed struct {
	key string
	ask *ask
}

// keyed is a coupon that is about to be voided by a request with a key.
func (v *visit) keyed() *keyed {
	c := v.grant(time.Hour)
	return &keyed{key: "key-" + c.id, ask: v.asking(c, model.Void, "")}
}

func (k *keyed) once(ctx context.Context, api *client.Client) error {
	return k.ask.once(client.WithIdempotencyKey(ctx, k.key), api)
}

// settle asks until the key is answered: the coupon is voided once.
func (k *keyed) settle(w *world, publisher string) {
	w.again(publisher, k.once)
	k.ask.noted()
	w.becomes(k.ask.c, 2, model.Voided)
}

// row says whether a key is known, and whether it is answered.
func (k *keyed) row(w *world) (known, answered int) {
	known = w.count("SELECT COUNT(*) FROM idempotency_key WHERE idem_key = ?", []byte(k.key))
	answered = w.count("SELECT COUNT(*) FROM idempotency_key WHERE idem_key = ? AND status <> 0", []byte(k.key))
	return known, answered
}

func (k *keys) postpone(v *visit, f func(w *world)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.later[v.scene.point+" "+v.side+", the end"] = f
}

// last asks for all that is left, side by side, since each waits for its lease.
func (k *keys) last(w *world) {
	var all sync.WaitGroup
	for what, f := range k.later {
		all.Go(func() { w.step(what, f) })
	}
	all.Wait()
}

func (k *keys) scenes() []scene {
	return []scene{
		{point: "write idempotency.insert", pass: func(v *visit) {
			one := v.keyed()
			v.call(one.once, func() {
				known, answered := one.row(v.world)
				require.Equal(v, []int{v.done(), 0}, []int{known, answered}, "the key")
			})
			if v.after() {
				k.dead = one
				return // for the next scene
			}
			one.settle(v.world, v.worker)
		}},
		{point: "write idempotency.finish", pass: func(v *visit) {
			one := v.keyed()
			v.call(one.once, func() {
				known, answered := one.row(v.world)
				require.Equal(v, []int{1, v.done()}, []int{known, answered}, "the key")
			})
			if v.after() {
				one.settle(v.world, v.worker)
				return
			}
			v.busy(one.once)
			k.postpone(v, func(w *world) { one.settle(w, v.worker) })
		}},
		{point: "write idempotency.delete", pass: func(v *visit) {
			c := v.grant(time.Hour)
			one := &keyed{key: "bad-" + c.id}
			nothing := func(ctx context.Context, api *client.Client) error { // it is refused before it is done
				_, err := api.Void(client.WithIdempotencyKey(ctx, one.key), c.id, "", false)
				return err
			}
			v.call(nothing, func() {
				known, _ := one.row(v.world)
				require.Equal(v, 1-v.done(), known, "the key")
			})
			refused := func(w *world) {
				w.until("a refusal", func() (bool, error) {
					err := nothing(w.ctx, w.api(v.worker))
					return client.IsCode(err, client.CodeBadRequest), nil
				})
			}
			if v.after() {
				refused(v.world)
				return
			}
			v.busy(nothing)
			k.postpone(v, refused)
		}},
	}
}

// busy says that the request of a dead process is being worked on, as far as anybody knows.
func (v *visit) busy(call func(ctx context.Context, api *client.Client) error) {
	err := call(v.ctx, v.api(v.worker))
	require.True(v, client.IsCode(err, client.CodeInProgress), "%v", err)
}

// templates have no key of their own but the request's.
func templates(k *keys) []scene {
	creating := func(v *visit, key string, terms client.Terms) (func(ctx context.Context, api *client.Client) error, *client.Template) {
		made := &client.Template{}
		return func(ctx context.Context, api *client.Client) (err error) {
			*made, err = api.CreateTemplate(client.WithIdempotencyKey(ctx, key), terms)
			return err
		}, made
	}
	return []scene{
		{point: "commit create template", pass: func(v *visit) {
			key := "create-" + v.side
			create, made := creating(v, key, terms(key, nil))
			v.call(create, func() { require.Equal(v, v.done(), v.named(key)) })
			k.postpone(v, func(w *world) {
				w.again(v.worker, create)
				require.Equal(w, 1, w.named(key), "templates of one request")
				require.NotEmpty(w, made.TemplateID)
			})
		}},
		{point: "commit revise template", pass: func(v *visit) {
			old := v.created("revise-" + v.side)
			value := int64(700)
			var made client.Template
			revise := func(ctx context.Context, api *client.Client) (err error) {
				made, err = api.ReviseTemplate(client.WithIdempotencyKey(ctx, "revise-"+old), old, client.TermsChange{Revision: 1, Value: &value, Reason: "crash"})
				return err
			}
			v.call(revise, func() { require.Equal(v, 1+v.done(), v.revisions(old)) })
			k.postpone(v, func(w *world) {
				w.again(v.worker, revise)
				require.Equal(w, 2, w.revisions(old), "revisions")
				require.EqualValues(w, 2, made.Revision)
			})
		}},
		{point: "commit stop template", pass: func(v *visit) {
			id := v.created("stop-" + v.side)
			stop := func(ctx context.Context, api *client.Client) error {
				_, err := api.StopTemplate(ctx, id, "crash")
				return err
			}
			v.call(stop, func() {
				require.Equal(v, v.done(), v.count("SELECT stopped FROM template_stock WHERE template_id = ?", id))
			})
			v.again(v.worker, stop)
			require.Equal(v, 1, v.count("SELECT stopped FROM template_stock WHERE template_id = ?", id))
		}},
		{point: "commit begin idempotent", pass: func(v *visit) { // the key that died in another scene, once its lease has ended
			require.NotNil(v, k.dead, "nobody left a key")
			v.until("the end of the key's lease", func() (bool, error) {
				return v.count("SELECT lease_until <= UTC_TIMESTAMP(3) FROM idempotency_key WHERE idem_key = ?", []byte(k.dead.key)) == 1, nil
			})
			v.call(k.dead.once, func() {
				free := v.count("SELECT lease_until <= UTC_TIMESTAMP(3) FROM idempotency_key WHERE idem_key = ?", []byte(k.dead.key))
				require.Equal(v, 1-v.done(), free, "the key is free")
			})
			if v.after() {
				v.busy(k.dead.once)
				k.postpone(v, func(w *world) { k.dead.settle(w, v.worker) })
			}
		}},
	}
}

func (w *world) named(name string) int {
	return w.count("SELECT COUNT(*) FROM coupon_template WHERE name = ?", name)
}

func (w *world) revisions(template string) int {
	return w.count("SELECT COUNT(*) FROM coupon_template WHERE id = ?", template)
}

func (v *visit) created(name string) string {
	var made client.Template
	v.again(v.worker, func(ctx context.Context, api *client.Client) (err error) {
		made, err = api.CreateTemplate(client.WithIdempotencyKey(ctx, "made-"+name), terms(name, nil))
		return err
	})
	return made.TemplateID
}

// rebuilt has lapsectl stopped while it publishes triggers again, and calls it again.
func rebuilt(v *visit) {
	const publisher = "publisher-1"
	v.ready(publisher)
	c := v.world.grant(publisher, v.soon(time.Hour))
	v.do(publisher, c, model.Lock, "order-"+c.id) // locks are on the first page
	call := func() ([]byte, error) {
		ctx, cancel := context.WithTimeout(v.ctx, patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, filepath.Join(v.bin, crash.Lapsectl), "rebuild", "--reason=crash", "--json")
		cmd.Env = append(v.i.Env(), "LAPSE__LADDER__LEVELS="+demo.ShortLevels(), crash.Variable+"="+v.file(crash.Lapsectl))
		return cmd.CombinedOutput()
	}
	armed := time.Now()
	v.arm(crash.Lapsectl, v.scene.point+" "+v.side)
	said, err := call()
	require.ErrorContains(v, err, "signal: killed", "%s", said)
	v.hit(v.scene.point+" "+v.side, armed)
	v.rings(c, v.done())
	said, err = call() // it waits for the dead one's lease
	require.NoError(v, err, "%s", said)
	require.True(v, strings.Contains(string(said), `"finished": true`) || strings.Contains(string(said), `"finished":true`), "%s", said)
	v.rings(c, 1+v.done())
	_ = os.Remove(v.file(crash.Lapsectl))
}

// rings waits until a rebuilt trigger was heard so often.
func (v *visit) rings(c *promised, times int) {
	id := coupon.TriggerID(coupon.SentByRebuild, c.ID, 2)
	v.until("a rebuilt trigger", func() (bool, error) { return v.bells.rung(id) >= times, nil })
	require.Equal(v, times, v.bells.rung(id), "rebuilt triggers")
}
