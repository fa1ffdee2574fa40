package chaos

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/lapsehq/lapse/pkg/lifecycle"
)

func (k Strike) rng() *rand.Rand { return rand.New(rand.NewPCG(k.Draw, 1)) }

// beside runs something until it is undone.
func beside(ctx context.Context, do func(context.Context)) func(context.Context) error {
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	var owned sync.WaitGroup
	owned.Go(func() { do(running) })
	return func(context.Context) error {
		stop()
		owned.Wait()
		return nil
	}
}

func cutLink(ctx context.Context, s *site, k Strike) (func(context.Context) error, string, error) {
	p, rng := s.proxies[k.Target], k.rng()
	return beside(ctx, func(ctx context.Context) {
		for ctx.Err() == nil {
			p.cut()
			_ = lifecycle.Sleep(ctx, drawn(rng, 100*time.Millisecond, time.Second)) // ctx tells
		}
	}), "", nil
}

func halfOpen(_ context.Context, s *site, k Strike) (func(context.Context) error, string, error) {
	p := s.proxies[k.Target]
	p.pause()
	return func(context.Context) error { p.resume(); return nil }, "", nil
}

func refuseLink(_ context.Context, s *site, k Strike) (func(context.Context) error, string, error) {
	p := s.proxies[k.Target]
	p.refuse(true)
	p.cut()
	return func(context.Context) error { p.refuse(false); return nil }, "", nil
}

func delayLink(_ context.Context, s *site, k Strike) (func(context.Context) error, string, error) {
	p, d := s.proxies[k.Target], drawn(k.rng(), 50*time.Millisecond, 400*time.Millisecond)
	p.delay(d)
	return func(context.Context) error { p.delay(0); return nil }, d.String(), nil
}

func narrowLink(_ context.Context, s *site, k Strike) (func(context.Context) error, string, error) {
	const least, most = 8 << 10, 64 << 10
	p := s.proxies[k.Target]
	p.bandwidth(least + k.rng().IntN(most-least))
	return func(context.Context) error { p.bandwidth(0); return nil }, "", nil
}
