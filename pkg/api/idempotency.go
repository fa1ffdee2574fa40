package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// An Idempotency-Key stands for one effect and one answer. The store gives the key to one request (BeginIdempotent), for
// a lease that is longer than any request may take; that one does the work and remembers its answer, whole. Others get
// the answer, or are told that it is being worked on. A process that dies in between leaves a key whose lease ends; the
// next request with it does the work again, and meets what was committed: grants find their grant keys, orders their
// coupons' states and history. Only a template has no key of its own: creating and revising one notes it with the
// Idempotency-Key in the same transaction, and the next try answers with what was made instead of making another.
//
// An answer is remembered if it is final: success, or a refusal by the state of things. What cannot be read (400, 413)
// leaves nothing, and what says "later" (429, 5xx) gives the key back.

// key is a request's Idempotency-Key.
type key struct {
	text string
	mark string // what an earlier try made before it died; empty: nothing
}

const (
	maxKey       = 128
	finishWithin = 3 * time.Second // to remember an answer, also of a client that has gone
)

// lease of a key: nobody works on a request for longer.
func (c Config) lease() time.Duration { return 2*c.RequestTimeout + 2*finishWithin }

// keyOf reads the header; nil if there is none.
func keyOf(h http.Header, rt *route) (*key, *Problem) {
	values := h.Values("Idempotency-Key")
	if !rt.mutates || len(values) == 0 {
		return nil, nil
	}
	text := values[0]
	bad := len(values) > 1 || text == "" || len(text) > maxKey
	for i := 0; i < len(text) && !bad; i++ {
		bad = text[i] <= ' ' || text[i] > '~'
	}
	if bad {
		return nil, badRequest("header.Idempotency-Key", text, fmt.Sprintf("must be given once, as 1 to %d visible ASCII characters", maxKey))
	}
	return &key{text: text}, nil
}

// bodyHash tells requests with one key apart.
func bodyHash(r *http.Request, body []byte) [sha256.Size]byte {
	h := sha256.New()
	for _, part := range []string{"lapse.request.1", r.Method, r.URL.EscapedPath(), r.URL.RawQuery} {
		_, _ = h.Write(append([]byte(part), 0))
	}
	_, _ = h.Write(body)
	return [sha256.Size]byte(h.Sum(nil))
}

// withKey does the work if it is ours to do; ans has the answer then, or there is a problem.
func (a *API) withKey(ctx context.Context, ans *answer, k *key, hash [sha256.Size]byte, turn turn, work func()) *Problem {
	name := callerFrom(ctx).name
	var known coupon.Idempotent
	p := turn(ctx, func() *Problem {
		var err error
		if known, err = a.deps.Keys.BeginIdempotent(ctx, name, k.text, hash, a.cfg.lease()); err != nil {
			return a.failed(ctx, err)
		}
		return nil
	})
	if p != nil {
		return p
	}
	if known.State != coupon.IdempotentFresh {
		return replay(ans, known)
	}
	k.mark = string(known.Answer)
	settled := false
	defer func() {
		if !settled { // it came to nothing, or the handler panicked
			a.abandon(ctx, name, k)
		}
	}()
	work()
	if !final(ans.status) || ans.header.Get("Retry-After") != "" {
		return nil
	}
	settled = true
	return a.finish(ctx, ans, name, k, hash, turn)
}

// turn runs f in its turn; see gated.
type turn func(ctx context.Context, f func() *Problem) *Problem

// final says whether an answer stands, whenever it is asked for again.
func final(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	default:
		return status < http.StatusInternalServerError
	}
}

// replay gives a remembered answer again, byte for byte, or says why there is none yet.
func replay(ans *answer, known coupon.Idempotent) *Problem {
	switch known.State {
	case coupon.IdempotentAnswered:
		ans.header = http.Header{"Idempotency-Replayed": {"true"}, "Content-Type": {"application/json"}}
		if known.Status >= http.StatusBadRequest {
			ans.header.Set("Content-Type", problemType)
		}
		ans.status, ans.forced, ans.body = known.Status, 0, *bytes.NewBuffer(known.Answer)
		return nil
	case coupon.IdempotentReused:
		return problem(http.StatusUnprocessableEntity, CodeKeyReused, "the Idempotency-Key was used for another request: another path or body")
	case coupon.IdempotentBusy, coupon.IdempotentFresh:
		fallthrough
	default:
		return problem(http.StatusConflict, CodeInProgress, "a request with this Idempotency-Key is being worked on: ask again for its answer").after(1)
	}
}

// finish remembers the answer. If it cannot, the client gets it all the same: what it says is done, and is found again by
// whoever asks after the lease.
func (a *API) finish(ctx context.Context, ans *answer, name string, k *key, hash [sha256.Size]byte, turn turn) *Problem {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishWithin)
	defer cancel()
	first := coupon.Idempotent{State: coupon.IdempotentFresh}
	p := turn(ctx, func() *Problem {
		err := a.deps.Keys.FinishIdempotent(ctx, name, k.text, ans.status, ans.body.Bytes())
		if errors.Is(err, coupon.ErrConflict) { // we took so long that another took over
			if first, err = a.deps.Keys.BeginIdempotent(ctx, name, k.text, hash, a.cfg.lease()); err == nil && first.State == coupon.IdempotentFresh {
				first.State = coupon.IdempotentBusy
				a.abandon(ctx, name, k)
			}
		}
		if err != nil {
			a.log.Warn("an answer could not be remembered for its Idempotency-Key", zap.Error(err))
		}
		return nil
	})
	if p == nil && first.State != coupon.IdempotentFresh {
		return replay(ans, first)
	}
	return nil
}

func (a *API) abandon(ctx context.Context, name string, k *key) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishWithin)
	defer cancel()
	if err := a.deps.Keys.AbandonIdempotent(ctx, name, k.text); err != nil {
		a.log.Warn("an Idempotency-Key could not be given back; it is free when its lease ends", zap.Error(err))
	}
}

const (
	pruneEvery = 10 * time.Minute
	pruneBatch = 1000
	pruneMost  = 1000 // batches of one round
)

// prune forgets old keys, for as long as ctx lasts.
func (a *API) prune(ctx context.Context) {
	tick := time.NewTicker(pruneEvery)
	defer tick.Stop()
	for {
		if err := a.pruneRound(ctx); err != nil && ctx.Err() == nil {
			a.log.Warn("old idempotency keys could not be forgotten; the next round tries again", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (a *API) pruneRound(ctx context.Context) error {
	for range pruneMost {
		n, err := a.deps.Keys.PruneIdempotent(ctx, a.cfg.KeepKeys, pruneBatch)
		if err != nil || n < pruneBatch {
			return err //nolint:wrapcheck // says what it does
		}
	}
	return nil
}
